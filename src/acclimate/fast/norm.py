"""Batch norms, with the activation behind them, that keep their input and nothing else.

The output of a norm is cheap to make again from its input and the statistics: so it is not kept, and
neither is what an activation makes of it. Where `native` kernels can be had, norm and clamp are one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acclimate.fast.activation import Activation
from acclimate.fast.layout import layout_of
from acclimate.fast.native import UNBOUNDED, Kernels, native_kernels
from acclimate.ranks import ALONE, Ranks

__all__ = ["Mixture", "Norms", "mix_next"]

_NOTE: Final = "_acclimate_norm"
"""Attribute by which the output of a norm remembers where it is from."""
_MIXTURE: Final = "_acclimate_mixture"
"""Attribute of a running mean by which the next ``F.batch_norm`` is told what to mix it with."""

Mixture = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, float]]
"""Mean and variance of a batch to those that it is normalised with, and the share of the batch in them."""


def mix_next(running_mean: Tensor, mixture: Mixture) -> None:
    """Let the next ``F.batch_norm`` with this running mean normalise by a mixture."""
    setattr(running_mean, _MIXTURE, mixture)


@dataclass(frozen=True)
class _Norm:
    """A call of ``F.batch_norm``, once its statistics are known."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    var: Tensor
    eps: float
    share: float = 0.0
    """Of the statistics of ``x`` itself in these, through which its gradient flows too."""
    own_mean: Tensor | None = None
    """Its own mean, if that is not all of it."""
    ranks: Ranks = ALONE
    """With whose images those statistics are."""


class Norms:
    """``F.batch_norm``, and activations of what it gave."""

    def __init__(self, *, native: bool, ranks: Ranks = ALONE) -> None:
        self._kernels = native_kernels() if native else None
        self._ranks = ranks

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
        mixed = None if running_mean is None else vars(running_mean).pop(_MIXTURE, None)
        if mixed is None and not training and (running_mean is None or not x.requires_grad):
            return NotImplemented
        if mixed is None and (x.ndim < 2 or self._ranks.scaled(x.numel()) < 2 * x.shape[1]):
            return NotImplemented
        kernels = self._kernels if self._kernels is not None and _taken(x, weight, running_mean) else None
        if mixed is not None:
            with torch.no_grad():
                own_mean, own_var = self._ranks.combined(*_own_statistics(x.detach(), kernels))
                mean, var, share = mixed(own_mean, own_var)
            norm = _Norm(x, weight, bias, mean, var, eps, share, own_mean, self._ranks)
        elif training:
            with torch.no_grad():
                mean, var = _statistics(x.detach(), running_mean, running_var, momentum, kernels, self._ranks)
            norm = _Norm(x, weight, bias, mean, var, eps, share=1.0, ranks=self._ranks)
        else:
            assert running_mean is not None
            assert running_var is not None
            norm = _Norm(x, weight, bias, running_mean, running_var, eps)
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
    @once_differentiable
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
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        made = _gradients(ctx, gradient, ctx.activation, ctx.needs_input_grad[1:4])
        return (None, *made, None, None, None, None)


def _keep(ctx: Any, norm: _Norm, kernels: Kernels | None) -> None:
    ctx.share, ctx.eps, ctx.kernels, ctx.ranks = norm.share, norm.eps, kernels, norm.ranks
    ctx.count = norm.ranks.scaled(norm.x.numel() // norm.x.shape[1])
    ctx.save_for_backward(norm.x, norm.weight, norm.bias, norm.mean, norm.var, norm.own_mean)


def _gradients(
    ctx: Any, gradient: Tensor, activation: Activation | None, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Of input, weight and bias."""
    x, weight, bias, mean, var, own_mean = ctx.saved_tensors
    kernels: Kernels | None = ctx.kernels
    bounds = UNBOUNDED if activation is None else activation.clamp
    if activation is not None and (kernels is None or bounds is None):
        again = _normalized(x, weight, bias, mean, var, ctx.eps, kernels)
        gradient, bounds = activation.backward(gradient, again), UNBOUNDED
    assert bounds is not None
    invstd = (var + ctx.eps).rsqrt()
    ranks: Ranks = ctx.ranks
    if kernels is None and own_mean is None and not ranks.synchronised:
        made: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, mean, var, mean, invstd, ctx.share == 1, ctx.eps, list(wanted)
        )
        return made
    work = _Plain if kernels is None else kernels
    gradient = gradient.contiguous(memory_format=layout_of(x))
    line = _line(weight, bias, mean, invstd)
    total, product = work.sums(x, gradient, line, mean, bounds)
    in_x = None
    if wanted[0]:
        share = -line[0] * (ctx.share / ctx.count)
        all_total, all_product = ranks.sums(total, product) if ctx.share else (total, product)
        rest = ((share * invstd.square() * all_product).to(mean.dtype), (share * all_total).to(mean.dtype))
        in_x = work.backward(x, gradient, line, mean if own_mean is None else own_mean, rest, bounds)
    in_weight = (product * invstd).to(mean.dtype) if wanted[1] else None
    return in_x, in_weight, total.to(mean.dtype) if wanted[2] else None


class _Plain:
    """What `Kernels` does with gradients, by torch, without bounds."""

    @staticmethod
    def sums(
        x: Tensor, gradient: Tensor, line: Sequence[Tensor], mean: Tensor, bounds: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """Of a gradient, and of it times x - mean."""
        wide, dims = gradient.to(mean.dtype), [0, *range(2, x.ndim)]
        return wide.sum(dims), (wide * (x - _along(mean, x))).sum(dims)

    @staticmethod
    def backward(
        x: Tensor,
        gradient: Tensor,
        line: Sequence[Tensor],
        mean: Tensor,
        rest: Sequence[Tensor],
        bounds: tuple[float, float],
    ) -> Tensor:
        """The gradient of x: scale times the other, and slope * (x - mean) + constant."""
        scale, mean, slope, constant = (_along(part, x) for part in (line[0], mean, *rest))
        return (scale * gradient + (slope * (x - mean) + constant)).to(x.dtype)


def _along(part: Tensor, x: Tensor) -> Tensor:
    """One entry per channel, against an activation."""
    return part.view(1, -1, *[1] * (x.ndim - 2))


def _taken(x: Tensor, *parameters: Tensor | None) -> bool:
    return Kernels.take(x) and all(p is None or p.dtype == torch.float32 for p in parameters)


def _statistics(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    kernels: Kernels | None,
    ranks: Ranks,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a batch; the running ones move towards them as torch moves them."""
    if kernels is None and running_mean is not None and not ranks.synchronised:
        mean, var = torch.ops.aten.batch_norm_update_stats(x, running_mean, running_var, momentum)
        return mean, var
    mean, var = ranks.combined(*_own_statistics(x, kernels))
    if running_mean is not None and running_var is not None:
        count = ranks.scaled(x.numel() // x.shape[1])
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * (count / (count - 1)), momentum)
    return mean, var


def _own_statistics(x: Tensor, kernels: Kernels | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of a batch."""
    if kernels is not None:
        return kernels.statistics(x)
    # torch takes the precision of its statistics from what they move: never below float32
    moved = x.new_zeros(2, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
    mean, var = torch.ops.aten.batch_norm_update_stats(x, *moved, 0.0)
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


def _line(weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and shift that a norm comes down to."""
    scale = invstd if weight is None else weight.detach() * invstd
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias.detach()
