"""CIFAR-10 images, the ResNets that go with them, and two validation corruptions.

Looks for the data where ACCLIMATE_DATA says, or beside the project in `../shared/data`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from acclimate.demo.network import SmallResNet

DATA = Path(os.environ.get("ACCLIMATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
    """A validation corruption with the published parameters, rounded to bytes as published."""
    parameters = json.loads((DATA / "corruption_parameters.json").read_text())["cifar_c_32"]
    strength = parameters[name][severity - 1][0]
    if name == "speckle_noise":
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
        shifted = images + images * noise * strength
    elif name == "gaussian_blur":
        shifted = _blurred(images, strength)
    else:
        raise ValueError(f"only speckle_noise and gaussian_blur are made here, got {name}")
    return (shifted.clamp(0, 1) * 255).floor() / 255


def _blurred(images: Tensor, sigma: float) -> Tensor:
    radius = int(4 * sigma + 0.5)
    x = torch.arange(-radius, radius + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (x / sigma) ** 2)
    kernel = kernel / kernel.sum()
    out = F.pad(images, (radius,) * 4, mode="replicate").flatten(0, 1).unsqueeze(1)
    out = F.conv2d(F.conv2d(out, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
    return out.view_as(images)
