"""Where the guard and the gate fail: what `docs/trust.md` takes back.

    python benchmarks/limits.py

sorted      clean CIFAR-10, all images of a class and then of the next, online: no alarm
rates       learning rates 300 times too high and more, with the guard
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product

import torch
from cifar import IMAGES, NORMALIZE, load_images, load_model
from records import write
from trust import Row, percent, row_of

from acclimate import Adapter
from acclimate.errors import AcclimateWarning

COUNT, BATCHES, SEED = 1500, (16, 64), 2020
TIMES = (300.0, 1000.0, 3000.0)


def sorted_by_class() -> Iterator[Row]:
    images, labels = (part[:COUNT] for part in load_images())
    order = labels.sort(stable=True).indices
    for batch, method in product(BATCHES, ("source", "bn", "slr")):
        adapter = Adapter(load_model(20), method, normalize=NORMALIZE, seed=SEED)
        right = [adapter(images[part]).argmax(1).eq(labels[part]) for part in order.split(batch)]
        yield {
            "part": "sorted", "method": method, "batch": batch, "accuracy": percent(torch.cat(right).double().mean().item()),
            "alarms": [alarm.signal for alarm in adapter.history.alarms],
        }  # fmt: skip


def rates() -> Iterator[Row]:
    for method in ("tent+", "slr"):
        for times in TIMES:
            row = row_of("cifar", "speckle_noise", method, SEED, times, guard=True)
            kept = ("method", "times", "source", "bn", "accuracy", "alarms")
            yield {"part": "rates", **{name: row[name] for name in kept}}


def main() -> None:
    torch.set_num_threads(1)
    rows: list[Row] = []
    protocol = {
        "data": IMAGES, "network": "ResNet-20", "seed": SEED,
        "sorted": f"{COUNT} clean images in the order of their classes, online",
        "rates": "512 images of speckle noise, severity 5, three epochs of batches of 64, the guard on",
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        for part in (sorted_by_class, rates):
            for row in part():
                rows.append(row)
                print(row, flush=True)
                write("limits", protocol, rows)


if __name__ == "__main__":
    main()
