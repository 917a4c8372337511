"""A cell and its record, whatever happens: what every way to run a grid does with one."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from acclimate.bench.cell import run_cell
from acclimate.bench.spec import Cell
from acclimate.errors import AcclimateError, OptionError, OutputError, masked
from acclimate.places import Bucket, Folder, Place
from acclimate.ranks import ALONE, Ranks
from acclimate.records import SCHEMA, Record, origin, record_content, record_name

__all__ = ["Done", "attempt", "failure", "kept"]

_UNSENT: Final = Folder(Path("unsent-records"))
_FAR_BACK = 6  # lines of a traceback that a record keeps


class Done(NamedTuple):
    """A cell that was run."""

    cell: Cell
    record: Record
    reason: str | None
    """What went wrong, if something did."""


def attempt(cell: Cell, root: str, ranks: Ranks = ALONE) -> Record:
    """The record of a cell, or of what went wrong with it.

    Where other ranks work on it too, what was not foreseen, or befalls one of them only, ends it.
    """
    begun = time.perf_counter()
    try:
        return run_cell(cell, root)
    except Exception as error:
        known = isinstance(error, AcclimateError)
        if ranks.size > 1 and (not known or ranks.broken):
            raise
        reason = str(error).partition("\n")[0] if known else f"{type(error).__name__}: {error}".strip()
        trace = [] if known else traceback.format_exc().splitlines()[-_FAR_BACK:]
        told = [masked(line, root) for line in trace]
        return failure(cell, masked(reason, root), time.perf_counter() - begun, told)


def failure(cell: Cell, reason: str, seconds: float = 0.0, trace: Sequence[str] = ()) -> Record:
    """The record of a cell that could not be run."""
    return {
        "schema": SCHEMA,
        "cell": cell.model_dump(mode="json"),
        "error": {"reason": reason, "trace": list(trace)},
        "cost": {"seconds": round(seconds, 3)},
        "origin": origin(),
    }


def kept(cell: Cell, record: Record, place: Place) -> Done:
    """Write a record; where that cannot be done, the cell has failed, and its record is kept here."""
    name, content = record_name(cell.key), record_content(record)
    try:
        place.write(name, content)
    except OutputError as error:
        reason = str(error)
        if isinstance(place, Bucket):
            with contextlib.suppress(OutputError, OptionError):
                _UNSENT.make()
                _UNSENT.write(name, content)
                reason += f"; its record is in the folder {_UNSENT}, and `acclimate merge` brings it there"
        return Done(cell, failure(cell, reason), reason)
    return Done(cell, record, record["error"]["reason"] if "error" in record else None)
