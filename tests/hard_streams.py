"""Streams that are hard on online adaptation: small batches, sorted labels, changing shifts, uneven classes.

A stream says which images come when, what shift each of them has, and which options of `Adapter` its user
would give. Some are played in `test_streams.py`, all of them by every method in `benchmarks/streams.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acclimate import Adapter, corrupt
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateWarning
from acclimate.types import Alarm

CORRUPTIONS = ("impulse_noise", "fog", "contrast")
CLASSES, BATCH, SEVERITY = 10, 64, 5
TAIL = tuple(20 ** (-c / (CLASSES - 1)) for c in range(CLASSES))
"""How often each class occurs in an uneven stream: from 1 down to 1/20."""
SEEN = (0, 1, 2, 3)
"""Classes of a stream that lacks the others."""
COLLAPSED = 0.5
"""Of the entropy that the labels have, below which predictions have collapsed."""

Order = Callable[[Tensor, int], Tensor]
"""Labels and how many images, to their positions."""


def shuffled(labels: Tensor, count: int) -> Tensor:
    return torch.randperm(len(labels))[:count]


def by_label(labels: Tensor, count: int) -> Tensor:
    some = shuffled(labels, count)
    return some[labels[some].sort(stable=True).indices]


def long_tail(labels: Tensor, count: int) -> Tensor:
    weights = torch.tensor(TAIL)[labels]
    return torch.multinomial(weights / labels.bincount()[labels], min(count, 600))


def few_classes(labels: Tensor, count: int) -> Tensor:
    there = torch.isin(labels, torch.tensor(SEEN)).nonzero().flatten()
    return there[torch.randperm(len(there))[:count]]


@dataclass(frozen=True)
class Stream:
    """What comes when, and what the user says of it."""

    what: str
    order: Order = shuffled
    batch: int = BATCH
    shifts: str = "one"
    """``one``, ``in turn`` (and the first one again), or ``mixed`` in every batch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of `Adapter`; a ``prior`` may be ``known``, ``estimated`` or ``wrong``."""


STREAMS = {
    "even": Stream("shuffled, batches of 64"),
    "batch of 2": Stream("pairs", batch=2),
    "batch of 2, running": Stream("pairs", batch=2, options={"statistics": "running"}),
    "batch of 1": Stream("single images", batch=1),
    "batch of 1, running": Stream("single images", batch=1, options={"statistics": "running"}),
    "sorted": Stream("all images of a class, then of the next", by_label),
    "sorted, stream": Stream("the same", by_label, options={"statistics": "stream"}),
    "sorted, running": Stream("the same", by_label, options={"statistics": "running"}),
    "shifts in turn": Stream("one shift, another, a third, the first again", shifts="in turn"),
    "mixed shifts": Stream("all shifts in every batch", shifts="mixed"),
    "uneven": Stream("classes from 1 to 1/20, no prior given", long_tail),
    "uneven, prior known": Stream("the frequencies it is drawn by", long_tail, options={"prior": "known"}),
    "uneven, prior estimated": Stream(
        "the mean of bn's predictions", long_tail, options={"prior": "estimated"}
    ),
    "uneven, prior wrong": Stream("the true ones reversed", long_tail, options={"prior": "wrong"}),
    "unseen classes": Stream("4 of 10 classes occur", few_classes),
    "unseen classes, told": Stream("the same", few_classes, options={"classes": SEEN}),
}


def corrupted(images: Tensor, name: str) -> Tensor:
    """As published: made from and of bytes."""
    return corrupt((images * 255).round().to(torch.uint8), name, SEVERITY).float() / 255


def shifted(clean: Tensor, first: str, how: str) -> Tensor:
    """Images with their shifts, in the order of the stream."""
    if how == "one":
        return corrupted(clean, first)
    names = [first, *(name for name in CORRUPTIONS if name != first)]
    made = torch.stack([corrupted(clean, name) for name in names])
    count = len(clean)
    if how == "mixed":
        which = torch.arange(count) % len(names)
    else:
        which = torch.tensor([0, 1, 2, 0]).repeat_interleave(-(-count // 4))[:count]
    return made[which, torch.arange(count)]


def prior_of(how: str, images: Tensor) -> Tensor:
    true = torch.tensor(TAIL, dtype=torch.float64)
    if how != "estimated":
        return true if how == "known" else true.flip(0)
    seen = Adapter(bundled_model(), "bn", normalize=(MEAN, STD)).predict(
        images[: 4 * BATCH], batch_size=BATCH
    )
    return seen.softmax(1).mean(0)


class Seen(NamedTuple):
    """What a stream consists of, once it is drawn."""

    clean: Tensor
    """Without their shifts."""
    images: Tensor
    labels: Tensor
    batches: Sequence[Tensor]
    options: dict[str, Any]
    """Of `Adapter`."""


class Outcome(NamedTuple):
    """What became of a stream."""

    accuracy: float
    """In %, online."""
    evenness: float
    """Entropy of the predicted classes, as a part of that of the labels."""
    alarms: list[Alarm]

    @property
    def collapsed(self) -> bool:
        return self.evenness < COLLAPSED


def drawn(stream: Stream, corruption: str, count: int, seed: int = 2020) -> Seen:
    """The images of a stream in their order, and what its user says of them."""
    torch.manual_seed(seed)
    clean, labels = bundled_images()
    chosen = stream.order(labels, count)
    images = shifted(clean[chosen], corruption, stream.shifts)
    options = dict(stream.options)
    if "prior" in options:
        options["prior"] = prior_of(options["prior"], images)
    return Seen(clean[chosen], images, labels[chosen], parts_of(images, stream.batch), options)


def played(seen: Seen, method: str, seed: int = 2020, **more: Any) -> Outcome:
    """One stream, adapted to by one method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        adapter = Adapter(
            bundled_model(), method, normalize=(MEAN, STD), seed=seed, **{**seen.options, **more}
        )
        logits = torch.cat([adapter(part) for part in seen.batches])
    assert adapter.classes is not None
    predicted = torch.tensor(adapter.classes)[logits.argmax(1)]
    accuracy = 100 * predicted.eq(seen.labels).double().mean().item()
    evenness = entropy(predicted) / max(entropy(seen.labels), 1e-9)
    return Outcome(accuracy, evenness, adapter.history.alarms)


def parts_of(images: Tensor, batch: int) -> Sequence[Tensor]:
    """Batches, the last of which is not a single image."""
    parts = list(images.split(batch))
    if batch > 1 and len(parts[-1]) == 1:
        parts = [*parts[:-2], torch.cat(parts[-2:])]
    return parts


def entropy(classes: Tensor) -> float:
    shares = classes.bincount(minlength=CLASSES).double() / len(classes)
    return float(torch.special.entr(shares).sum()) or math.ulp(0)
