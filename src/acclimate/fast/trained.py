"""Convolutions whose weight is trained, by our own kernels: those of the input transformation.

Images are large where it works and channels few, for which torch's kernels leave most of a register idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from acclimate.fast.narrow import Narrow, narrow
from acclimate.fast.once import once_differentiable
from acclimate.fast.packing import Geometry
from acclimate.fast.through_torch import convolved_by_torch, transposed_by_torch
from acclimate.fast.winograd import Winograd
from acclimate.fast.winograd import winograd as find_winograd

__all__ = ["Trained"]

_GEOMETRY: Final = Geometry((1, 1), (1, 1), (1, 1), 1)
_MOST_PRODUCTS: Final = 2**14
"""Of input and output channels: each thread has sums for all of them, sixteen times, in double."""


class _Way(NamedTuple):
    """How a convolution is computed, and what of it is differentiated."""

    forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """From input, weight and bias."""
    of_input: Callable[[Tensor, Tensor], Tensor]
    """From gradient and weight."""
    of_weight: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """Of weight and bias, from input and gradient."""


class Trained:
    """``torch.conv2d`` with stride and padding of 1, of what lies pixel by pixel, in float32.

    Args:
        winograd: whether those of many channels are computed with fewer products.
    """

    def __init__(self, *, winograd: bool) -> None:
        self._tiles, self._few = find_winograd() if winograd else None, narrow()

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Any:
        """NotImplemented where it is of another kind."""
        if geometry != _GEOMETRY or weight.shape[2:] != (3, 3) or torch.is_autocast_enabled("cpu"):
            return NotImplemented
        if not all(_is_readable(t) for t in (x, weight, *(() if bias is None else (bias,)))):
            return NotImplemented
        outs, ins = weight.shape[:2]
        fits = x.shape[1] == ins and x.numel() > 0 and x.is_contiguous(memory_format=torch.channels_last)
        if not fits or (bias is not None and (bias.shape != (outs,) or not bias.is_contiguous())):
            return NotImplemented
        way = self._way(x, weight)
        return NotImplemented if way is None else _Convolution.apply(x, weight, bias, way)  # type: ignore[no-untyped-call]

    def _way(self, x: Tensor, weight: Tensor) -> _Way | None:
        outs, ins = weight.shape[:2]
        few, tiles = self._few, self._tiles
        if few is not None and few.takes(ins, outs):
            return _to_few(few)
        if few is not None and few.takes(outs, ins):
            return _from_few(few)
        if tiles is not None and ins * outs <= _MOST_PRODUCTS and tiles.pays(weight, _GEOMETRY, x):
            return _by_tiles(tiles)
        return None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, way: _Way) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)
        ctx.way = way
        return way.forward(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        gradient = gradient.resolve_neg().contiguous(memory_format=torch.channels_last)
        in_x = ctx.way.of_input(gradient, weight) if wants_x else None
        if wants_weight:
            in_weight, in_bias = ctx.way.of_weight(x, gradient)
        else:
            in_weight, in_bias = None, gradient.sum((0, 2, 3))
        return in_x, in_weight, in_bias if wants_bias else None, None


def _is_readable(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_cpu and not x.is_neg()


def _by_tiles(tiles: Winograd) -> _Way:
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return tiles.convolved(x, tiles.pack(weight), bias, len(weight), _GEOMETRY.padding)

    def of_input(gradient: Tensor, weight: Tensor) -> Tensor:
        turned = tiles.pack(weight.transpose(0, 1).flip(2, 3))
        return tiles.convolved(gradient, turned, None, weight.shape[1], _GEOMETRY.padding)

    def of_weight(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return tiles.gradients(x, gradient, _GEOMETRY.padding)

    return _Way(forward, of_input, of_weight)


def _to_few(few: Narrow) -> _Way:
    def of_weight(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        products, _ = few.products(x, gradient)
        # an output sees, at each place around it, a pixel that sees it at the opposite one
        return products.flip(0, 1).permute(2, 3, 0, 1).contiguous(), gradient.sum((0, 2, 3))

    return _Way(few.convolved, _of_input_by_torch, of_weight)


def _from_few(few: Narrow) -> _Way:
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolved_by_torch(x, weight, bias, _GEOMETRY)

    def of_weight(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        products, whole = few.products(gradient, x)
        return products.permute(3, 2, 0, 1).contiguous(), whole

    return _Way(forward, _of_input_by_torch, of_weight)


def _of_input_by_torch(gradient: Tensor, weight: Tensor) -> Tensor:
    shape = torch.Size((len(gradient), weight.shape[1], *gradient.shape[2:]))
    return transposed_by_torch(gradient, shape, torch.channels_last, weight, _GEOMETRY)
