"""Cells one after the other, all ranks of a job at each: for networks and data that are too much for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from acclimate.bench.attempt import Done, attempt, kept
from acclimate.bench.spec import Cell
from acclimate.places import open_place
from acclimate.ranks import Ranks

__all__ = ["together"]


def together(cells: Sequence[Cell], root: str, out: str, ranks: Ranks) -> Iterator[Done]:
    """Run cells; they come on all ranks, and the first rank writes the records."""
    place = open_place(out)
    for cell in cells:
        record = attempt(cell, root, alone=False)

        def write(cell: Cell = cell, record: dict[str, object] = record) -> str | None:
            return kept(cell, record, place).reason

        yield Done(cell, record, ranks.first(write))
