"""How stable predictions are when images change a little: what can be known of accuracy without a label.

A second view of every image, mirrored and moved by a few pixels, shows the same thing. Where a network is
wrong, it tends to say something else there, so that the share of images on which it agrees with itself is
near its accuracy; unless it says the same of all images, which the evenness of its predictions shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Views", "second_view", "temperature_for"]

_MOVED = 32  # a view is moved by this part of its side
_HOTTEST = 100.0
_HALVINGS = 60  # of the interval in which a temperature is looked for


def second_view(images: Tensor) -> Tensor:
    """Images (N, C, H, W) mirrored and moved a little, with their edges drawn out; others as they are.

    >>> second_view(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).flatten().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    if images.ndim != 4:
        return images
    down, right = (max(1, round(side / _MOVED)) for side in images.shape[2:])
    moved = F.pad(images.flip(3), (right, 0, down, 0), mode="replicate")
    return moved[..., : images.shape[2], : images.shape[3]]


@dataclass(frozen=True)
class Views:
    """Logits ``(N, classes)`` of images and of their second views."""

    logits: Tensor
    others: Tensor

    @property
    def stable(self) -> Tensor:
        """Which images have one prediction in both views."""
        return self.logits.argmax(1).eq(self.others.argmax(1))

    @property
    def agreement(self) -> float:
        """The share of them."""
        return self.stable.double().mean().item()

    def evenness(self, prior: Tensor | None = None) -> float:
        """Entropy of the predicted classes, as a part of what the prior and so many images can have."""
        counts = self.logits.argmax(1).bincount(minlength=self.logits.shape[1]).double()
        expected = torch.ones_like(counts) if prior is None else prior.double().cpu()
        possible = min(_entropy(expected), math.log(len(self.logits)))
        return min(1.0, _entropy(counts) / possible) if possible > 0 else 1.0

    def confidence(self, where: Tensor) -> float | None:
        """Mean confidence on some of the images."""
        sure = self.logits.double().softmax(1).amax(1)[where]
        return sure.mean().item() if len(sure) else None


def temperature_for(logits: Tensor, confidence: float) -> float:
    """What to divide logits by, so that their mean confidence is this; never less than 1.

    Networks that adapt by being confident are too confident: nothing here makes them more so.

    >>> round(temperature_for(torch.tensor([[math.log(9.0), 0.0]]), 0.75), 4)
    2.0
    """
    wide = logits.double()

    def mean(temperature: float) -> float:
        return (wide / temperature).softmax(1).amax(1).mean().item()

    low, high = 1.0, _HOTTEST
    if mean(low) <= confidence:
        return low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean(middle) > confidence else (low, middle)
    return math.sqrt(low * high)


def _entropy(weights: Tensor) -> float:
    shares = weights / weights.sum()
    return float(torch.special.entr(shares).sum())
