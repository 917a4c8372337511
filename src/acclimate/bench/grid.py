"""Many cells, each leaving its record, whatever happens, and wherever they run.

What is finished is never run again, what was killed begins anew, what fails is recorded, the rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from acclimate.bench.attempt import Done
from acclimate.bench.cell import fingerprints_of
from acclimate.bench.locks import Claims
from acclimate.bench.on_ray import on_ray
from acclimate.bench.processes import in_processes
from acclimate.bench.spec import Cell
from acclimate.bench.together import together
from acclimate.errors import InputError, OptionError, shown
from acclimate.places import open_place
from acclimate.ranks import Ranks
from acclimate.records import Record, finished

__all__ = ["GridOutcome", "run_grid", "shard_of"]


@dataclass
class GridOutcome:
    """How a grid went."""

    done: int = 0
    skipped: int = 0
    """Finished before."""
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by the label of the cell."""

    def add(self, cell: Cell, reason: str | None) -> None:
        if reason is None:
            self.done += 1
        else:
            self.failed[cell.label if cell.label not in self.failed else f"{cell.label} ({cell.key})"] = (
                reason
            )


def run_grid(
    cells: Sequence[Cell],
    root: str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    ray: str | None = None,
    gpus: float = 1.0,
    resume: bool = False,
    force: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_failure: Callable[[str, str], None] = lambda label, reason: None,
    on_record: Callable[[Record], None] | None = None,
) -> GridOutcome:
    """Run all cells whose record is not in ``out`` yet.

    Where this process is a rank of several (`torch.distributed`), all of them call it, and work on every
    cell together. In a folder, a cell that another process is at work on is an error; buckets have no locks.

    Args:
        root: the folder below which data and weights lie, or its address.
        out: a folder for the records, made where it is not there, or its address, such as ``s3://…``.
        workers: processes side by side, each with the threads that its cells say.
        ray: the address of a Ray cluster, whose workers run the cells instead; ``"auto"`` finds one.
        gpus: how much of a GPU a cell takes there.
        resume: go on with what is in ``out``, which is refused otherwise.
        force: run everything again.
        on_progress: called with the number of cells that are done and of all.
        on_failure: called with the label of a cell and what went wrong.
        on_record: called with the record of every cell that was run, in this process.
    """
    if workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    ranks = Ranks()
    if ranks.size > 1 and (ray is not None or workers > 1):
        raise OptionError("the ranks of a job work on every cell together: leave out workers and Ray")
    unique = {cell.key: cell for cell in cells}
    claims = Claims(open_place(out))
    try:
        there = ranks.first(lambda: _there(unique, root, out, claims, resume=resume, force=force))
        waiting = [cell for key, cell in unique.items() if key not in there]
        outcome = GridOutcome(skipped=len(there))
        on_progress(len(there), len(unique))
        for done in _run(waiting, str(root), str(out), workers, ray, gpus, ranks):
            claims.give_back([done.cell.key])
            outcome.add(done.cell, done.reason)
            if done.reason is not None:
                on_failure(done.cell.label, done.reason)
            if on_record is not None:
                on_record(done.record)
            on_progress(len(there) + outcome.done + len(outcome.failed), len(unique))
    finally:
        claims.close()
    return outcome


def _run(
    cells: list[Cell], root: str, out: str, workers: int, ray: str | None, gpus: float, ranks: Ranks
) -> Iterator[Done]:
    if not cells:
        return iter(())
    if ranks.size > 1:
        return together(cells, root, out, ranks)
    return (
        in_processes(cells, root, out, workers) if ray is None else on_ray(cells, root, out, ray, gpus=gpus)
    )


def shard_of(cells: Sequence[Cell], shard: str) -> list[Cell]:
    """Every n-th cell from the i-th on, of ``i/n``: what one of n jobs runs that share nothing.

    >>> shard_of(["a", "b", "c", "d", "e"], "1/2")
    ['b', 'd']
    """
    first, _, count = shard.partition("/")
    if not (first.isdigit() and count.isdigit() and int(first) < int(count)):
        raise OptionError(f"a shard must be i/n with i from 0 to n - 1, such as 0/4, got {shard!r}")
    return list(cells[int(first) :: int(count)])


def _there(
    cells: dict[str, Cell], root: str | Path, out: str | Path, claims: Claims, *, resume: bool, force: bool
) -> frozenset[str]:
    """Keys of the cells that need not be run; the others are this process's from here on."""
    open_place(out).make()
    claims.take(cells)
    there = {} if force else _finished(cells, out)
    if there and not resume:
        raise OptionError(
            f"{shown(out)} has {len(there)} of these records: --resume goes on, --force replaces them"
        )
    if there:
        _check_same_data(cells, there, root)
    claims.give_back(there)
    if len(there) < len(cells):
        claims.check_writable()
    return frozenset(there)


def _finished(cells: dict[str, Cell], out: str | Path) -> dict[str, Record]:
    """Records of these cells; one that lies under the name of another cell is none of them."""
    return {
        key: record
        for key, record in finished(out).items()
        if key in cells and record["cell"] == cells[key].model_dump(mode="json")
    }


def _check_same_data(cells: dict[str, Cell], there: dict[str, Record], root: str | Path) -> None:
    """One record is looked at: on other images, or from other weights, it would be another result."""
    key, record = next(iter(there.items()))
    images, weights = fingerprints_of(cells[key], root)
    for what, now in (("images", images), ("weights", weights)):
        if now != record["spec"]["data" if what == "images" else what]:
            raise InputError(
                f"the records were measured on other {what} than those in {shown(root)} "
                f"({cells[key].label}): give the same, or another folder for the records"
            )
