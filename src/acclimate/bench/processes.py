"""Cells in processes of this machine: one that dies takes its cell with it, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from acclimate.bench.attempt import Done, attempt, failure, kept
from acclimate.bench.spec import Cell
from acclimate.places import open_place

__all__ = ["in_processes"]


def in_processes(cells: Sequence[Cell], root: str, out: str, workers: int) -> Iterator[Done]:
    """Run cells, so many at a time, each in a process of its own kind; they come as they are done."""
    pool = _Pool(root, out, deque(cells))
    with pool.running(min(workers, len(cells))):
        while pool.is_busy():
            yield from pool.step()


@dataclass
class _Worker:
    process: Any
    connection: Connection
    cell: Cell | None = None


class _Pool:
    """The cells that wait and the processes that work on them."""

    def __init__(self, root: str, out: str, waiting: deque[Cell]) -> None:
        self._root, self._out, self._waiting = root, out, waiting
        self._workers: list[_Worker] = []
        self._numbers = itertools.count()
        # A process that is forked from one with running threads can hang; a new one cannot.
        self._context = multiprocessing.get_context("spawn")

    @contextlib.contextmanager
    def running(self, workers: int) -> Iterator[None]:
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

    def is_busy(self) -> bool:
        return bool(self._waiting) or any(worker.cell is not None for worker in self._workers)

    def step(self) -> Iterator[Done]:
        """Give cells to those that have none, and wait until one is done or a process has died."""
        for worker in self._workers:
            if worker.cell is None and self._waiting:
                worker.cell = self._waiting.popleft()
                worker.connection.send(worker.cell)
        working = [worker for worker in self._workers if worker.cell is not None]
        ready = wait([worker.connection for worker in working])
        for worker in working:
            if worker.connection in ready:
                yield self._heard(worker)

    def _begin(self) -> None:
        mine, theirs = self._context.Pipe()
        gpu = _gpu_of(next(self._numbers))
        process = self._context.Process(target=_work, args=(theirs, self._root, self._out, gpu), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, mine))

    def _heard(self, worker: _Worker) -> Done:
        cell = worker.cell
        assert cell is not None
        worker.cell = None
        try:
            record, reason = worker.connection.recv()
        except (EOFError, OSError):  # it is no more
            worker.process.join()
            self._workers.remove(worker)
            reason = _death(worker.process.exitcode)
            done = kept(cell, failure(cell, reason), open_place(self._out))
            self._begin()
            return Done(cell, done.record, reason)
        return Done(cell, record, reason)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with code {code}"


def _gpu_of(number: int) -> str | None:
    """Processes take GPUs in turn, of those that this one can see; None, where there is no choice."""
    count = torch.cuda.device_count()
    if count < 2:
        return None
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return seen[number % count]


def _work(connection: Connection, root: str, out: str, gpu: str | None) -> None:
    """What a process does: a cell comes, its record is written, and how it went is told."""
    if gpu is not None:  # torch has not looked for any yet
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grid ends its processes itself
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    place = open_place(out)
    while True:
        try:
            cell = connection.recv()
        except (EOFError, OSError):
            return
        done = kept(cell, attempt(cell, root), place)
        try:
            connection.send((done.record, done.reason))
        except OSError:  # the grid is no more
            return


def _follow(parent: int) -> None:
    """A grid that was killed cannot end its processes: they end themselves."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
