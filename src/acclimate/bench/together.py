"""Cells one after the other, all ranks of a job at each: for networks and data that are too much for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from acclimate.bench.attempt import Done, attempt, failure, kept
from acclimate.bench.spec import Cell
from acclimate.places import open_place
from acclimate.ranks import Ranks
from acclimate.records import Record

__all__ = ["together"]


def together(cells: Sequence[Cell], root: str, out: str, ranks: Ranks) -> Iterator[Done]:
    """Run cells; they come on all ranks, and the first rank writes the records."""
    place = open_place(out)
    for cell in cells:
        record = _agreed(cell, attempt(cell, root, ranks), ranks)
        yield ranks.first(lambda cell=cell, record=record: kept(cell, record, place))  # type: ignore[misc]


def _agreed(cell: Cell, record: Record, ranks: Ranks) -> Record:
    """What failed on one rank has failed; who refused says why, the others only that it did."""
    own = {ranks.rank: record["error"]["reason"]} if "error" in record else {}
    reasons = [text for _, text in sorted(ranks.merged(own).items())]
    if not reasons:
        return record
    return failure(cell, next((text for text in reasons if not text.startswith("rank ")), reasons[0]))
