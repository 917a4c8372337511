"""Pooling that keeps where a maximum was, and not the image it was found in."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.fast.layout import empty, layout_of
from acclimate.fast.once import once_differentiable

__all__ = ["average_pool", "max_pool"]


def max_pool(
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
    geometry = [*(_pair(v) for v in (kernel_size, stride, padding, dilation)), ceil_mode]
    return _MaxPool.apply(x, geometry)  # type: ignore[no-untyped-call]


def average_pool(
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
    geometry = [
        *(_pair(v) for v in (kernel_size, stride, padding)),
        ceil_mode,
        count_include_pad,
        divisor_override,
    ]
    return _AveragePool.apply(x, geometry)  # type: ignore[no-untyped-call]


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
    given = [value] if isinstance(value, int) else list(value)
    return given * 2 if len(given) == 1 else given
