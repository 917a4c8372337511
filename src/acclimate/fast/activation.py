"""Activations by what they do in both directions, and those that keep one bit per element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.fast.bits import pack, unpack
from acclimate.fast.layout import is_dense
from acclimate.fast.native import Kernels, bits_of, native_kernels
from acclimate.fast.once import once_differentiable

__all__ = ["ACTIVATIONS", "Activation", "OneBit", "Write"]

_aten: Final = torch.ops.aten


@dataclass(frozen=True)
class Activation:
    """An activation with its options."""

    forward: Callable[[Tensor], Tensor]
    forward_: Callable[[Tensor], Tensor]
    """The same in place."""
    backward: Callable[[Tensor, Tensor], Tensor]
    """From the gradient and from what went in."""
    bounds: tuple[float, float] | None = None
    """What comes out lies between these where the derivative is 1; elsewhere the derivative is ``slope``."""
    slope: float = 0.0

    @property
    def clamp(self) -> tuple[float, float] | None:
        """The bounds, if the activation does no more than keep within them."""
        return self.bounds if self.slope == 0 else None


@functools.cache
def _relu() -> Activation:
    bounds = (0.0, float("inf"))
    return Activation(torch.relu, torch.relu_, lambda g, y: _aten.threshold_backward(g, y, 0), bounds)


@functools.cache
def _hardtanh(min_val: float = -1.0, max_val: float = 1.0) -> Activation:
    return Activation(
        lambda y: F.hardtanh(y, min_val, max_val),
        lambda y: F.hardtanh(y, min_val, max_val, inplace=True),
        lambda g, y: _aten.hardtanh_backward(g, y, min_val, max_val),
        (min_val, max_val),
    )


@functools.cache
def _relu6() -> Activation:
    return _hardtanh(0.0, 6.0)


@functools.cache
def _leaky_relu(negative_slope: float = 0.01) -> Activation:
    return Activation(
        lambda y: F.leaky_relu(y, negative_slope),
        lambda y: F.leaky_relu(y, negative_slope, inplace=True),
        lambda g, y: _aten.leaky_relu_backward(g, y, negative_slope, False),
        (0.0, float("inf")) if negative_slope > 0 else None,
        negative_slope,
    )


@functools.cache
def _silu() -> Activation:
    return Activation(F.silu, lambda y: F.silu(y, inplace=True), _aten.silu_backward)


@functools.cache
def _hardswish() -> Activation:
    return Activation(F.hardswish, lambda y: F.hardswish(y, inplace=True), _aten.hardswish_backward)


ACTIVATIONS: Final[dict[Callable[..., Any], tuple[Callable[..., Activation], bool]]] = {
    F.relu: (_relu, False),
    torch.relu: (_relu, False),
    torch.relu_: (_relu, True),
    Tensor.relu: (_relu, False),
    Tensor.relu_: (_relu, True),
    F.relu6: (_relu6, False),
    F.hardtanh: (_hardtanh, False),
    F.leaky_relu: (_leaky_relu, False),
    F.silu: (_silu, False),
    F.hardswish: (_hardswish, False),
}
"""Functions of torch: what makes their lean form of their options, and whether they work in place."""


Write = Callable[..., None]
"""Writes what was put off, within ``bounds``, and a bit for each element between them into ``bits``."""


class OneBit:
    """Activations with two derivatives: a bit tells which of them an element has."""

    def __init__(self, *, native: bool) -> None:
        self._kernels = native_kernels() if native else None

    def activated(self, y: Tensor, activation: Activation, *, inplace: bool) -> Any:
        """What an activation makes of ``y``; NotImplemented if it has more derivatives than two."""
        if activation.bounds is None or not is_dense(y):
            return NotImplemented
        kernels = self._kernels if Kernels.know(y) else None
        return _OneBitFunction.apply(y, activation, inplace, kernels, None)  # type: ignore[no-untyped-call]

    def written(self, y: Tensor, activation: Activation, write: Write) -> Any:
        """The same in place, for a clamp of what was not written yet."""
        return _OneBitFunction.apply(y, activation, True, self._kernels, write)  # type: ignore[no-untyped-call]


class _OneBitFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        activation: Activation,
        inplace: bool,
        kernels: Kernels | None,
        write: Write | None,
    ) -> Tensor:
        if inplace:
            ctx.mark_dirty(y)
        assert activation.bounds is not None
        bounds = _as_stored(activation.bounds, y.dtype)
        if write is not None:
            z, bits = y, bits_of(y)
            write(bounds=bounds, bits=bits)
        elif kernels is not None and inplace and activation.clamp is not None:
            z, bits = y, kernels.clamp_(y, bounds)
        else:
            z = activation.forward_(y) if inplace else activation.forward(y)
            bits = pack(_inside(_flat(z), *bounds)) if kernels is None else kernels.pack(z, bounds)
        ctx.save_for_backward(bits)
        ctx.shape, ctx.stride, ctx.slope, ctx.kernels = z.shape, z.stride(), activation.slope, kernels
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (bits,) = ctx.saved_tensors
        if ctx.kernels is not None:
            if gradient.stride() != ctx.stride:
                gradient = gradient.new_empty_strided(ctx.shape, ctx.stride).copy_(gradient)
            return ctx.kernels.masked(gradient, bits, ctx.slope), None, None, None, None
        mask = unpack(bits, ctx.shape.numel()).to(gradient.dtype).as_strided(ctx.shape, ctx.stride)
        if ctx.slope == 0:
            return _aten.threshold_backward(gradient, mask, 0), None, None, None, None
        return _aten.leaky_relu_backward(gradient, mask, ctx.slope, False), None, None, None, None


@functools.cache
def _as_stored(bounds: tuple[float, float], dtype: torch.dtype) -> tuple[float, float]:
    """Bounds as elements that were clamped to them have them."""
    low, high = torch.tensor(bounds, dtype=dtype, device="cpu").tolist()
    return low, high


def _flat(z: Tensor) -> Tensor:
    return z.as_strided((z.numel(),), (1,))


def _inside(z: Tensor, low: float, high: float) -> Tensor:
    return (z > low) & (z < high)
