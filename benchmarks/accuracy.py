"""Accuracy of the methods on CIFAR-10 under validation corruptions, after each epoch.

    python benchmarks/accuracy.py [--epochs 1] [--methods source bn ...] [--name cifar10]

The paper's hyperparameters, unchanged. ResNet-20, severity 5, all 10,000 images, three seeds. The
test corruptions are not touched. What the record has of the same protocol is not measured again.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from cifar import DATA, IMAGES, NORMALIZE, corrupted, load_images, load_model
from records import unfinished, write
from torch import Tensor

from acclimate import Adapter

METHODS = ("source", "bn", "tent", "tent+", "pl", "hlr", "slr", "slr+it")  # shot begins with epoch 2
SEEDS = (2020, 2021, 2022)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return round(100 * logits.argmax(1).eq(labels).double().mean().item(), 2)


def stock_logits(adapter: Adapter, images: Tensor) -> Tensor:
    """What the exported network says in evaluation mode, given what it takes: pixels or normalised ones."""
    exported = adapter.export()
    if not adapter.method.input_transform:
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in NORMALIZE)
        images = (images - mean) / std
    with torch.no_grad():
        return torch.cat([exported(part) for part in images.split(500)])


def cell(method: str, images: Tensor, labels: Tensor, seed: int, epochs: int) -> dict[str, Any]:
    adapter = Adapter(load_model(), method, normalize=NORMALIZE, setting="paper", seed=seed)
    after: list[float] = []
    started = time.perf_counter()

    def evaluate(adapter: Adapter) -> None:
        after.append(accuracy(adapter.predict(images, batch_size=64), labels))

    history = adapter.fit(images, epochs, progress=False, on_epoch=evaluate)
    if not after:
        evaluate(adapter)
    return {
        "after_epoch": after,
        "exported": accuracy(stock_logits(adapter, images), labels),
        "class_entropy": round(history.class_entropy[-1], 4) if history.class_entropy else None,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--corruptions", nargs="+", default=["speckle_noise", "gaussian_blur"])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--name", default="cifar10_epoch1")
    args = parser.parse_args()
    if not DATA.exists():
        raise SystemExit(
            f"no data at {DATA}: put cifar10_test.npz and its ResNets there, or set ACCLIMATE_DATA"
        )
    clean, labels = load_images()
    protocol = {
        "data": IMAGES,
        "images": len(clean),
        "model": "ResNet-20",
        "severity": 5,
        "batch_size": 64,
        "epochs": args.epochs,
        "evaluation": "after-epoch: batch statistics of shuffled batches of 64",
        "hyperparameters": "the paper's",
    }
    rows, protocol = unfinished(args.name, protocol)
    there = {(row["corruption"], row["method"], row["seed"]) for row in rows}
    for corruption in args.corruptions:
        shifted = corrupted(clean, corruption, severity=5)
        for method in args.methods:
            for seed in args.seeds if method != "source" else args.seeds[:1]:
                if (corruption, method, seed) in there:
                    continue
                row = {"corruption": corruption, "method": method, "seed": seed}
                row |= cell(method, shifted, labels, seed, args.epochs)
                print(row, flush=True)
                rows.append(row)
                write(args.name, protocol, rows)


if __name__ == "__main__":
    main()
