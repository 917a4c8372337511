"""How far logits and gradients of a step lie from float64: of the plain loop, and of the adapter as it comes.

Two computations in float32 cannot agree better than either agrees with the exact result. So all three
distances are shown, and how far the exact gradient itself moves if the images do by as much as float32
rounds: where a unit is at the kink of its ReLU, it jumps.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from cifar import NORMALIZE, load_images, load_model
from records import write
from speed_worker import IMAGENET, make_network
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

METHODS = ("tent", "slr")
MOVES = 8
Case = tuple[str, nn.Module, Any, Tensor]


def cases() -> list[Case]:
    images, _ = load_images()
    large = torch.rand(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return [
        ("bundled network", bundled_model(), (MEAN, STD), bundled_images()[0][:64]),
        ("CIFAR-10 ResNet-20", load_model(20), NORMALIZE, images[:64]),
        ("CIFAR-10 ResNet-56", load_model(56), NORMALIZE, images[:64]),
        ("ResNet-50, random weights", make_network("resnet50", 224), IMAGENET, large),
    ]


def step(case: Case, method: str, dtype: torch.dtype, *, fast: bool) -> tuple[Tensor, Tensor]:
    """Logits and gradient of a first step by SGD."""
    _, model, normalize, images = case
    adapter = Adapter(model.to(dtype), method, normalize=normalize, optimizer="sgd", fast=fast)
    logits = adapter(images.to(dtype))
    gradient = [p.grad.flatten() for p in adapter._engine.parameters.values() if p.grad is not None]
    return logits.double(), torch.cat(gradient).double()


def moved(case: Case, method: str, exact: Tensor) -> float:
    """The farthest that the exact gradient moves when the images do, by one part in ten million."""
    name, model, normalize, images = case
    generator = torch.Generator().manual_seed(0)
    wide = images.double()
    shifts = (torch.randn(wide.shape, generator=generator, dtype=wide.dtype) for _ in range(MOVES))
    cases = ((name, model, normalize, wide * (1 + 1e-7 * shift)) for shift in shifts)
    return max(distance(step(case, method, torch.float64, fast=False)[1], exact) for case in cases)


def distance(one: Tensor, other: Tensor) -> float:
    """Relative to the length of the other."""
    return float(f"{float((one - other).norm() / other.norm()):.1e}")


def main() -> None:
    warnings.simplefilter("ignore")
    rows = []
    for case in cases():
        for method in METHODS:
            exact = step(case, method, torch.float64, fast=False)
            exact_fast = step(case, method, torch.float64, fast=True)
            plain = step(case, method, torch.float32, fast=False)
            ours = step(case, method, torch.float32, fast=True)
            row: dict[str, Any] = {"network": case[0], "method": method}
            for i, what in enumerate(("logits", "gradient")):
                row |= {
                    f"{what}: fast and plain": distance(ours[i], plain[i]),
                    f"{what}: plain from float64": distance(plain[i], exact[i]),
                    f"{what}: fast from float64": distance(ours[i], exact[i]),
                    f"{what}: both in float64": distance(exact_fast[i], exact[i]),
                }
            row["gradient: exact, images moved by 1e-7"] = moved(case, method, exact[1])
            rows.append(row)
            print(row, flush=True)
    write(
        "agreement", {"what": "one online step by SGD; distances relative to the length of the vector"}, rows
    )


if __name__ == "__main__":
    main()
