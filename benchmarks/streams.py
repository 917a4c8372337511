"""Streams that are hard on online adaptation: small batches, sorted labels, changing shifts, uneven classes.

    python benchmarks/streams.py                         # all of it, on two processes
    python benchmarks/streams.py --streams sorted --images 256

Online calls of `Adapter` with its defaults, the guard among them, over corruptions and seeds. A stream says
which images come when, what shift each of them has, and which options of `Adapter` its user would give.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import torch
from cifar import corrupted
from records import write
from torch import Tensor

from acclimate import Adapter
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateWarning

METHODS = ("source", "bn", "tent", "tent+", "hlr", "slr", "slr+it")
CORRUPTIONS = ("impulse_noise", "fog", "contrast")
SEEDS = (2020,)
FEW = 128
"""Images of a stream of single ones or pairs, each of which is a step; with one seed."""
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
    "batch of 2, blend": Stream("pairs", batch=2, options={"statistics": "blend"}),
    "batch of 1, blend": Stream("single images", batch=1, options={"statistics": "blend"}),
    "batch of 1, running": Stream("single images", batch=1, options={"statistics": "running"}),
    "sorted": Stream("all images of a class, then of the next", by_label),
    "sorted, blend": Stream("the same", by_label, options={"statistics": "blend"}),
    "sorted, running": Stream("the same", by_label, options={"statistics": "running"}),
    "shifts in turn": Stream("one shift, another, a third, the first again", shifts="in turn"),
    "mixed shifts": Stream("all shifts in every batch", shifts="mixed"),
    "uneven": Stream("classes from 1 to 1/20, no prior given", long_tail),
    "uneven, prior known": Stream("its true frequencies", long_tail, options={"prior": "known"}),
    "uneven, prior estimated": Stream(
        "the mean of bn's predictions", long_tail, options={"prior": "estimated"}
    ),
    "uneven, prior wrong": Stream("the true ones reversed", long_tail, options={"prior": "wrong"}),
    "unseen classes": Stream("4 of 10 classes occur", few_classes),
    "unseen classes, told": Stream("the same", few_classes, options={"classes": SEEN}),
}


def shifted(clean: Tensor, first: str, how: str) -> Tensor:
    """Images with their shifts, in the order of the stream."""
    if how == "one":
        return corrupted(clean, first, SEVERITY)
    names = [first, *(name for name in CORRUPTIONS if name != first)]
    made = torch.stack([corrupted(clean, name, SEVERITY) for name in names])
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


def row_of(name: str, method: str, corruption: str, seed: int, count: int) -> dict[str, Any]:
    """One stream, adapted to by one method."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    stream = STREAMS[name]
    clean, labels = bundled_images()
    chosen = stream.order(labels, count if stream.batch > 2 else FEW)
    images, labels = shifted(clean[chosen], corruption, stream.shifts), labels[chosen]
    options = dict(stream.options)
    if "prior" in options:
        options["prior"] = prior_of(options["prior"], images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        adapter = Adapter(bundled_model(), method, normalize=(MEAN, STD), seed=seed, **options)
        logits = torch.cat([adapter(part) for part in parts_of(images, stream.batch)])
    columns = torch.tensor(adapter.classes)[logits.argmax(1)]
    return {
        "stream": name, "method": method, "corruption": corruption, "seed": seed,
        "accuracy": round(100 * columns.eq(labels).double().mean().item(), 2),
        "evenness": round(entropy(columns) / max(entropy(labels), 1e-9), 3),
        "alarms": [alarm.signal for alarm in adapter.history.alarms],
    }  # fmt: skip


def parts_of(images: Tensor, batch: int) -> Sequence[Tensor]:
    """Batches, the last of which is not a single image."""
    parts = list(images.split(batch))
    if batch > 1 and len(parts[-1]) == 1:
        parts = [*parts[:-2], torch.cat(parts[-2:])]
    return parts


def entropy(classes: Tensor) -> float:
    shares = classes.bincount(minlength=CLASSES).double() / len(classes)
    return float(torch.special.entr(shares).sum()) or math.ulp(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--name", default="streams")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(row_of, name, method, corruption, seed, args.images)
            for name in args.streams
            for method in args.methods
            for corruption in CORRUPTIONS
            for seed in (SEEDS if method != "source" and STREAMS[name].batch > 2 else SEEDS[:1])
        ]
        for one in waiting:
            rows.append(one.result())
            print(rows[-1], flush=True)
    protocol = {
        "network": "the bundled one", "images": args.images, "images_of_small_batches": FEW,
        "severity": SEVERITY, "batch": BATCH,
        "protocol": "online", "corruptions": list(CORRUPTIONS), "collapsed": COLLAPSED,
        "streams": {name: STREAMS[name].what for name in args.streams},
    }  # fmt: skip
    write(args.name, protocol, rows)


if __name__ == "__main__":
    main()
