"""Convolutions whose weight is frozen: the gradient of their input needs the weight and no activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from acclimate.fast.layout import empty, layout_of
from acclimate.fast.weights import Weights

__all__ = ["convolution"]


def convolution(dimensions: int, weights: Weights) -> Callable[..., Any]:
    """``torch.conv1d``, ``conv2d`` or ``conv3d`` that keeps no input; where it cannot, NotImplemented."""

    def lean(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Any:
        frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
        if not frozen or x.ndim != dimensions + 2 or isinstance(padding, str):
            return NotImplemented
        # the autocast that this call bypasses
        x, weight = weights.for_autocast(x), weights.cast(weight)
        bias = None if bias is None else weights.cast(bias)
        if x.dtype != weight.dtype:
            return NotImplemented
        if layout_of(x) == torch.channels_last:
            weight = weights.laid_out(weight)
        stride, padding, dilation = (_each(value, dimensions) for value in (stride, padding, dilation))
        return _Convolution.apply(x, weight, bias, (stride, padding, dilation, groups), weights)  # type: ignore[no-untyped-call]

    return lean


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: tuple[Any, ...], weights: Weights
    ) -> Tensor:
        stride, padding, dilation, groups = geometry
        ctx.shape, ctx.form, ctx.geometry = x.shape, layout_of(x), geometry
        ctx.weight, ctx.weights = weight, weights
        if _is_product(x, weight, geometry):
            return _product(x, weight.flatten(1), bias)
        zeros = [0] * len(stride)
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        made = _gradient_of_input(gradient, ctx.shape, ctx.form, ctx.weight, ctx.geometry, ctx.weights)
        return made, None, None, None, None


def _gradient_of_input(
    gradient: Tensor,
    shape: torch.Size,
    form: torch.memory_format,
    weight: Tensor,
    geometry: tuple[Any, ...],
    weights: Weights,
) -> Tensor:
    if _is_product(gradient, weight, geometry):
        return _product(gradient, weight.flatten(1).T, None)
    stride, padding, dilation, groups = geometry
    depthwise = groups > 1 and weight.shape[1] == 1 and groups == len(weight)
    on_cpu = gradient.device.type == "cpu"
    kernel = weight.shape[2:]
    if depthwise and on_cpu and set(stride) == set(dilation) == {1}:
        # the same correlation with the flipped kernel: oneDNN's forward passes are its best
        rest = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
        if min(rest) >= 0:
            return torch.convolution(
                gradient,
                weights.flipped(weight),
                None,
                stride,
                rest,
                dilation,
                False,
                [0] * len(rest),
                groups,
            )
    if depthwise and on_cpu and gradient.dtype != torch.float32 and gradient.dtype != torch.float64:
        # oneDNN has no fast kernel for this one in low precision: it took fifty times longer
        wide = _gradient_of_input(gradient.float(), shape, form, weight.float(), geometry, weights)
        return wide.to(gradient.dtype)
    like = empty(shape, form, gradient)
    zeros = [0] * len(stride)
    made: Tensor = torch.ops.aten.convolution_backward(
        gradient, like, weight, None, stride, padding, dilation, False, zeros, groups, (True, False, False)
    )[0]
    return made


def _is_product(x: Tensor, weight: Tensor, geometry: tuple[Any, ...]) -> bool:
    """Whether a convolution of single pixels is faster as a product of matrices: in bfloat16, by a third."""
    stride, padding, _, groups = geometry
    single = groups == 1 and weight.shape[2:].numel() == 1 and max(*stride, 1) == 1 and max(*padding, 0) == 0
    return (
        single
        and x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.ndim == 4
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def _each(value: int | Sequence[int], dimensions: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * dimensions if len(given) == 1 else given
