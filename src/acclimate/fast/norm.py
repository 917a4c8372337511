"""Batch norms, with the activation behind them, that keep their input and nothing else.

The output of a norm is cheap to make again from its input and the statistics: so it is not kept, and
neither is what an activation makes of it. Where `native` kernels can be had, norm and clamp are one.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from acclimate.fast.activation import Activation
from acclimate.fast.concatenation import Gradients, Joined, joined
from acclimate.fast.fusion import Fusion
from acclimate.fast.mixture import mixture_for
from acclimate.fast.native import UNBOUNDED, Kernels, Line, native_kernels
from acclimate.fast.once import once_differentiable
from acclimate.fast.recycling import room_like
from acclimate.ranks import ALONE, Ranks

__all__ = ["Norms"]

_NOTE: Final = "_acclimate_norm"
"""Attribute by which the output of a norm remembers where it is from."""


class _Norm(NamedTuple):
    """A call of ``F.batch_norm``, once its statistics are known."""

    x: Tensor
    """What it is computed from."""
    source: Tensor
    """The same, with its history."""
    line: Line
    share: float = 0.0
    """Of the statistics of ``x`` itself in these, through which its gradient flows too."""
    own_mean: Tensor | None = None
    """What its gradient counts deviations from, if not from ``line.mean``."""
    gradients: Gradients | None = None
    """Where that of ``x`` is added up, if not by autograd."""
    ranks: Ranks = ALONE
    """With whose images those statistics are."""
    kernels: Kernels | None = None


class _Note(NamedTuple):
    """Where the output of a norm is from."""

    norm: _Norm
    node: Any
    """Of the graph: as long as it is still that of the output."""
    version: int
    source_version: int

    def holds(self, y: Tensor) -> bool:
        """Whether ``y`` is still what the norm made of its input, and that what it was."""
        is_same = y.grad_fn is self.node and y._version == self.version
        return is_same and self.norm.source._version == self.source_version


class Norms:
    """``F.batch_norm``, and activations of what it gave."""

    def __init__(self, *, native: bool, fusion: Fusion | None = None, ranks: Ranks = ALONE) -> None:
        self._kernels = native_kernels() if native else None
        self._fusion = fusion if self._kernels is not None else None
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
        mixed = mixture_for(running_mean)
        if mixed is None and not training and (running_mean is None or not x.requires_grad):
            return NotImplemented
        if mixed is None and (x.ndim < 2 or self._ranks.scaled(x.numel()) < 2 * x.shape[1]):
            return NotImplemented
        parameters = [p for p in (weight, bias, running_mean, running_var) if p is not None]
        shape = x.shape[1:2]
        if any(parameter.shape != shape for parameter in parameters):
            return NotImplemented
        part = joined(x)
        own = x.detach() if part is None else part.x
        is_taken = part is not None or Kernels.take(x)
        fits = is_taken and all(map(Kernels.read, parameters))
        kernels = self._kernels if fits else None
        if kernels is None:
            part, own = None, x.detach()
        share, own_mean = 1.0, None
        if mixed is not None:
            with torch.no_grad():
                of_batch = self._ranks.combined(*_own_statistics(own, part, kernels))
                mean, var, its_share, own_mean = mixed(*of_batch)
                share = float(its_share)
        elif training:
            with torch.no_grad():
                mean, var = self._statistics(own, part, running_mean, running_var, momentum, kernels)
        else:
            assert running_mean is not None
            assert running_var is not None
            mean, var, share = running_mean, running_var, 0.0
        line = Line(weight, bias, mean, var, eps)
        gradients = None if part is None else part.gradients
        return self._made(_Norm(own, x, line, share, own_mean, gradients, self._ranks, kernels))

    def _made(self, norm: _Norm) -> Tensor:
        x, line, kernels = norm.source, norm.line, norm.kernels
        fusion = None if kernels is None else self._fusion
        expected = () if fusion is None else fusion.expected(line.weight)
        y: Tensor = _NormFunction.apply(x, line.weight, line.bias, norm, bool(expected))  # type: ignore[no-untyped-call]
        if y.requires_grad:
            setattr(y, _NOTE, _Note(norm, y.grad_fn, y._version, x._version))
        if fusion is not None and expected != ():
            assert kernels is not None
            assert line.weight is not None
            write = functools.partial(kernels.forward, norm.x, line, y) if expected else None
            fusion.watch(y, line.weight, write, self.clamp_unwritten, expected or ())
        return y

    @staticmethod
    def activated(y: Tensor, activation: Activation, *, inplace: bool) -> Any:
        """What an activation makes of ``y``, if that is what `batch_norm` gave and still is."""
        note: _Note | None = getattr(y, _NOTE, None)
        if note is None or not note.holds(y):
            return NotImplemented
        if inplace:
            delattr(y, _NOTE)  # it would keep the input alive as long as this is
        norm = note.norm
        return _ActivatedFunction.apply(  # type: ignore[no-untyped-call]
            y, norm.source, norm.line.weight, norm.line.bias, norm, activation, inplace
        )

    @staticmethod
    def clamp_unwritten(y: Tensor, activation: Activation) -> bool:
        """Have the norm that made ``y`` see to the gradient of a clamp behind it, if it still can.

        Nobody has seen ``y`` without the clamp: so that is a part of the norm, and no function by itself.
        """
        note: _Note | None = getattr(y, _NOTE, None)
        if note is None or not note.holds(y):
            return False
        delattr(y, _NOTE)
        note.node.activation = activation
        increment_version(y)
        return True

    def _statistics(
        self,
        x: Tensor,
        part: Joined | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        kernels: Kernels | None,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of a batch; the running ones move towards them as torch moves them."""
        if running_mean is not None and running_var is not None and not self._ranks.synchronised:
            if kernels is None:
                mean, var = torch.ops.aten.batch_norm_update_stats(x, running_mean, running_var, momentum)
                return mean, var
            if part is None:
                mean, var = _two(x)
                kernels.statistics(x, mean, var, (running_mean, running_var), momentum)
                for moved in (running_mean, running_var):  # which nobody has seen
                    increment_version(moved)
                return mean, var
        mean, var = self._ranks.combined(*_own_statistics(x, part, kernels))
        if running_mean is not None and running_var is not None:
            count = self._ranks.scaled(x.numel() // x.shape[1])
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * (count / (count - 1)), momentum)
        return mean, var


