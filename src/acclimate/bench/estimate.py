"""What a grid would take, from short runs of every kind of its cells on the machine at hand.

Cells of one kind differ in corruption, severity and seed only. Some images of each kind are adapted to for
one epoch and for three, by as many processes side by side as would work: that tells what the first epoch
takes, which decodes, what those after it take, and a prediction. Corruptions that are made on the way are
timed by themselves. A cell is then so many epochs and predictions of all its images, and cells are given to
workers as the grid gives them.
"""

from __future__ import annotations

import heapq
import io
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from acclimate.bench.cell import count_images, seconds_to_corrupt
from acclimate.bench.processes import in_processes
from acclimate.bench.spec import Cell
from acclimate.bench.together import together
from acclimate.errors import InputError, counted
from acclimate.ranks import Ranks
from acclimate.records import Record

__all__ = ["Estimate", "KindEstimate", "estimated", "table_of"]

_BATCHES = 4
"""Of a short run."""
_EPOCHS = (1, 3)
_SHIFT = {"corruption", "severity", "seed"}


@dataclass(frozen=True)
class KindEstimate:
    """What cells of one kind take."""

    label: str
    cells: int
    images: int
    """That a cell predicts."""
    adapting: float
    """Images per second, over all epochs."""
    predicting: float
    """Images per second."""
    seconds: float
    """Of one cell, without making its corruption."""


@dataclass(frozen=True)
class Estimate:
    """What a grid takes."""

    cells: int
    workers: int
    work: float
    """Seconds of one worker for all cells."""
    seconds: float
    """Until the last cell is done."""
    kinds: tuple[KindEstimate, ...]


