"""The gradient of images through a strided convolution, as a convolution without stride.

An image has few channels, for which oneDNN's transposed convolutions are slow: ResNet's first layer takes
three times as long backwards as forwards. Of the pixels of the image, those at the same place within a
stride come from the same elements of the kernel: so each place is a channel of a convolution of the gradient,
and the channels are then laid out as pixels.

With stride s, padding p and place r, where r + p = s base + u, pixel s q + r is the sum over t of
gradient[q + base - t] kernel[u + s t].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.fast.packing import Geometry

__all__ = ["Subpixels"]

_FEW = 4  # channels of an image


class _Side(NamedTuple):
    """One dimension of it."""

    padding: int
    """Of the gradient, at both ends."""
    start: int
    """Where what is wanted begins in what the convolution gives."""
    strides: int
    """How many there are in the image."""
    elements: list[list[int]]
    """Of the kernel, for each place and each element of the new one; where there is none, its size."""


class Subpixels:
    """How the gradient of images of this size is made from gradients of that size."""

    def __init__(
        self, geometry: Geometry, kernel: Sequence[int], made: Sequence[int], size: Sequence[int]
    ) -> None:
        self._stride, self._size = geometry.stride[0], tuple(size)
        sides = zip(geometry.stride, geometry.padding, kernel, made, size, strict=True)
        self._sides = [_side(*side) for side in sides]
        padding = tuple(side.padding for side in self._sides)
        self.geometry = Geometry((1, 1), padding, (1, 1), 1)

    @staticmethod
    def pay(weight: Tensor, geometry: Geometry) -> bool:
        """Whether they do."""
        stride = geometry.stride
        few = weight.ndim == 4 and weight.shape[1] <= _FEW and geometry.groups == 1
        return few and len(set(stride)) == 1 and stride[0] > 1 and max(geometry.dilation) == 1

    def weight(self, weight: Tensor) -> Tensor:
        """That of the convolution of the gradient."""
        rows, columns = (torch.tensor(side.elements, device=weight.device) for side in self._sides)
        padded = F.pad(weight, (0, 1, 0, 1))
        parts = padded[:, :, rows][..., columns]  # outputs, inputs, then place and element of both sides
        turned = parts.permute(1, 2, 4, 0, 3, 5)
        return turned.reshape(-1, len(weight), rows.shape[1], columns.shape[1])

    def laid_out(self, places: Tensor) -> Tensor:
        """The gradient of the images, from what the convolution gave."""
        for dimension, side in enumerate(self._sides, start=2):
            places = places.narrow(dimension, side.start, side.strides)
        pixels = F.pixel_shuffle(places, self._stride)[..., : self._size[0], : self._size[1]]
        return pixels.contiguous(memory_format=torch.channels_last)


def _side(stride: int, padding: int, kernel: int, made: int, size: int) -> _Side:
    offsets: list[dict[int, int]] = []  # for each place: from where in the gradient to which of the kernel
    for place in range(stride):
        base, first = divmod(place + padding, stride)
        taps = range(first, kernel, stride)
        offsets.append({base - t: element for t, element in enumerate(taps)})
    reached = [offset for of_place in offsets for offset in of_place]
    low, high = min(reached), max(reached)
    count = -(-size // stride)
    more = max(-low, count - made + high, 0)
    elements = [[taps.get(offset, kernel) for offset in range(low, high + 1)] for taps in offsets]
    return _Side(more, more + low, count, elements)
