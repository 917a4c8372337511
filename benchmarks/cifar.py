"""CIFAR-10 images, and the ResNets that go with them.

Looks for the data where ACCLIMATE_DATA says, or beside the project in `../shared/data`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from acclimate import corrupt
from acclimate.demo.network import SmallResNet

DATA = Path(os.environ.get("ACCLIMATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
IMAGES = "CIFAR-10 test set (lossless)"
"""For the protocol of a record; earlier ones were measured on "CIFAR-10 test set (JPEG copies)"."""


def load_model(depth: int = 20) -> SmallResNet:
    model = SmallResNet(blocks=(depth - 2) // 6)
    model.load_state_dict(load_file(DATA / f"cifar10_resnet{depth}.safetensors"))
    return model.eval()


def load_images() -> tuple[Tensor, Tensor]:
    """Pixels (10000, 3, 32, 32) in [0, 1] and labels."""
    with np.load(DATA / "cifar10_test.npz") as arrays:
        images, labels = (arrays[name] for name in sorted(arrays.files, key=lambda n: -arrays[n].ndim))
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(
        labels.astype(np.int64)
    )


def corrupted(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """As published: made from and of bytes."""
    pixels = (images * 255).round().to(torch.uint8)
    return corrupt(pixels, name, severity, seed=seed).float() / 255
