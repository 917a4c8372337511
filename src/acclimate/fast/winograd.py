"""3×3 convolutions with 2.25 times fewer products: Winograd's minimal filtering, by `winograd.c`.

In float32 only: what low precision loses in the sums of inputs that are multiplied would be visible.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Final

import torch
from torch import Tensor

from acclimate.fast.compiling import compiled
from acclimate.fast.layout import empty
from acclimate.fast.packing import Geometry

__all__ = ["Winograd", "turned_padding", "winograd"]

_POINTS: Final = 16
"""Products of a tile of two by two outputs."""
_FEW_TILES: Final = 16
"""Of them, all images together: going through the weights takes longer than multiplying with them."""
_COVERED: Final = 0.6
"""The part of the tiles that must be outputs: beyond an odd edge they are computed for nothing."""


class Winograd:
    """Calls what `winograd.c` has with tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_long
        library.columns.argtypes, library.columns.restype = (), number
        library.pack.argtypes = (pointer, number, number, pointer)
        library.convolve.argtypes = (pointer, *[number] * 4, *[pointer] * 3, *[number] * 3)
        library.gradients.argtypes = (pointer, *[number] * 4, pointer, *[number] * 3, pointer, pointer)
        self._library, self._columns = library, int(library.columns())

    def pays(self, weight: Tensor, geometry: Geometry, x: Tensor, *, turned: bool = False) -> bool:
        """Whether a convolution of what lies pixel by pixel is of the kind, and faster in this way.

        If it is turned, from outputs to inputs.
        """
        if weight.shape[2:] != (3, 3) or geometry[0] != (1, 1) or geometry[2:] != ((1, 1), 1):
            return False
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            return False
        if not x.is_cpu or not weight.is_cpu:
            return False
        outs, ins = weight.shape[:2]
        if x.shape[1] != (outs if turned else ins) or not self.takes(outs, ins):
            return False
        if not all(0 <= p <= 2 for p in geometry.padding):
            return False
        high, wide = _size(x, turned_padding(geometry) if turned else geometry.padding)
        if min(high, wide) < 1:  # torch has an error to tell
            return False
        each = -(-high // 2) * -(-wide // 2)
        return len(x) * each >= _FEW_TILES and high * wide >= 4 * _COVERED * each

    def takes(self, outs: int, ins: int) -> bool:
        """Whether so many channels fill registers."""
        return min(outs, ins) > 0 and outs % self._columns == ins % self._columns == 0

    def pack(self, weight: Tensor) -> Tensor:
        """A weight as `convolved` wants it, for any input."""
        plain = weight.contiguous()
        outs, ins = weight.shape[:2]
        made = weight.new_empty(_POINTS * outs * ins)
        self._library.pack(plain.data_ptr(), outs, ins, made.data_ptr())
        return made

    def convolved(
        self, x: Tensor, packed: Tensor, bias: Tensor | None, outs: int, padding: tuple[int, ...]
    ) -> Tensor:
        """``torch.conv2d`` of images that lie pixel by pixel."""
        images, ins, height, width = x.shape
        made = empty(torch.Size((images, outs, *_size(x, padding))), torch.channels_last, x)
        shift = None if bias is None else bias.data_ptr()
        sizes, ends = (images, height, width, ins), (made.data_ptr(), outs, *padding)
        if self._library.convolve(x.data_ptr(), *sizes, packed.data_ptr(), shift, *ends):
            raise MemoryError("there is no memory left for the tiles of a convolution")
        return made

    def gradients(self, x: Tensor, gradient: Tensor, padding: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Those of the weight and the bias with which ``x`` was convolved."""
        images, ins, height, width = x.shape
        outs = gradient.shape[1]
        in_weight, in_bias = x.new_empty(outs, ins, 3, 3), x.new_empty(outs)
        sizes, ends = (images, height, width, ins), (gradient.data_ptr(), outs, *padding)
        if self._library.gradients(x.data_ptr(), *sizes, *ends, in_weight.data_ptr(), in_bias.data_ptr()):
            raise MemoryError("there is no memory left for the tiles of a convolution")
        return in_weight, in_bias


def turned_padding(geometry: Geometry) -> tuple[int, ...]:
    """Of the convolution that goes back from outputs to inputs."""
    return tuple(2 - p for p in geometry.padding)


def _size(x: Tensor, padding: tuple[int, ...]) -> tuple[int, int]:
    """Of the output."""
    return x.shape[2] + 2 * padding[0] - 2, x.shape[3] + 2 * padding[1] - 2


@functools.cache
def winograd() -> Winograd | None:
    """Compiled on the first call on this machine; None without a compiler that can."""
    library = compiled("winograd.c")
    return None if library is None else Winograd(library)
