"""Many small tasks on several processes, a bounded number of them under way at any time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

import torch

from acclimate.errors import WorkerError

__all__ = ["run_all"]

Task = TypeVar("Task")
Result = TypeVar("Result")

# A fork has torch at once. Elsewhere it is not safe, and each worker has to import it.
START = "fork" if sys.platform == "linux" else "spawn"

_shared: Any = None  # in a worker: what all tasks have in common


def run_all(
    work: Callable[[Any, Task], Result], shared: Any, tasks: Iterable[Task], workers: int, start: str = START
) -> Iterator[Result]:
    """Results of ``work(shared, task)`` as they come; with one worker, in this very process."""
    if workers == 1:
        yield from (work(shared, task) for task in tasks)
        return
    waiting = iter(tasks)
    context = multiprocessing.get_context(start)
    arguments = (shared, os.getpid())
    with ProcessPoolExecutor(workers, context, initializer=_enter, initargs=arguments) as pool:
        under_way: set[Future[Result]] = set()
        try:
            while True:
                free = 4 * workers - len(under_way)
                under_way |= {pool.submit(_call, work, task) for task in islice(waiting, free)}
                if not under_way:
                    return
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except (KeyboardInterrupt, GeneratorExit):
            _end(pool)  # nothing half-written can stay: files appear whole or not at all
            raise
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker process died, perhaps for want of memory: what was done is kept; go on with the "
                "same command and fewer workers"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end(pool: ProcessPoolExecutor) -> None:
    """End the workers at once; the standard library has a public way only from Python 3.14 on."""
    for process in list((pool._processes or {}).values()):
        process.terminate()


def _enter(shared: Any, parent: int) -> None:
    global _shared
    _shared = shared
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    torch.set_num_threads(1)  # the processes share the processors among them


def _leave_with(parent: int) -> None:
    """A killed parent cannot end its workers, and they would wait for it for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _call(work: Callable[[Any, Task], Result], task: Task) -> Result:
    return work(_shared, task)
