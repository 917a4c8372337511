"""Records of several places in one: of the shards of a grid, or of machines that share no disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from acclimate.bench.spec import checked_cell
from acclimate.errors import InputError, OptionError, listed, shown
from acclimate.places import open_place
from acclimate.records import Record, finished, read_records, record_content, record_name, same

__all__ = ["MergeOutcome", "merge"]


@dataclass
class MergeOutcome:
    """How a merge went."""

    written: int = 0
    twice: int = 0
    """In several places, with the same result."""
    failed: list[str] = field(default_factory=list)
    """Labels of the cells that have a result nowhere."""


def merge(sources: Sequence[str | Path], out: str | Path, *, force: bool = False) -> MergeOutcome:
    """Bring all records of some folders, files or addresses together in one place.

    A cell with a result in one place and an error in another has a result. Two different results of one cell
    are refused before anything is written: ``force`` takes that of the place named last.
    """
    chosen: dict[str, Record] = {}
    outcome, differing = MergeOutcome(), []
    for record in [*finished(out).values(), *read_records(*sources)]:
        cell = checked_cell(record["cell"], "a record")
        other = chosen.get(cell.key)
        if other is not None and "result" in other:
            if "result" not in record:
                continue
            if same(other, record):
                outcome.twice += 1
                continue
            differing.append(cell.label)
        chosen[cell.key] = record
    if differing and not force:
        raise InputError(
            f"{len(differing)} cells have two different results: {listed(differing, 3)}. Were they measured "
            "with the same version on the same machine? --force takes those of the place named last"
        )
    place = open_place(out)
    place.make()
    for key, record in chosen.items():
        place.write(record_name(key), record_content(record))
        if "result" in record:
            outcome.written += 1
        else:
            outcome.failed.append(checked_cell(record["cell"], "a record").label)
    return outcome


def check_apart(sources: Sequence[str | Path], out: str | Path) -> None:
    """A place that is read from is not written to by mistake."""
    if str(out) in map(str, sources):
        raise OptionError(f"{shown(out)} is read from: give another place for all records")
