"""Whether a fast step and a plain one are the same: logits, gradients, and parameters after the update.

Two computations in float32 cannot be expected to agree better than either agrees with the exact result. So
beside the adapter and the plain loop, torch's own loop is compared with itself, in another memory layout and
without oneDNN, and all of it with float64. Gradients are compared twice: as they are, and with all units held
on the same side of their kinks (`tests/kinks.py`).

An error of 1e-5, relative to values of more than 1 and for gradients to the largest element, is allowed, or
twice that of the plain loop itself if it is larger; of gradients as they are, any. Written first, then
asserted.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from cifar import NORMALIZE, load_images, load_model
from export import fitted
from records import origin, write
from speed import machine
from speed_worker import IMAGENET, make_network
from torch import Tensor, nn

from acclimate import corrupt
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.fast.recycling import release_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from kinks import Step, Way, errors, step

OURS, PLAIN = Way(), Way(fast=False)
EXACT = Way(fast=False, dtype=torch.float64)
PAIRS = {
    "ours, plain": (OURS, PLAIN),
    "torch in channels last, plain": (Way(fast=("layout",)), PLAIN),
    "torch without oneDNN, plain": (Way(fast=False, onednn=False), PLAIN),
    "plain, float64": (PLAIN, EXACT),
    "ours, float64": (OURS, EXACT),
    "ours in float64, float64": (Way(dtype=torch.float64), EXACT),
}
"""What is compared with what."""
ALLOWED, MEASURES = 1e-5, ("logits", "gradient_held", "parameters_held")
FITTED, RANDOM = "resnet50, fitted", "random weights"
OTHERS = ("resnet18", "densenet121", "mobilenet_v2", "tf_efficientnet_lite0", "vit_small_patch16_224")
SIZE = 224

Row = dict[str, Any]


class Case(NamedTuple):
    network: str
    model: nn.Module
    normalize: Any
    images: Tensor
    methods: tuple[str, ...] = ("tent",)


def cases() -> Iterator[Case]:
    both = ("tent", "slr")
    yield Case("bundled network", bundled_model(), (MEAN, STD), bundled_images()[0][:64], both)
    images, _ = load_images()
    for depth in (20, 56):
        yield Case(f"CIFAR-10 ResNet-{depth}", load_model(depth), NORMALIZE, images[:64], both)
    model, shifted = fitted_resnet()
    noise = torch.rand(32, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    for count, methods in ((16, both), (32, ("tent",))):
        yield Case(FITTED, model, (MEAN, STD), shifted[:count], methods)
        random = make_network("resnet50", SIZE)
        yield Case(f"resnet50, {RANDOM}", random, IMAGENET, noise[:count], methods)
    for name in OTHERS:
        yield Case(f"{name}, {RANDOM}", make_network(name, SIZE), IMAGENET, noise[:16])


def fitted_resnet() -> tuple[nn.Module, Tensor]:
    """One that has learnt something, begun as such networks are, and images with a shift for it."""
    images, labels = bundled_images()
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    larger = F.interpolate((images[1000:] - mean) / std, size=64, mode="bilinear")
    model = fitted("resnet50", larger, labels[1000:], zero_init_residual=True)
    shifted = corrupt(images[:32], "speckle_noise", 3)
    return model, F.interpolate(shifted, size=SIZE, mode="bilinear")


def rows(case: Case, method: str) -> Iterator[Row]:
    """One for each pair."""

    def run(way: Way, **options: Any) -> Step:
        release_memory()  # steps of other precisions leave holes that this one cannot use
        return step(case.model, case.images, way, method=method, normalize=case.normalize, **options)

    free = {OURS: run(OURS)}
    unwatched = run(OURS, watched=False)
    assert torch.equal(free[OURS].logits, unwatched.logits), "who watches a step has changed it"
    waiting = list(PAIRS.items())
    while waiting:
        pair, (one, other) = waiting.pop(0)
        for way in (one, other):
            free[way] = free.get(way) or run(way)
        found, right = free[one], free[other]
        held = run(other, held=found.sides)
        yield {
            "network": case.network,
            "batch": len(case.images),
            "method": method,
            "pair": pair,
            "logits": errors(found, right)["logits"],
            "gradient": errors(found, right)["gradient"],
            "gradient_held": errors(found, held)["gradient"],
            "parameters_held": errors(found, held)["parameters"],
            "gradient_largest": float(right.gradient.abs().max()),
            "units": sum(side.inside.numel() for side in found.sides),
            "units_turned": held.turned,
        }
        free = {way: made for way, made in free.items() if any(way in ways for _, ways in waiting)}


def failed(rows: list[Row]) -> Iterator[str]:
    """Where a fast step is farther from a plain one than it may be."""
    found = {(row["network"], row["batch"], row["method"], row["pair"]): row for row in rows}
    for (*cell, pair), row in found.items():
        for measure in MEASURES:
            own = found[(*cell, "plain, float64")][measure]
            allowed = 1e-9 if pair.startswith("ours in float64") else max(ALLOWED, 2 * own)
            if pair.startswith("ours") and not row[measure] <= allowed:
                yield f"{measure} of {cell}, {pair}: {row[measure]:.1e}, allowed {allowed:.1e}"


def main() -> None:
    warnings.simplefilter("ignore")
    protocol = {
        "step": "one online step by SGD, learning rate 1",
        "error": "the largest |difference| / max(1, |value|), of gradients over the largest |value|",
        "allowed": ALLOWED,
        "size": "32 pixels a side for the first three networks, 224 for the others",
        FITTED: "trained on half of the bundled images at 64 pixels, residual branches begun at zero",
        **machine(),
    }
    started = origin()  # what is committed meanwhile is not what was measured
    made: list[Row] = []
    for case in cases():
        for method in case.methods:
            for row in rows(case, method):
                made.append({k: float(f"{v:.2g}") if isinstance(v, float) else v for k, v in row.items()})
                print(made[-1], flush=True)
            write("agreement", protocol, made, started)
    wrong = list(failed(made))
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main()
