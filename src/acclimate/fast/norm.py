"""Batch norms, with the activation behind them, that keep their input and nothing else.

The output of a norm is cheap to make again from its input and the statistics: so it is not kept, and
neither is what an activation makes of it. Where `native` kernels can be had, norm and clamp are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from acclimate.fast.activation import Activation
from acclimate.fast.native import UNBOUNDED, Kernels, native_kernels

__all__ = ["Norms"]

_NOTE: Final = "_acclimate_norm"
"""Attribute by which the output of a norm remembers where it is from."""


@dataclass(frozen=True)
class _Norm:
    """A call of ``F.batch_norm``, once its statistics are known."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    var: Tensor
    training: bool
    """Whether the statistics are those of ``x``, so that its gradient flows through them too."""
    eps: float


class Norms:
    """``F.batch_norm``, and activations of what it gave."""

    def __init__(self, *, native: bool) -> None:
        self._kernels = native_kernels() if native else None

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        """``F.batch_norm``; NotImplemented where torch's own will do, or has an error to tell."""
        if not training and (running_mean is None or not x.requires_grad):
            return NotImplemented
        if x.ndim < 2 or x.numel() < 2 * x.shape[1]:
            return NotImplemented
        kernels = self._kernels if self._kernels is not None and _taken(x, weight, running_mean) else None
        if training:
            with torch.no_grad():
                mean, var = _statistics(x.detach(), running_mean, running_var, momentum, kernels)
        else:
            assert running_mean is not None
            assert running_var is not None
            mean, var = running_mean, running_var
        norm = _Norm(x, weight, bias, mean, var, training, eps)
        y: Tensor = _NormFunction.apply(x, weight, bias, norm, kernels)  # type: ignore[no-untyped-call]
        if y.requires_grad:
            setattr(y, _NOTE, (norm, y.grad_fn, (y._version, x._version), kernels))
        return y

    @staticmethod
    def activated(y: Tensor, activation: Activation, *, inplace: bool) -> Any:
        """What an activation makes of ``y``, if that is what `batch_norm` gave and still is."""
        norm, node, versions, kernels = getattr(y, _NOTE, (None, None, None, None))
        if norm is None or y.grad_fn is not node or (y._version, norm.x._version) != versions:
            return NotImplemented
        return _ActivatedFunction.apply(  # type: ignore[no-untyped-call]
            y, norm.x, norm.weight, norm.bias, norm, activation, inplace, kernels
        )


class _NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: _Norm, kernels: Kernels | None
    ) -> Tensor:
        _keep(ctx, norm, kernels)
        ctx.set_materialize_grads(False)
        return _normalized(x, weight, bias, norm.mean, norm.var, norm.eps, kernels)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:  # all of it went by the activation
            return (None,) * 5
        return (*_gradients(ctx, gradient, None, ctx.needs_input_grad[:3]), None, None)


class _ActivatedFunction(torch.autograd.Function):
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
        kernels: Kernels | None,
    ) -> Tensor:
        _keep(ctx, norm, kernels)
        ctx.activation = activation
        if not inplace:
            return activation.forward(y)
        ctx.mark_dirty(y)
        return activation.forward_(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        made = _gradients(ctx, gradient, ctx.activation, ctx.needs_input_grad[1:4])
        return (None, *made, None, None, None, None)


def _keep(ctx: Any, norm: _Norm, kernels: Kernels | None) -> None:
    ctx.training, ctx.eps, ctx.kernels = norm.training, norm.eps, kernels
    ctx.save_for_backward(norm.x, norm.weight, norm.bias, norm.mean, norm.var)


def _gradients(
    ctx: Any, gradient: Tensor, activation: Activation | None, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Of input, weight and bias."""
    x, weight, bias, mean, var = ctx.saved_tensors
    if ctx.kernels is not None and (activation is None or activation.clamp is not None):
        bounds = UNBOUNDED if activation is None or activation.clamp is None else activation.clamp
        return _native_gradients(
            ctx.kernels, gradient, x, weight, bias, mean, var, ctx.training, ctx.eps, bounds, wanted
        )
    if activation is not None:
        gradient = activation.backward(
            gradient, _normalized(x, weight, bias, mean, var, ctx.eps, ctx.kernels)
        )
    invstd = (var + ctx.eps).rsqrt()
    made: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, mean, var, mean, invstd, ctx.training, ctx.eps, list(wanted)
    )
    return made


def _taken(x: Tensor, *parameters: Tensor | None) -> bool:
    return Kernels.take(x) and all(p is None or p.dtype == torch.float32 for p in parameters)


def _statistics(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    kernels: Kernels | None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a batch; the running ones move towards them as torch moves them."""
    if kernels is None:
        if running_mean is None or running_var is None:
            # torch takes the precision of its statistics from what they move: never below float32
            wide = torch.promote_types(x.dtype, torch.float32)
            running_mean, running_var = x.new_empty(2, x.shape[1], dtype=wide)
        mean, var = torch.ops.aten.batch_norm_update_stats(x, running_mean, running_var, momentum)
        return mean, var
    mean, var = kernels.statistics(x)
    if running_mean is not None and running_var is not None:
        count = x.numel() // x.shape[1]
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * (count / (count - 1)), momentum)
    return mean, var


def _normalized(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    kernels: Kernels | None,
) -> Tensor:
    if kernels is None:
        made: Tensor = torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
        return made
    return kernels.forward(x, *_line(weight, bias, mean, (var + eps).rsqrt()))


def _native_gradients(
    kernels: Kernels,
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    eps: float,
    bounds: tuple[float, float],
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    if x.ndim == 2:
        gradient = gradient.contiguous()
    else:
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    invstd = (var + eps).rsqrt()
    line = _line(weight, bias, mean, invstd)
    total, product = kernels.sums(x, gradient, line, mean, bounds)
    in_x = None
    if wanted[0]:
        share = -line[0] / (x.numel() // x.shape[1] if training else float("inf"))
        rest = ((share * invstd.square() * product).float(), (share * total).float())
        in_x = kernels.backward(x, gradient, line, mean, rest, bounds)
    in_weight = (product * invstd).float() if wanted[1] else None
    return in_x, in_weight, total.float() if wanted[2] else None


def _line(weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and shift that a norm comes down to."""
    scale = invstd if weight is None else weight.detach() * invstd
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias.detach()
