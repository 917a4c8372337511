"""Many cells on one machine: each in a process of its own kind, each leaving its record, whatever happens.

What is finished is never run again, what was killed begins anew, what fails is recorded, the rest goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from acclimate.bench.cell import fingerprints_of, run_cell
from acclimate.bench.spec import Cell
from acclimate.errors import AcclimateError, InputError, OptionError, OutputError
from acclimate.records import SCHEMA, Record, finished, origin, read_records, record_path, write_record

__all__ = ["GridOutcome", "run_grid"]

_FAR_BACK = 6  # lines of a traceback that a record keeps


@dataclass
class GridOutcome:
    """How a grid went."""

    done: int = 0
    skipped: int = 0
    """Finished before."""
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by the label of the cell."""


def run_grid(
    cells: Sequence[Cell],
    root: Path,
    out: Path,
    *,
    workers: int = 1,
    resume: bool = False,
    force: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_failure: Callable[[str, str], None] = lambda label, reason: None,
    on_record: Callable[[Record], None] | None = None,
) -> GridOutcome:
    """Run all cells whose record is not in ``out`` yet.

    Args:
        root: the folder below which data and weights lie.
        out: a folder for the records; made where it is not there.
        workers: processes side by side, each with the threads that its cells say.
        resume: go on with what is in ``out``, which is refused otherwise.
        force: run everything again.
        on_progress: called with the number of cells that are done and of all.
        on_failure: called with the label of a cell and what went wrong.
        on_record: called with the record of every cell that was run, in this process.
    """
    if workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{out} cannot be made: {error.strerror or error}") from error
    unique = {cell.key: cell for cell in cells}
    there = {} if force else {key: record for key, record in finished(out).items() if key in unique}
    if there and not resume:
        raise OptionError(f"{out} has {len(there)} of these records: --resume goes on, --force replaces them")
    if there:
        _check_same_data(unique, there, root)
    waiting = deque(cell for key, cell in unique.items() if key not in there)
    grid = _Grid(root, out, waiting, GridOutcome(skipped=len(there)), on_failure, on_record)
    total = len(unique)
    on_progress(len(there), total)
    with grid.running(min(workers, len(waiting))):
        while grid.busy():
            grid.step()
            on_progress(len(there) + grid.outcome.done + len(grid.outcome.failed), total)
    return grid.outcome


def _check_same_data(cells: dict[str, Cell], there: dict[str, Record], root: Path) -> None:
    """One record is looked at: on other images, or from other weights, it would be another result."""
    key, record = next(iter(there.items()))
    images, weights = fingerprints_of(cells[key], root)
    for what, now in (("images", images), ("weights", weights)):
        if now != record["spec"]["data" if what == "images" else what]:
            raise InputError(
                f"the records were measured on other {what} than those in {root} ({cells[key].label}): "
                "give the same, or another folder for the records"
            )


@dataclass
class _Worker:
    process: Any
    connection: Connection
    cell: Cell | None = None


class _Grid:
    """The cells that wait and the processes that work on them."""

    def __init__(
        self,
        root: Path,
        out: Path,
        waiting: deque[Cell],
        outcome: GridOutcome,
        on_failure: Callable[[str, str], None],
        on_record: Callable[[Record], None] | None,
    ) -> None:
        self.root, self.out, self.waiting, self.outcome = root, out, waiting, outcome
        self._on_failure, self._on_record = on_failure, on_record
        self._workers: list[_Worker] = []
        # A process that is forked from one with running threads can hang; a new one cannot.
        self._context = multiprocessing.get_context("spawn")

    @contextlib.contextmanager
    def running(self, workers: int) -> Any:
        """Within, processes wait for cells; on leaving they end, whatever they were doing."""
        try:
            for _ in range(workers):
                self._begin()
            yield
        finally:
            for worker in self._workers:
                worker.connection.close()
                worker.process.terminate()
            for worker in self._workers:
                worker.process.join()

    def busy(self) -> bool:
        return bool(self.waiting) or any(worker.cell is not None for worker in self._workers)

    def step(self) -> None:
        """Give cells to those that have none, and wait until one is done or a process has died."""
        for worker in self._workers:
            if worker.cell is None and self.waiting:
                worker.cell = self.waiting.popleft()
                worker.connection.send(worker.cell)
        working = [worker for worker in self._workers if worker.cell is not None]
        ready = wait([worker.connection for worker in working])
        for worker in working:
            if worker.connection in ready:
                self._hear(worker)

    def _begin(self) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self.root, self.out), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, mine))

    def _hear(self, worker: _Worker) -> None:
        cell = worker.cell
        assert cell is not None
        worker.cell = None
        try:
            reason = worker.connection.recv()
        except (EOFError, OSError):  # it is no more
            worker.process.join()
            self._workers.remove(worker)
            reason = _death(worker.process.exitcode)
            with contextlib.suppress(OutputError):
                write_record(record_path(self.out, cell.key), _failure(cell, reason, 0.0))
            self._begin()
        if reason is None:
            self.outcome.done += 1
        else:
            label = cell.label if cell.label not in self.outcome.failed else f"{cell.label} ({cell.key})"
            self.outcome.failed[label] = reason
            self._on_failure(cell.label, reason)
        if self._on_record is not None:
            # of a cell that failed, what lies there may be an older record
            path = record_path(self.out, cell.key)
            self._on_record(read_records(path)[0] if reason is None else _failure(cell, reason, 0.0))


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with code {code}"


def _failure(cell: Cell, reason: str, seconds: float, trace: Sequence[str] = ()) -> Record:
    return {
        "schema": SCHEMA,
        "cell": cell.model_dump(mode="json"),
        "error": {"reason": reason, "trace": list(trace)},
        "cost": {"seconds": round(seconds, 3)},
        "origin": origin(),
    }


def _work(connection: Connection, root: Path, out: Path) -> None:
    """What a process does: a cell comes, its record is written, and what went wrong is told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grid ends its processes itself
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            cell = connection.recv()
        except (EOFError, OSError):
            return
        reason = _attempt(cell, root, out)
        try:
            connection.send(reason)
        except OSError:  # the grid is no more
            return


def _follow(parent: int) -> None:
    """A grid that was killed cannot end its processes: they end themselves."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _attempt(cell: Cell, root: Path, out: Path) -> str | None:
    """Run a cell and write its record; what went wrong, if something did."""
    begun = time.perf_counter()
    try:
        record = run_cell(cell, root)
    except Exception as error:
        known = isinstance(error, AcclimateError)
        reason = str(error).partition("\n")[0] if known else f"{type(error).__name__}: {error}".strip()
        trace = [] if known else traceback.format_exc().splitlines()[-_FAR_BACK:]
        record = _failure(cell, reason, time.perf_counter() - begun, trace)
    try:
        write_record(record_path(out, cell.key), record)
    except OutputError as error:
        return str(error)
    return record["error"]["reason"] if "error" in record else None
