"""Tables of the reference, from the tables of the code."""

from __future__ import annotations

from pathlib import Path

from pages import DOCS, code, filled, table

from acclimate.data import LAYOUTS
from acclimate.fast import TRICKS
from acclimate.methods import METHODS, SETTINGS, Method

FOLDER = DOCS / "reference"


def methods() -> str:
    heads = ["method", "what it does", "loss", "δ", "κ", "frozen top", "optimiser", "rate"]
    return table(heads, [_row(method) for method in METHODS.values()], words=3)


def _row(method: Method) -> list[str]:
    own = [f"`{method.name}`", method.summary, f"`{method.confidence}`" if method.confidence else ""]
    if not method.has_loss:
        return [*own, *[""] * 5]
    steps = f"{method.optimizer}, {method.schedule}"
    kappa = f"{method.kappa:g}" if method.diversity else "no L_div"
    return [*own, f"{method.delta:g}", kappa, "yes" if method.freeze_top else "no", steps, f"{method.lr:g}"]


def settings() -> str:
    rows = []
    for name, setting in SETTINGS.items():
        told = [
            f"{code([method])}: {', '.join(f'{key} {value}' for key, value in changes.items())}"
            for method, changes in setting.changes.items()
        ]
        rows.append([f"`{name}`", setting.summary, "; ".join(told)])
    return table(["setting", "what", "changes"], rows, words=3)


def layouts() -> str:
    return table(["layout", "what"], [[f"`{name}`", row.summary] for name, row in LAYOUTS.items()], words=2)


def savings() -> str:
    return table(["saving", "what it does"], [[f"`{name}`", what] for name, what in TRICKS.items()], words=2)


def pages() -> dict[Path, str]:
    """The pages of the reference that hold tables, as they should be."""
    by_name, data, fast = FOLDER / "methods.md", FOLDER / "data.md", DOCS / "fast.md"
    text = filled(by_name.read_text(encoding="utf-8"), "methods", methods())
    return {
        by_name: filled(text, "settings", settings()),
        data: filled(data.read_text(encoding="utf-8"), "layouts", layouts()),
        fast: filled(fast.read_text(encoding="utf-8"), "savings", savings()),
    }
