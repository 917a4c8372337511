"""All that is needed to run it again: what was used, with which figures, and by which command."""

from __future__ import annotations

import base64
import gzip
import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from acclimate.bench.presets import PRESETS
from acclimate.bench.spec import Cell
from acclimate.errors import AcclimateError, shown
from acclimate.records import Record
from acclimate.report.gather import Gathered
from acclimate.report.reading import data_of, learns, network_of, shift_of
from acclimate.report.tables import Row, Table

__all__ = ["CELLS", "cells_file", "commands", "facts_table", "hyperparameters"]

CELLS = "cells.jsonl.gz"
"""The name under which a page offers its cells."""
_SHOWN = 24  # values of a fact
_FIELDS = (
    "confidence", "delta", "kappa", "diversity", "freeze", "optimizer", "lr", "momentum", "betas",
    "weight_decay", "schedule", "pseudo_label_weight", "input_transform", "width", "depth",
)  # fmt: skip


def _everything(found: Gathered) -> list[Record]:
    measured = [run for series in found.series for run in series.runs.values()]
    return [*measured, *found.unlabelled]


def facts_table(found: Gathered) -> Table:
    """What all records have in common, or how they differ."""
    records = _everything(found)
    told: list[tuple[str, Callable[[Record], Any]]] = [
        ("networks", lambda r: f"{network_of(r)} (weights {r['spec']['weights']})"),
        ("data", lambda r: f"{data_of(r)}, {r['spec']['images']:,} images of {_size(r)}"),
        ("fingerprints of the images", lambda r: f"{shift_of(r)} {r['spec']['data']}"),
        ("images adapted to", lambda r: r["spec"]["images_adapted_to"]),
        ("normalisation", lambda r: _normalisation(r["spec"]["options"]["normalize"])),
        ("setting of hyperparameters", lambda r: r["spec"]["setting"] if learns(r) else None),
        ("epochs", lambda r: r["cell"]["epochs"] if learns(r) else None),
        ("batch size", lambda r: r["cell"]["batch_size"]),
        ("seeds", lambda r: r["cell"]["seed"]),
        ("severities", lambda r: r["cell"].get("severity")),
        ("statistics", lambda r: r["spec"]["options"]["statistics"]),
        ("protocols", lambda r: ", ".join(r["spec"]["protocol"])),
        ("device", lambda r: r["cell"].get("device")),
        ("precision", lambda r: r["spec"]["precision"]),
        ("threads", lambda r: r["spec"]["threads"]),
        ("guard", lambda r: "on" if r["spec"]["guard"] else "off"),
        ("acclimate", lambda r: f"{r['origin']['acclimate']}, commit {r['origin']['commit'] or 'not known'}"),
        ("torch", lambda r: r["origin"]["torch"]),
        ("python", lambda r: r["origin"]["python"]),
        ("machine", lambda r: f"{r['origin']['system']} {r['origin']['machine']}"),
    ]
    rows = [Row(name, (values,)) for name, of in told if (values := _values(map(of, records)))]
    seconds = sum(record["cost"]["seconds"] for record in records)
    rows.append(
        Row("time, all records", (f"{seconds / 3600:.1f} hours" if seconds > 7200 else f"{seconds:.0f} s",))
    )
    return Table("What was run", ("", "value"), tuple(rows))


def _size(record: Record) -> str:
    _, height, width = record["spec"]["shape"]
    return f"{width} by {height} pixels"


def _normalisation(given: Sequence[Sequence[float]] | None) -> str:
    if given is None:
        return "none"
    return " / ".join(", ".join(f"{value:g}" for value in side) for side in given)


def _values(values: Iterable[Any]) -> str:
    shown = [str(value) for value in sorted({value for value in values if value is not None})]
    more = f" … and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return "; ".join(shown[:_SHOWN]) + more


def hyperparameters(found: Gathered) -> Table:
    """Of every method as it ran, each once."""
    seen: dict[str, dict[str, Any]] = {}
    for record in _everything(found):
        method = {**record["spec"]["method"], "freeze": _frozen(record)}
        method["kappa"] = method["kappa"] if method["diversity"] else "–"
        label = f"{record['cell']['method']} ({record['spec']['setting']})"
        if method["adapts_parameters"]:
            changed = record["cell"].get("overrides") or {}
            seen.setdefault(label if not changed else f"{label} {_said(changed)}", method)
    rows = [Row(label, tuple(_shown(method[name]) for name in _FIELDS)) for label, method in seen.items()]
    heads = ("method", *(name.replace("_", " ") for name in _FIELDS))
    return Table("Hyperparameters", heads, tuple(rows))


def _frozen(record: Record) -> Any:
    asked = record["spec"]["options"]["freeze"]
    if asked != "auto":
        return asked
    return "top" if record["spec"]["method"]["freeze_top"] else "none"


def _said(changes: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes.items())


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def commands(found: Gathered) -> list[str]:
    """What to type to get the same again."""
    told = [_adapt_command(record["cell"]) for record in found.unlabelled if "network" in record["cell"]]
    cells = [run["cell"] for series in found.series for run in series.runs.values()]
    cells += [record["cell"] for record in found.failed]
    if cells:
        told.append(_bench_command(cells))
        told.append("acclimate report again --out report.html")
    return told


def _bench_command(cells: Sequence[dict[str, Any]]) -> str:
    """A preset by its name, if the records are all of it; otherwise the cells themselves."""
    names = ({cell["data"]["name"] for cell in cells}, {cell["network"]["name"] for cell in cells})
    for name, preset in PRESETS.items():
        data = {own.name for spec in preset.specs for own in spec.data}
        networks = {own.name for spec in preset.specs for own in spec.networks}
        if names == (data, networks) and _keys(cells) == {cell.key for cell in preset.cells()}:
            return f"acclimate bench {name}{' --data FOLDER' if preset.data else ''} --out again"
    own = all(":" in cell["data"]["path"] and "://" not in cell["data"]["path"] for cell in cells)
    return f"acclimate bench {CELLS}{'' if own else ' --data FOLDER'} --out again"


def _keys(cells: Sequence[dict[str, Any]]) -> set[str]:
    """Digests of cells; of what this acclimate does not know, none."""
    try:
        return {Cell(**cell).key for cell in cells}
    except (ValueError, AcclimateError):
        return set()


def _adapt_command(cell: dict[str, Any]) -> str:
    network, data = cell["network"], cell["data"]
    options = {
        "model": network["name"],
        "weights": network["weights"],
        "normalize": network["normalize"],
        "data": shown(data["path"]),
        "layout": None if data["layout"] == "auto" else data["layout"],
        "split": data["split"],
        "size": data["size"],
        "corruption": cell["corruption"],
        "severity": cell["severity"],
        "method": cell["method"],
        "setting": None if cell["setting"] == "auto" else cell["setting"],
        "epochs": cell["epochs"],
        "batch-size": cell["batch_size"],
        "seed": cell["seed"],
        "device": None if cell["device"] == "cpu" else cell["device"],
        **{name: (cell.get("overrides") or {}).get(name) for name in ("precision", "memory")},
    }
    given = (f"--{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None)
    return f"acclimate adapt {' '.join(given)}"


def cells_file(found: Gathered) -> str:
    """All cells as an address that holds them: what `acclimate bench` takes."""
    cells = [run["cell"] for series in found.series for run in series.runs.values()]
    cells += [record["cell"] for record in found.failed]
    lines = "".join(json.dumps({"cell": cell}) + "\n" for cell in cells)
    return f"data:application/gzip;base64,{base64.b64encode(gzip.compress(lines.encode(), mtime=0)).decode()}"
