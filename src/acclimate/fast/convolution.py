"""Convolutions whose weight is frozen: the gradient of their input needs the weight and no activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from acclimate.fast.layout import empty, is_by_pixel, layout_of
from acclimate.fast.once import once_differentiable
from acclimate.fast.packing import Geometry, convolved, transposed
from acclimate.fast.subpixels import Subpixels
from acclimate.fast.through_torch import convolved_by_torch, transposed_by_torch
from acclimate.fast.trained import Trained
from acclimate.fast.weights import Weights, is_packable

__all__ = ["convolution"]


def convolution(dimensions: int, weights: Weights, trained: Trained | None = None) -> Callable[..., Any]:
    """``torch.conv1d``, ``conv2d`` or ``conv3d`` that keeps no input; where it cannot, NotImplemented.

    If it is put off, which is for pointwise ones of what lies pixel by pixel, nothing is written yet.
    What is ``trained`` is for weights that are not frozen.
    """

    def lean(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        *,
        is_put_off: bool = False,
    ) -> Any:
        if padding == "valid":
            padding = 0
        frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
        if (not frozen and trained is None) or x.ndim != dimensions + 2 or isinstance(padding, str):
            return NotImplemented
        sides = _each(stride, dimensions), _each(padding, dimensions), _each(dilation, dimensions)
        geometry = Geometry(*sides, groups)
        if not frozen:
            assert trained is not None
            return trained.convolution(x, weight, bias, geometry)
        # the autocast that this call bypasses
        x, dtype = weights.for_autocast(x), weights.precision_of(weight)
        if x.dtype != dtype or (bias is not None and weights.precision_of(bias) != dtype):
            return NotImplemented
        bias = None if bias is None else weights.cast(bias, dtype)
        return _Convolution.apply(x, weight, bias, geometry, weights, is_put_off)  # type: ignore[no-untyped-call]

    return lean


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        weights: Weights,
        is_put_off: bool,
    ) -> Tensor:
        ctx.shape, ctx.form, ctx.geometry = x.shape, layout_of(x), geometry
        ctx.weight, ctx.weights = weight, weights
        if is_put_off:
            return empty(torch.Size((len(x), len(weight), *x.shape[2:])), torch.channels_last, x)
        if x.dtype != torch.float64 and x.is_cpu and _fails(x, weight, geometry):
            ctx.form = None
            return convolved_by_torch(
                _in_planes(x), _in_planes(weights.cast(weight, x.dtype)), bias, geometry
            )
        if ctx.form == torch.channels_last and is_packable(bias, weight) and (bias is None or bias.is_cpu):
            made = weights.convolved_by_winograd(x, weight, bias, geometry)
            if made is not None:
                return made
        is_packed = ctx.form == torch.channels_last and _is_packable(weight, geometry)
        packed = weights.packed(weight, geometry, x) if is_packed and is_packable(bias, weight) else None
        if packed is not None:
            return convolved(x, packed, bias, geometry)
        if x.is_contiguous() and not is_by_pixel(x):  # of one pixel, or one channel, it may lie in both ways
            ctx.form = torch.contiguous_format
        return convolved_by_torch(x, weights.stock(weight, x.dtype, ctx.form), bias, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        made = _gradient_of_input(gradient, ctx.shape, ctx.form, ctx.weight, ctx.geometry, ctx.weights)
        return made, None, None, None, None, None


def _gradient_of_input(
    gradient: Tensor,
    shape: torch.Size,
    form: torch.memory_format | None,
    weight: Tensor,
    geometry: Geometry,
    weights: Weights,
) -> Tensor:
    if form is None:
        plain = _in_planes(weights.cast(weight, gradient.dtype))
        return transposed_by_torch(_in_planes(gradient), shape, torch.contiguous_format, plain, geometry)
    on_cpu, dtype = gradient.is_cpu, gradient.dtype
    depthwise = _is_depthwise(weight, geometry)
    if depthwise and on_cpu and max(*geometry.stride, *geometry.dilation) == 1:
        # the same correlation with the flipped kernel: oneDNN's forward passes are its best
        rest = tuple(k - 1 - p for k, p in zip(weight.shape[2:], geometry.padding, strict=True))
        if min(rest) >= 0:
            turned = weights.flipped(weights.cast(weight, dtype))
            return convolved_by_torch(gradient, turned, None, geometry._replace(padding=rest))
    if depthwise and on_cpu and dtype not in (torch.float32, torch.float64):
        # oneDNN has no fast kernel for this one in low precision: it took fifty times longer
        wide = _gradient_of_input(gradient.float(), shape, form, weight, geometry, weights)
        return wide.to(dtype)
    if form == torch.channels_last and _is_packable(weight, geometry):
        gradient = gradient.contiguous(memory_format=form)
        made = weights.transposed_by_winograd(gradient, weight, geometry)
        if made is not None:
            return made
        if Subpixels.pay(weight, geometry):
            found = weights.packed_subpixels(weight, geometry, gradient, shape[2:])
            if found is not None:
                through, turned = found
                return through.laid_out(convolved(gradient, turned, None, through.geometry))
        packed = weights.packed_transposed(weight, geometry, gradient, shape[2:])
        if packed is not None:
            return transposed(gradient, packed, geometry, weight.shape[2:], shape[2:])
    return transposed_by_torch(gradient, shape, form, weights.stock(weight, dtype, form), geometry)


def _is_depthwise(weight: Tensor, geometry: Geometry) -> bool:
    return geometry.groups > 1 and weight.shape[:2] == (geometry.groups, 1)


def _is_packable(weight: Tensor, geometry: Geometry) -> bool:
    """Depthwise ones gain nothing, and one output for each group has no transposed form."""
    return geometry.groups == 1 or geometry.groups != len(weight)


def _fails(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    """Whether oneDNN may, pixel by pixel, as torch's own layers do then (2.13).

    It crashes on a dilated convolution, some of whose outputs see padding only. Those of one channel, with a
    stride, to one column come out wrong.
    """
    is_dilated, is_single = max(geometry.dilation) > 1, weight.shape[1] == 1
    if not is_dilated and not is_single:
        return False
    sides = list(
        zip(x.shape[2:], *geometry[:3], weight.shape[2:], strict=False)
    )  # torch tells what is missing
    if is_dilated and any(padding > (k - 1) * d for _, _, padding, d, k in sides):
        return True
    width, stride, padding, dilation, kernel = sides[-1]
    return is_single and stride > 1 and width + 2 * padding - (kernel - 1) * dilation <= stride


def _in_planes(x: Tensor) -> Tensor:
    """Plane by plane, and in no other way: strides of dimensions that have one element only say so, too."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _each(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    if type(value) is tuple and len(value) == dimensions:  # as layers give it
        return value
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * dimensions if len(given) == 1 else given
