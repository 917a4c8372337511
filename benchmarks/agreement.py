"""How far logits and gradients of a step lie from float64: of the plain loop, and of the adapter as it comes.

Two computations in float32 cannot agree better than either agrees with the exact result, and the plain loop
is the farther of the two on trained networks. So all three distances are shown.
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
            rows.append(row)
            print(row, flush=True)
    write(
        "agreement", {"what": "one online step by SGD; distances relative to the length of the vector"}, rows
    )


if __name__ == "__main__":
    main()
