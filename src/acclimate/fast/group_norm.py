"""Group norms of images that lie pixel by pixel, with the activation behind them, by our own kernels.

As batch norms do, they keep their input only, and what a clamp behind one makes of it is not kept.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from acclimate.fast import layout
from acclimate.fast.activation import Activation
from acclimate.fast.native import UNBOUNDED, Kernels, Line, native_kernels
from acclimate.fast.once import once_differentiable
from acclimate.fast.recycling import room_like

__all__ = ["GroupNorms"]

_NOTE: Final = "_acclimate_group_norm"
"""Attribute by which the output of a norm remembers where it is from."""


class _Norm(NamedTuple):
    """A call of ``F.group_norm``."""

    x: Tensor
    groups: int
    line: Line
    """With a mean and a variance for every channel of every image."""
    kernels: Kernels


class GroupNorms:
    """``F.group_norm``, and activations of what it gave."""

    def __init__(self, *, native: bool) -> None:
        self._kernels = native_kernels() if native else None

    def group_norm(
        self,
        x: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Any:
        """NotImplemented where torch's own will do, or has an error to tell."""
        parameters = [parameter for parameter in (weight, bias) if parameter is not None]
        fits = x.ndim == 4 and Kernels.take(x) and num_groups > 0 and x.shape[1] % num_groups == 0
        plain = all(p.shape == x.shape[1:2] and Kernels.read(p) for p in parameters)
        # one value has no spread, which torch has an error for
        if self._kernels is None or not fits or not plain or x.numel() == num_groups:
            return layout.group_norm(x, num_groups, weight, bias, eps)
        mean, var = x.new_empty(2, *x.shape[:2], dtype=torch.float32).unbind()
        norm = _Norm(x.detach(), num_groups, Line(weight, bias, mean, var, eps), self._kernels)
        y: Tensor = _GroupNorm.apply(x, weight, bias, norm)  # type: ignore[no-untyped-call]
        if y.requires_grad:
            setattr(y, _NOTE, (norm, x, y.grad_fn, (y._version, x._version)))
        return y

    @staticmethod
    def activated(y: Tensor, activation: Activation, *, inplace: bool) -> Any:
        """What a clamp makes of ``y``, if that is what `group_norm` gave and still is."""
        note = getattr(y, _NOTE, None)
        if note is None or activation.clamp is None:
            return NotImplemented
        norm, x, node, versions = note
        if y.grad_fn is not node or (y._version, x._version) != versions:
            return NotImplemented
        if inplace:
            delattr(y, _NOTE)  # it would keep the input alive as long as this is
        return _Clamped.apply(y, x, norm.line.weight, norm.line.bias, norm, activation, inplace)  # type: ignore[no-untyped-call]


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: _Norm) -> Tensor:
        made = room_like(norm.x)
        norm.kernels.group_forward(norm.x, norm.groups, norm.line, made)
        _keep(ctx, norm)
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:  # all of it went by the activation
            return (None,) * 4
        return (*_gradients(ctx, gradient, UNBOUNDED, ctx.needs_input_grad[:3]), None)


class _Clamped(torch.autograd.Function):
    """A function of the norm's input, and not of its output, through which no gradient needs to go."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        norm: _Norm,
        activation: Activation,
        inplace: bool,
    ) -> Tensor:
        _keep(ctx, norm)
        ctx.bounds = activation.clamp
        if not inplace:
            return activation.forward(y)
        ctx.mark_dirty(y)
        return activation.forward_(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        made = _gradients(ctx, gradient, ctx.bounds, ctx.needs_input_grad[1:4])
        return (None, *made, None, None, None)


def _keep(ctx: Any, norm: _Norm) -> None:
    ctx.groups, ctx.eps, ctx.kernels = norm.groups, norm.line.eps, norm.kernels
    ctx.save_for_backward(norm.x, *norm.line[:4])


def _gradients(
    ctx: Any, gradient: Tensor, bounds: tuple[float, float], wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Of input, weight and bias."""
    x, weight, bias, mean, var = ctx.saved_tensors
    kernels: Kernels = ctx.kernels
    line = Line(weight, bias, mean, var, ctx.eps)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    made = kernels.group_gradients(x, gradient, ctx.groups, line, bounds, wants_x=wanted[0])
    return tuple(found if is_wanted else None for found, is_wanted in zip(made, wanted, strict=True))
