"""The loop over epochs and batches: where it stands, how it goes on, and nothing else."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from acclimate.batches import Batches
from acclimate.engine import Engine
from acclimate.errors import AcclimateWarning, InputError, OptionError
from acclimate.interrupts import uninterrupted
from acclimate.progress import progress_bar
from acclimate.types import Batch

__all__ = ["Fit", "begin", "run"]


@dataclasses.dataclass
class Fit:
    """Where a call of `Adapter.fit` stands; kept when it is interrupted, and saved with the rest."""

    epochs: int
    batches: int
    images: int | None
    shuffle: bool
    length: int
    """Batches of an epoch; fewer than announced where a short last one was merged."""
    epoch: int = 0
    batch: int = 0
    seed: int | None = None
    """Of this epoch's order, once it is drawn."""

    def is_same(self, other: Fit) -> bool:
        names = ("epochs", "batches", "images", "shuffle")
        return all(getattr(self, name) == getattr(other, name) for name in names)


def begin(held: Fit | None, epochs: int, batches: Batches) -> Fit:
    """A new fit, or the held one that was interrupted and that this call goes on with."""
    images = None if batches.order is None else len(batches.order)
    asked = Fit(epochs, len(batches), images, batches.shuffle, length=len(batches))
    if held is None or (held.epoch == held.epochs and not held.is_same(asked)):
        return asked
    if not held.is_same(asked):
        raise OptionError(
            f"a fit of {held.epochs} epochs of {held.batches} batches stands at epoch {held.epoch + 1}, "
            f"batch {held.batch}, and this is another one ({epochs} epochs of {len(batches)} batches): "
            "give the same to go on, or start again (reset() in Python)"
        )
    if held.epoch == held.epochs:
        warnings.warn(
            "this fit was complete when it was saved: nothing is left to do (reset() in Python starts again)",
            AcclimateWarning,
            stacklevel=3,
        )
    return held


def run(
    fit: Fit,
    engine: Engine,
    batches: Batches,
    generator: torch.Generator,
    *,
    progress: bool | None,
    on_step: Callable[[], None],
    on_epoch: Callable[[], None],
    on_logits: Callable[[Tensor, Tensor | None], None] | None = None,
) -> None:
    """Go through all steps that are still to come; an epoch that can change nothing has none."""
    visible = progress if engine.ranks.rank == 0 else False
    passes = fit.epochs if engine.changes_by_epochs else 1
    with progress_bar(passes * fit.length, visible) as show:
        while fit.epoch < fit.epochs:
            for batch in _remaining(fit, engine, batches, generator) if fit.epoch < passes else ():
                position, total = fit.epoch * fit.length + fit.batch, passes * fit.length
                with uninterrupted():
                    logits = engine.update(batch, position=position, total=total, epoch=fit.epoch + 1)
                    fit.batch += 1
                if on_logits is not None:
                    index = None if batch.index is None else engine.ranks.rows(batch.index)
                    on_logits(engine.ranks.rows(logits), index)
                show(position + 1, engine.history)
                on_step()
            if fit.batch == 0 and fit.epoch < passes:
                raise InputError("the data gave no batch when they were gone through again")
            fit.epoch, fit.batch, fit.length, fit.seed = fit.epoch + 1, 0, fit.batch or fit.length, None
            on_epoch()


def _remaining(fit: Fit, engine: Engine, batches: Batches, generator: torch.Generator) -> Iterator[Batch]:
    """The batches of an epoch that are still to come."""
    labels = engine.method.pseudo_label_weight > 0
    if labels and batches.order is None:
        raise InputError(
            "centroid labels need to know which image is which: give images, a map-style data set, "
            "a loader of one, or a list of batches"
        )
    if fit.seed is None:
        fit.seed = int(torch.randint(2**62, (), generator=generator))
    if fit.batch == 0:
        engine.prepared.statistics.restart()
        if labels and fit.epoch > 0:
            engine.label(batches.epoch(fit.seed))
    return batches.epoch(fit.seed, start=fit.batch)
