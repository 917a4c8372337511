"""3×3 convolutions to or from the few channels of an image, by `narrow.c`, in float32."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

import torch
from torch import Tensor

from acclimate.fast.compiling import compiled
from acclimate.fast.layout import empty

__all__ = ["Narrow", "narrow"]

_PLACES: Final = 9
_MOST: Final = 4
"""Channels that are few."""


class Narrow:
    """Calls what `narrow.c` has with tensors that lie pixel by pixel; stride and padding are 1."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_long
        library.columns.argtypes, library.columns.restype = (), number
        library.convolve.argtypes = (pointer, *[number] * 4, *[pointer] * 3, number)
        library.products.argtypes = (pointer, number, pointer, *[number] * 4, pointer)
        self._library, self._columns = library, int(library.columns())

    def takes(self, many: int, few: int) -> bool:
        """Whether there are kernels for so many channels on one side and on the other."""
        return 0 < few <= _MOST and many > 0 and many % self._columns == 0

    def convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``torch.conv2d`` to few channels."""
        images, ins, height, width = x.shape
        plain = weight.contiguous()
        made = empty(torch.Size((images, len(weight), height, width)), torch.channels_last, x)
        shift = None if bias is None else bias.data_ptr()
        sizes, ends = (images, height, width, ins), (made.data_ptr(), len(weight))
        if self._library.convolve(x.data_ptr(), *sizes, plain.data_ptr(), shift, *ends):
            raise MemoryError("there is no memory left for the rows of a convolution")
        return made

    def products(self, many: Tensor, less: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over all pixels: (3, 3, few, many), of many channels times those of few channels at each place
        around; and of the many channels.
        """
        images, channels, height, width = many.shape
        few = less.shape[1]
        made = many.new_empty(_PLACES * few + 1, channels)
        sizes = (images, height, width)
        if self._library.products(many.data_ptr(), channels, less.data_ptr(), few, *sizes, made.data_ptr()):
            raise MemoryError("there is no memory left for the sums of a convolution")
        return made[:-1].view(3, 3, few, channels), made[-1]


@functools.cache
def narrow() -> Narrow | None:
    """Compiled on the first call on this machine; None without a compiler that can."""
    library = compiled("narrow.c")
    return None if library is None else Narrow(library)
