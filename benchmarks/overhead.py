"""What a cell of the benchmark adds to each step, timed by itself, against a step of CIFAR-10's ResNet-20."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from cifar import NORMALIZE, load_images, load_model
from records import write

from acclimate import Adapter
from acclimate.bench.cell import _Run, _told
from acclimate.bench.spec import Cell, Data, Network
from acclimate.data import ImageSet
from acclimate.metrics import measure

BATCH, IMAGES, ROUNDS = 64, 10_000, 7


def seconds(function: Callable[[], object], times: int) -> float:
    """Median over rounds of the mean over calls."""
    found = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            function()
        found.append((time.perf_counter() - started) / times)
    return statistics.median(found)


def main() -> None:
    torch.set_num_threads(1)
    images, labels = load_images()
    adapter = Adapter(load_model(20), "slr", normalize=NORMALIZE)
    step = seconds(lambda: adapter(images[:BATCH]), 5)
    logits, index = adapter.predict(images[:BATCH]), torch.arange(BATCH)
    all_logits = torch.randn(IMAGES, 10)
    cell = Cell(network=Network(name="demo"), data=Data(name="demo"), method="slr", batch_size=BATCH)

    part = ImageSet(lambda position: images[position], [""] * IMAGES, labels=labels[:IMAGES])

    def keep() -> None:
        run = _Run(adapter, cell, part, part)
        for _ in range(100):
            run._keep(logits, index)

    kept = seconds(keep, 10) / 100
    steps = -(-IMAGES // BATCH)
    measured = seconds(lambda: _told(measure(all_logits, labels), adapter), 3) / steps
    share = (kept + measured) / step
    rows = [
        {"what": "a step of ResNet-20, batch 64", "us": round(1e6 * step, 1), "share %": 100.0},
        {
            "what": "keeping the logits of a step",
            "us": round(1e6 * kept, 2),
            "share %": round(100 * kept / step, 3),
        },
        {
            "what": "measuring an epoch of 10,000 images, per step",
            "us": round(1e6 * measured, 2),
            "share %": round(100 * measured / step, 3),
        },
    ]
    for row in rows:
        print(row)
    write("bench_overhead", {"batch_size": BATCH, "images": IMAGES, "rounds": ROUNDS}, rows)
    assert share < 0.03, share


if __name__ == "__main__":
    main()
