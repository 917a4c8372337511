"""Pooling that keeps where a maximum was, and not the image it was found in.

By the kernels of `pooling.c`, where they can be had, that is a byte for each output: its place in its window.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.fast.compiling import compiled
from acclimate.fast.layout import empty, layout_of
from acclimate.fast.native import Kernels
from acclimate.fast.once import once_differentiable

__all__ = ["Pools"]

_DEFINED: Final = {torch.float32: (), torch.bfloat16: ("-DBF16",)}
"""What the source is compiled with for each type of its elements."""
_PLACES: Final = 256
"""That a byte can tell apart."""


class Pools:
    """``F.max_pool2d`` and ``F.avg_pool2d``; NotImplemented where torch's own will do."""

    def __init__(self, *, native: bool) -> None:
        self._kernels = _kernels() if native else None

    def max_pool(
        self,
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """``F.max_pool2d``."""
        if not x.requires_grad or x.ndim != 4 or return_indices or x.shape[1:].numel() >= 2**31:
            return NotImplemented
        stride = kernel_size if stride is None or stride == [] else stride
        geometry: list[Any] = [*(_pair(v) for v in (kernel_size, stride, padding, dilation)), ceil_mode]
        shape = _shape(x, *geometry) if self._takes(x) else None
        if shape is not None:
            return _PlacedMaxPool.apply(x, shape, self._kernels)  # type: ignore[no-untyped-call]
        return _MaxPool.apply(x, geometry)  # type: ignore[no-untyped-call]

    def average_pool(
        self,
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        """``F.avg_pool2d``."""
        if not x.requires_grad or x.ndim != 4:
            return NotImplemented
        stride = kernel_size if stride is None or stride == [] else stride
        kernel, step, edge = (_pair(v) for v in (kernel_size, stride, padding))
        is_simple = kernel == step and edge == [0, 0] and not ceil_mode and divisor_override is None
        shape = _shape(x, kernel, step, edge, [1, 1], False) if is_simple and self._takes(x) else None
        if shape is not None:
            return _MeanPool.apply(x, shape, self._kernels)  # type: ignore[no-untyped-call]
        geometry = [kernel, step, edge, ceil_mode, count_include_pad, divisor_override]
        return _AveragePool.apply(x, geometry)  # type: ignore[no-untyped-call]

    def _takes(self, x: Tensor) -> bool:
        return self._kernels is not None and Kernels.take(x)


class _Shape(ctypes.Structure):
    """As `pooling.c` has it."""

    _fields_ = tuple(
        (name, ctypes.c_long)
        for name in (
            *("height", "width", "channels", "high", "wide"),
            *("tall", "broad", "down", "across", "up", "left"),
        )
    )

    def room_before(self, like: Tensor) -> Tensor:
        """Memory for what is pooled."""
        return empty(
            torch.Size((len(like), self.channels, self.height, self.width)), torch.channels_last, like
        )

    def room_behind(self, like: Tensor) -> Tensor:
        """Memory for what comes of it."""
        return empty(torch.Size((len(like), self.channels, self.high, self.wide)), torch.channels_last, like)


class _Kernels:
    """Calls what `pooling.c` has with tensors, of which it trusts shape and layout."""

    def __init__(self, libraries: Mapping[torch.dtype, ctypes.CDLL]) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_long
        for library in libraries.values():
            library.pooled.argtypes = (pointer, number, _Shape, pointer, pointer)
            library.unpooled.argtypes = (pointer, pointer, number, _Shape, pointer)
            library.averaged.argtypes = library.spread.argtypes = (pointer, number, _Shape, pointer)
        self._libraries = libraries

    def pooled(self, x: Tensor, shape: _Shape) -> tuple[Tensor, Tensor]:
        """The largest of each window, and their places within it."""
        made = shape.room_behind(x)
        places = torch.empty(made.numel(), dtype=torch.uint8, device=x.device)
        self._libraries[x.dtype].pooled(x.data_ptr(), len(x), shape, made.data_ptr(), places.data_ptr())
        return made, places

    def unpooled(self, gradient: Tensor, places: Tensor, shape: _Shape) -> Tensor:
        """The gradient of what was pooled."""
        made, library = shape.room_before(gradient), self._libraries[gradient.dtype]
        library.unpooled(gradient.data_ptr(), places.data_ptr(), len(gradient), shape, made.data_ptr())
        return made

    def averaged(self, x: Tensor, shape: _Shape) -> Tensor:
        """The mean of each window."""
        made = shape.room_behind(x)
        self._libraries[x.dtype].averaged(x.data_ptr(), len(x), shape, made.data_ptr())
        return made

    def spread(self, gradient: Tensor, shape: _Shape) -> Tensor:
        """The gradient of what was averaged."""
        made = shape.room_before(gradient)
        self._libraries[gradient.dtype].spread(gradient.data_ptr(), len(gradient), shape, made.data_ptr())
        return made


@functools.cache
def _kernels() -> _Kernels | None:
    libraries = {dtype: compiled("pooling.c", *options) for dtype, options in _DEFINED.items()}
    made = {dtype: library for dtype, library in libraries.items() if library is not None}
    return _Kernels(made) if len(made) == len(libraries) else None


def _shape(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool
) -> _Shape | None:
    """None where the kernels cannot, or torch has an error to tell."""
    is_plain = len(kernel) == len(stride) == len(padding) == 2 and dilation == [1, 1]
    if not is_plain or min(*kernel, *stride) < 1 or kernel[0] * kernel[1] > _PLACES:
        return None
    if any(not 0 <= p <= k // 2 for p, k in zip(padding, kernel, strict=True)):
        return None
    sides = zip(x.shape[2:], kernel, stride, padding, strict=True)
    size = [_length(*side, ceil=ceil) for side in sides]
    return _Shape(*x.shape[2:], x.shape[1], *size, *kernel, *stride, *padding) if min(size) > 0 else None


def _length(whole: int, kernel: int, stride: int, padding: int, *, ceil: bool) -> int:
    """Of a side of what comes out: a last window that begins beyond the image is none."""
    steps = whole + 2 * padding - kernel + (stride - 1 if ceil else 0)
    length = steps // stride + 1
    return length - 1 if ceil and (length - 1) * stride >= whole + padding else length


class _PlacedMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: _Shape, kernels: _Kernels) -> Tensor:
        made, places = kernels.pooled(x, shape)
        ctx.shape, ctx.kernels = shape, kernels
        ctx.save_for_backward(places)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        laid = gradient.contiguous(memory_format=torch.channels_last)
        return ctx.kernels.unpooled(laid, places, ctx.shape), None, None


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: list[Any]) -> Tensor:
        made, where = torch.ops.aten.max_pool2d_with_indices(x, *geometry)
        ctx.shape, ctx.form, ctx.geometry = x.shape, layout_of(x), geometry
        ctx.save_for_backward(where.int())  # a position in one channel of one image needs no more
        return made  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (where,) = ctx.saved_tensors
        x = empty(ctx.shape, ctx.form, gradient)
        made = torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *ctx.geometry, where.long())
        return made, None


class _MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: _Shape, kernels: _Kernels) -> Tensor:
        ctx.shape, ctx.kernels = shape, kernels
        return kernels.averaged(x, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        laid = gradient.contiguous(memory_format=torch.channels_last)
        return ctx.kernels.spread(laid, ctx.shape), None, None


class _AveragePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: list[Any]) -> Tensor:
        ctx.shape, ctx.form, ctx.geometry = x.shape, layout_of(x), geometry
        return F.avg_pool2d(x, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return torch.ops.aten.avg_pool2d_backward(
            gradient, empty(ctx.shape, ctx.form, gradient), *ctx.geometry
        ), None


def _pair(value: Any) -> list[int]:
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    return given * 2 if len(given) == 1 else given
