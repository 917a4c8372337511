"""Accuracy after an epoch in bfloat16 beside float32, on the validation corruptions, three seeds.

CIFAR-10's ResNet-20 and ResNet-56 with all test images, and the bundled network with its own. Starts
itself again where bfloat16 needs another environment (`amx.py`). With `--emulated` also where the processor
has no instructions for it: numbers are rounded to the same bits there, and it takes longer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from accuracy import SEEDS, accuracy
from amx import bf16_environment, has_instructions
from cifar import IMAGES, NORMALIZE, corrupted, load_images, load_model
from records import unfinished, write
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

STARTED = "ACCLIMATE_BF16"
BATCH = 64


def networks() -> Iterator[tuple[str, nn.Module, Any, Tensor, Tensor]]:
    yield "bundled", bundled_model(), (MEAN, STD), *bundled_images()
    images, labels = load_images()
    for depth in (20, 56):
        yield f"ResNet-{depth}", load_model(depth), NORMALIZE, images, labels


def cell(model: nn.Module, normalize: Any, images: Tensor, labels: Tensor, **options: Any) -> dict[str, Any]:
    adapter = Adapter(model, "slr", normalize=normalize, **options)
    started = time.perf_counter()
    adapter.fit(images, 1, batch_size=BATCH, progress=False)
    seconds = time.perf_counter() - started
    return {
        "accuracy": accuracy(adapter.predict(images, batch_size=BATCH), labels),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="images of each network")
    parser.add_argument("--emulated", action="store_true", help="also without instructions for it")
    parser.add_argument("--name", default="precision")
    args = parser.parse_args()
    added, how = bf16_environment()
    emulated = added is None and args.emulated and not has_instructions()
    if added is None and not emulated:
        raise SystemExit(f"bfloat16: {how}")
    if added and STARTED not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **added, STARTED: how})
    protocol = {
        "data": IMAGES,
        "method": "slr",
        "epochs": 1,
        "batch_size": BATCH,
        "severity": 5,
        "limit": args.limit,
        "corruptions": list(VALIDATION_NAMES),
        "evaluation": "after the epoch: batch statistics of shuffled batches",
        "bf16": "emulated" if emulated else os.environ.get(STARTED, how),
    }
    rows, protocol = unfinished(args.name, protocol)
    there = {(row["network"], row["corruption"], row["seed"], row["precision"]) for row in rows}
    for network, model, normalize, clean, labels in networks():
        for corruption in VALIDATION_NAMES:
            shifted = corrupted(clean, corruption, severity=5)[: args.limit]
            for seed in SEEDS:
                for precision in ("fp32", "bf16"):
                    if (network, corruption, seed, precision) in there:
                        continue
                    row = {"network": network, "corruption": corruption, "seed": seed, "precision": precision}
                    found = cell(
                        model, normalize, shifted, labels[: args.limit], seed=seed, precision=precision
                    )
                    rows.append(row | found)
                    print(rows[-1], flush=True)
                    write(args.name, protocol, rows)
        gap = difference(rows, network)
        print(f"{network}: bf16 is {gap:+.3f} points from fp32", flush=True)
    assert all(abs(difference(rows, name)) <= 0.3 for name in dict.fromkeys(row["network"] for row in rows))


def difference(rows: list[dict[str, Any]], network: str) -> float:
    """Mean accuracy in bfloat16 less that in float32, over corruptions and seeds."""
    found = {
        precision: [
            row["accuracy"] for row in rows if row["network"] == network and row["precision"] == precision
        ]
        for precision in ("fp32", "bf16")
    }
    return statistics.mean(found["bf16"]) - statistics.mean(found["fp32"])


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