def estimated(
    cells: Sequence[Cell],
    root: str,
    *,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Estimate:
    """Run some images of every kind of cell, and say what all cells would take.

    More workers than this machine has cores for are taken to be on machines like this one.
    """
    if not cells:
        raise InputError("there are no cells to estimate")
    members: dict[str, list[Cell]] = {}
    for cell in cells:
        members.setdefault(_kind(cell), []).append(cell)
    found, start_up = {}, 0.0
    for number, (kind, some) in enumerate(members.items()):
        on_progress(number, len(members))
        runs, began_after = _sampled(some[0], root, workers)
        start_up = max(start_up, began_after)
        found[kind] = _of_kind(some, *count_images(some[0], root), runs)
    on_progress(len(members), len(members))
    shares = Counter(_images_of(cell) for cell in cells)
    first = {_images_of(cell): cell for cell in cells}
    made = {images: seconds_to_corrupt(cell, root) for images, cell in first.items()}
    each = [
        # every worker makes the images that it needs, once for all cells that share them
        found[_kind(cell)].seconds
        + made[_images_of(cell)] * min(workers, shares[_images_of(cell)]) / shares[_images_of(cell)]
        for cell in cells
    ]
    return Estimate(
        len(cells), workers, sum(each), start_up + _scheduled(each, workers), tuple(found.values())
    )


def table_of(estimate: Estimate) -> str:
    """An estimate for people."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kind of cell", overflow="fold")
    for title in ("cells", "images", "adapting img/s", "predicting img/s", "one cell"):
        table.add_column(title, justify="right")
    for kind in estimate.kinds:
        speeds = (f"{kind.adapting:,.0f}" if kind.adapting else "–", f"{kind.predicting:,.0f}")
        table.add_row(kind.label, f"{kind.cells:,}", f"{kind.images:,}", *speeds, _duration(kind.seconds))
    drawn = Console(file=io.StringIO(), width=110)
    drawn.print(table)
    assert isinstance(drawn.file, io.StringIO)
    workers = "one worker" if estimate.workers == 1 else f"{estimate.workers} workers"
    return (
        f"{drawn.file.getvalue().rstrip()}\n\n{counted(estimate.cells, 'cell')}: {_duration(estimate.work)} "
        f"of work: about {_duration(estimate.seconds)} with {workers} like this one"
    )


def _kind(cell: Cell) -> str:
    """The same for cells of the same cost."""
    document = {**cell.model_dump(mode="json", exclude=_SHIFT), "shifted": cell.corruption is not None}
    return json.dumps(document, sort_keys=True)


def _images_of(cell: Cell) -> str:
    """The same for cells that see the same images."""
    document = cell.model_dump(mode="json", include={"network", "data", "corruption", "severity"})
    return json.dumps(document, sort_keys=True)


def _sampled(cell: Cell, root: str, workers: int) -> tuple[dict[int, list[Record]], float]:
    """Records of short runs by their epochs, and what passed before the first could begin."""
    ranks = Ranks()
    room = torch.cuda.device_count() if cell.device == "cuda" else (os.cpu_count() or 1) // cell.threads
    side_by_side = min(workers, max(1, room)) if ranks.size == 1 else 1
    epochs = _EPOCHS if cell.learns else _EPOCHS[:1]
    limit = min(_BATCHES * cell.batch_size, cell.data.limit or _BATCHES * cell.batch_size)

    def short(number: int, epochs: int) -> Cell:
        data = cell.data.model_copy(update={"limit": limit})
        changes = {"data": data, "epochs": epochs, "evaluate": (), "seed": cell.seed + number}
        return Cell(**{**cell.model_dump(), **changes, "data": data})

    # the first of each process warms it up
    wanted = [short(number, 1) for number in range(side_by_side)]
    for count in epochs:
        wanted += [short(number + side_by_side * (1 + count), count) for number in range(side_by_side)]
    runs: dict[int, list[Record]] = {count: [] for count in epochs}
    began_after = 0.0
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        done = (
            in_processes(wanted, root, out, side_by_side)
            if ranks.size == 1
            else together(wanted, root, out, ranks)
        )
        for number, one in enumerate(done):
            if one.reason is not None:
                raise InputError(f"{one.cell.label} cannot be run, and neither can its kind: {one.reason}")
            if number == 0:
                began_after = time.perf_counter() - begun - one.record["cost"]["seconds"]
            if number >= side_by_side:
                runs[one.cell.epochs].append(one.record)
    return runs, max(began_after, 0.0)


def _of_kind(
    cells: Sequence[Cell], images: int, adapted_to: int, runs: dict[int, list[Record]]
) -> KindEstimate:
    cell = cells[0]

    def mean(epochs: int, value: Callable[[dict[str, Any]], float]) -> float:
        return fmean(value(record["cost"]) for record in runs[epochs])

    few, many = min(runs), max(runs)
    of_run = runs[few][0]["spec"]["images"]
    first = mean(few, lambda cost: 1 / cost["images_per_second"])
    rest = mean(many, lambda cost: cost["seconds"] - cost["adapting_seconds"] - cost["evaluating_seconds"])
    if not cell.learns:
        total = rest + first * images
        return KindEstimate(_label(cell), len(cells), images, 0.0, 1 / first, total)
    both = mean(many, lambda cost: many / cost["images_per_second"])  # seconds of an image in all epochs
    later = max(both - first, 0.0) / (many - few)
    adapting = first + (cell.epochs - 1) * later
    one = mean(many, lambda cost: cost["evaluating_seconds"]) / (many * of_run)
    evaluations = len({*cell.evaluate, cell.epochs}) if cell.evaluate else cell.epochs
    total = rest + adapting * adapted_to + evaluations * one * images
    return KindEstimate(_label(cell), len(cells), images, cell.epochs / adapting, 1 / one, total)


def _label(cell: Cell) -> str:
    kind = cell.model_copy(update={"corruption": None, "severity": None})
    return kind.label.removesuffix(f" seed {cell.seed}")


def _scheduled(each: Iterable[float], workers: int) -> float:
    """When the last cell is done, if each goes to the worker that is free first.

    >>> _scheduled([3, 3, 4], 2)
    7
    """
    free: list[float] = [0] * workers
    for seconds in each:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def _duration(seconds: float) -> str:
    """In words.

    >>> _duration(5), _duration(400), _duration(9000), _duration(1e6)
    ('5.0 s', '6.7 min', '2.5 h', '11.6 days')
    """
    for size, unit in ((86400 * 2, "days"), (3600, "h"), (60, "min")):
        if seconds >= size * (1 if unit != "min" else 2):
            return f"{seconds / (86400 if unit == 'days' else size):.1f} {unit}"
    return f"{seconds:.1f} s"
