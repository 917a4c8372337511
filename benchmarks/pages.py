"""What the pages of the docs are written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table: the first ``words`` columns to the left, figures to the right."""
    ends = ["---"] * words + ["---:"] * (len(heads) - words)
    lines = [_line(heads), "|" + "|".join(ends) + "|"]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def of_which_images(record: dict[str, Any]) -> str:
    """What to tell of a record of CIFAR-10 that was not measured on the test images themselves."""
    if "lossless" in record["protocol"].get("data", ""):
        return ""
    return (
        "**Measured on copies of CIFAR-10's images that had been through JPEG (ResNet-20: 81% on clean ones, "
        "not 92%), and not again since.**"
    )


def code(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def filled(text: str, mark: str, part: str) -> str:
    """The text of a page with another part between two comments."""
    before, begin, rest = text.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    assert begin, f"there is no <!-- {mark} --> in this page"
    assert end, f"there is no <!-- /{mark} --> in this page"
    return f"{before}{begin}{part}\n{end}{after}"
