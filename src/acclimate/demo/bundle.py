"""What the package brings along: a small network trained on Fashion-MNIST, and 2,000 of its test images."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from acclimate.demo.network import SmallResNet
from acclimate.models.heads import attach_head

__all__ = ["CLASSES", "MEAN", "STD", "bundled_images", "bundled_model", "bundled_shot_model"]

CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
MEAN, STD = (0.286,) * 3, (0.353,) * 3
"""What the network's input is normalised with; `scripts/train_demo_model.py` trained it."""


def bundled_model() -> SmallResNet:
    """The network, 93.4% right on all 10,000 test images of Fashion-MNIST."""
    return _loaded(SmallResNet(blocks=2), "fashion_resnet.safetensors")


def bundled_shot_model() -> SmallResNet:
    """The network with SHOT's head, which `scripts/train_demo_head.py` trained on training images."""
    model = SmallResNet(blocks=2)
    attach_head(model, classes=len(CLASSES))
    return _loaded(model, "fashion_resnet_shot.safetensors")


def _loaded(model: SmallResNet, name: str) -> SmallResNet:
    with (
        resources.as_file(resources.files(__package__) / name) as path,
        safe_open(path, framework="pt") as file,
    ):
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - not a dict
    model.pretrained_cfg = {"mean": MEAN, "std": STD, "input_size": (3, 32, 32), "resize": 32}
    return model.eval()


def bundled_images() -> tuple[Tensor, Tensor]:
    """Pixels ``(2000, 3, 32, 32)`` in [0, 1] and labels, 200 images of each class."""
    with (
        resources.as_file(resources.files(__package__) / "fashion_images.npz") as path,
        np.load(path) as arrays,
    ):
        grey = torch.from_numpy(arrays["images"]).float() / 255
        labels = torch.from_numpy(arrays["labels"].astype(np.int64))
    return F.pad(grey, (2, 2, 2, 2)).unsqueeze(1).repeat(1, 3, 1, 1), labels