class _NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        norm: _Norm,
        is_put_off: bool,
    ) -> Tensor:
        _keep(ctx, norm, None)
        ctx.set_materialize_grads(False)
        return room_like(norm.x) if is_put_off else _normalized(norm.x, norm.line, norm.kernels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:  # all of it went by the activation
            return (None,) * 5
        return (*_gradients(ctx, gradient, ctx.needs_input_grad[:3]), None, None)


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
    ) -> Tensor:
        _keep(ctx, norm, activation)
        if not inplace:
            return activation.forward(y)
        ctx.mark_dirty(y)
        return activation.forward_(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        made = _gradients(ctx, gradient, ctx.needs_input_grad[1:4])
        return (None, *made, None, None, None)


def _keep(ctx: Any, norm: _Norm, activation: Activation | None) -> None:
    line = norm.line
    ctx.activation = activation
    ctx.share, ctx.eps, ctx.kernels, ctx.ranks = norm.share, line.eps, norm.kernels, norm.ranks
    ctx.gradients = norm.gradients
    ctx.count = norm.ranks.scaled(norm.x.numel() // norm.x.shape[1])
    ctx.save_for_backward(norm.x, line.weight, line.bias, line.mean, line.var, norm.own_mean)


def _gradients(ctx: Any, gradient: Tensor, wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Of input, weight and bias."""
    x, weight, bias, mean, var, own_mean = ctx.saved_tensors
    kernels: Kernels | None = ctx.kernels
    activation: Activation | None = ctx.activation
    line = Line(weight, bias, mean, var, ctx.eps)
    bounds = UNBOUNDED if activation is None else activation.clamp
    if activation is not None and (kernels is None or bounds is None):
        again = _normalized(x, line, kernels)
        gradient, bounds = activation.backward(gradient, again), UNBOUNDED
    if kernels is None:
        return _plain_gradients(ctx, x, gradient, line, own_mean, wanted)
    assert bounds is not None
    shared: Gradients | None = ctx.gradients if wanted[0] else None
    gradient = gradient.contiguous(memory_format=_form(x))
    own, part = mean if own_mean is None else own_mean, ctx.share / ctx.count
    if ctx.gradients is None and not ctx.ranks.synchronised:
        made = kernels.gradients(x, gradient, line, bounds, own, part, wants_x=wanted[0])
        if all(wanted):
            return made
        return tuple(found if is_wanted else None for found, is_wanted in zip(made, wanted, strict=True))
    onto, is_fresh = (None, False) if shared is None else shared.begun(x.shape[1])
    total, in_weight, in_bias = kernels.sums(x, gradient, line, bounds, onto, fresh=is_fresh)
    in_x = None
    if wanted[0]:
        everywhere = torch.stack(ctx.ranks.sums(*total)) if ctx.share and ctx.ranks.synchronised else total
        rest = kernels.rest(line, everywhere, part)
        if shared is None:
            in_x = kernels.backward(x, gradient, line, bounds, own, rest)
        elif ctx.share:
            shared.add_rest(own, rest)
    return in_x, in_weight if wanted[1] else None, in_bias if wanted[2] else None


def _plain_gradients(
    ctx: Any, x: Tensor, gradient: Tensor, line: Line, own_mean: Tensor | None, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The same by torch."""
    mean, ranks = line.mean, ctx.ranks
    invstd = (line.var + line.eps).rsqrt()
    if own_mean is None and not ranks.synchronised:
        made: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
            gradient, x, line.weight, mean, line.var, mean, invstd, ctx.share == 1, line.eps, list(wanted)
        )
        return made
    scale = invstd if line.weight is None else line.weight * invstd
    wide, dims = gradient.to(mean.dtype), [0, *range(2, x.ndim)]
    total, product = wide.sum(dims), (wide * (x - _along(mean, x))).sum(dims)
    in_x = None
    if wanted[0]:
        share = -scale * (ctx.share / ctx.count)
        all_total, all_product = ranks.sums(total, product) if ctx.share else (total, product)
        slope, constant = share * invstd.square() * all_product, share * all_total
        own = mean if own_mean is None else own_mean
        through = _along(slope, x) * (x - _along(own, x)) + _along(constant, x)
        in_x = (_along(scale, x) * gradient + through).to(x.dtype)
    in_weight = product * invstd if wanted[1] else None
    return in_x, in_weight, total if wanted[2] else None


def _along(part: Tensor, x: Tensor) -> Tensor:
    """One entry per channel, against an activation."""
    return part.view(1, -1, *[1] * (x.ndim - 2))


def _own_statistics(x: Tensor, part: Joined | None, kernels: Kernels | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of a batch."""
    if part is not None:
        return part.mean, part.var
    if kernels is not None:
        mean, var = _two(x)
        kernels.statistics(x, mean, var)
        return mean, var
    # torch takes the precision of its statistics from what they move: never below float32
    moved = x.new_zeros(2, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
    mean, var = torch.ops.aten.batch_norm_update_stats(x, *moved, 0.0)
    return mean, var


def _two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for two numbers of every channel."""
    first = x.new_empty(x.shape[1], dtype=torch.float32)
    return first, torch.empty_like(first)


def _normalized(x: Tensor, line: Line, kernels: Kernels | None) -> Tensor:
    if kernels is None:
        made: Tensor = torch.native_batch_norm(
            x, line.weight, line.bias, line.mean, line.var, False, 0.0, line.eps
        )[0]
        return made
    made = room_like(x)
    kernels.forward(x, line, made)
    return made


def _form(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.ndim == 4 else torch.contiguous_format
