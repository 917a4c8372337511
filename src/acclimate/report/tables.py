"""Tables: rows of figures under columns, the best of them marked."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acclimate.chance import Estimate

__all__ = ["Cell", "Entry", "Row", "Table", "apart", "bold_best", "facts", "mean_of"]


@dataclass(frozen=True)
class Entry:
    """A figure, with its standard deviation over seeds where there are several."""

    value: float
    spread: float | None = None
    best: bool = False
    """The highest of those that it competes with, or the lowest where that is better."""
    digits: int = 2
    sign: bool = False
    interval: tuple[float, float] | None = None
    """Of 95%, where it is known."""
    chance: bool = False
    """Within chance of others that are as good or better; of a gain, within chance of none."""

    @property
    def plain(self) -> str:
        """The figure as it is shown, without its spread."""
        return f"{self.value:{'+' if self.sign else ''}.{self.digits}f}"

    @property
    def doubt(self) -> str:
        """The interval and the mark of chance as they are shown; nothing where there is none."""
        if self.interval is None:
            return ""
        sign = "+" if self.sign else ""
        low, high = (f"{end:{sign}.1f}" for end in self.interval)
        return f"{low} to {high}{' ≈' if self.chance else ''}"

    @property
    def estimate(self) -> Estimate | None:
        """The figure with its interval, where it is known."""
        return None if self.interval is None else Estimate(self.value, *self.interval)


Cell = Entry | str | None


@dataclass(frozen=True)
class Row:
    """A label and a cell for each column."""

    label: str
    cells: tuple[Cell, ...]
    section: str = ""
    """What stands above the first row of several."""
    dim: bool = False
    """Not in competition: true labels, no adaptation."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """What sets a row apart besides its label, for programs."""
    rule: bool = False
    """A line above it, though no section begins."""


@dataclass(frozen=True)
class Table:
    """Rows under columns; the first of ``heads`` stands above the labels."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    groups: tuple[tuple[str, int], ...] = ()
    """Texts above the heads, and over how many columns each reaches; the first is above the labels."""
    note: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """What the table is of, for programs."""

    @property
    def full_heads(self) -> list[str]:
        """Heads that also say what stands above them."""
        names = [text for text, width in self.groups for _ in range(width)] or [""] * len(self.heads)
        return [f"{above}: {head}" if above else head for above, head in zip(names, self.heads, strict=True)]


def mean_of(values: Iterable[float], *, spread: bool = True, digits: int = 2) -> Entry | None:
    """Mean and standard deviation, of several; none of nothing."""
    known = list(values)
    if not known:
        return None
    deviation = statistics.stdev(known) if spread and len(known) > 1 else None
    return Entry(statistics.fmean(known), deviation, digits=digits)


def bold_best(
    rows: Sequence[Row], *, columns: Iterable[int] | None = None, along: str = "columns", lowest: bool = False
) -> tuple[Row, ...]:
    """Mark the best figure of each column, or of each row among ``columns``; dim rows do not compete.

    Figures that look the same are equally good. Where intervals are known, the best is also marked as
    within chance if others cannot be told apart from it, and so are these.
    """
    made = [list(row.cells) for row in rows]
    width = max((len(cells) for cells in made), default=0)
    chosen = list(range(width) if columns is None else columns)
    everywhere = [(y, x) for y, row in enumerate(rows) if not row.dim for x in chosen if x < len(made[y])]
    lines: dict[Any, list[tuple[int, int]]] = {}
    for y, x in everywhere:
        lines.setdefault((rows[y].section, x) if along == "columns" else y, []).append((y, x))
    for places in lines.values():
        known = [(y, x, cell) for y, x in places if isinstance(cell := made[y][x], Entry)]
        if len(known) < 2:
            continue
        pick = min if lowest else max
        best = pick(known, key=lambda item: item[2].value)[2]
        close = [cell.plain == best.plain or not apart(cell, best) for _, _, cell in known]
        for (y, x, cell), near in zip(known, close, strict=True):
            chance = near and sum(close) > 1 and cell.interval is not None
            made[y][x] = replace(cell, best=cell.plain == best.plain, chance=chance)
    return tuple(replace(row, cells=tuple(cells)) for row, cells in zip(rows, made, strict=True))


def apart(one: Entry, other: Entry) -> bool:
    """Whether two figures differ by more than chance; what has no interval is taken as it is."""
    first, second = one.estimate, other.estimate
    return first is None or second is None or first.apart_from(second)


def facts(table: Table) -> list[dict[str, Any]]:
    """One for each figure or text of a table, with all digits."""
    found = []
    for row in table.rows:
        for head, cell in zip(table.full_heads[1:], row.cells, strict=True):
            if cell is None:
                continue
            found.append(
                {
                    "table": table.title,
                    **table.keys,
                    **row.keys,
                    "section": row.section,
                    "row": row.label,
                    "column": head,
                    "value": cell.value if isinstance(cell, Entry) else cell,
                    **_doubts(cell if isinstance(cell, Entry) else Entry(0.0)),
                }
            )
    return found


def _doubts(entry: Entry) -> dict[str, Any]:
    """Spread and interval of a figure, and whether it is the best or within chance of it."""
    low, high = entry.interval or (None, None)
    best = entry.best and not entry.chance
    return {"std": entry.spread, "low": low, "high": high, "best": best, "chance": entry.chance}
