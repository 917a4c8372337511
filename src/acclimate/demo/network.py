"""The small residual network of He et al. for 32 x 32 images: what the demo adapts.

The names of its layers are those of the widespread CIFAR-10 checkpoints, which it loads as well.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["SmallResNet", "cifar_resnet20", "cifar_resnet56"]


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.missing = (channels - channels_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        # The shortcut subsamples and fills the missing channels with zeros, half on each side.
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(out + F.pad(shortcut, (0, 0, 0, 0, self.missing, self.missing)))


class SmallResNet(nn.Module):
    """A residual network of ``6 * blocks + 2`` layers with 16, 32 and 64 channels.

    >>> import torch
    >>> SmallResNet(blocks=2, num_classes=10)(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 10])
    """

    pretrained_cfg: dict[str, Any]
    """What weights say of the input they were trained on, where there are some, as timm's networks do."""

    def __init__(self, blocks: int, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.linear(out.mean(dim=(2, 3)))
        return logits


def _stage(channels_in: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = _Block(channels_in, channels, stride)
    return nn.Sequential(first, *(_Block(channels, channels, 1) for _ in range(blocks - 1)))


def cifar_resnet20() -> SmallResNet:
    """For CIFAR-10's checkpoints of 20 layers; without weights."""
    return SmallResNet(blocks=3)


def cifar_resnet56() -> SmallResNet:
    """For CIFAR-10's checkpoints of 56 layers; without weights."""
    return SmallResNet(blocks=9)
