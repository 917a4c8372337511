"""An addition and a clamp in place right behind a norm, in the pass that writes what the norm makes.

What a norm makes is not written until torch is called the next time. If that call adds to it in place, or
clamps it in place, as residual blocks do, one pass over memory does all of it. Whatever else is called:
first it is written. A norm is put off so only after it was seen to be followed by such a call, and by
nothing before it: scripts and extensions work on tensors without our being asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from acclimate.fast.activation import ACTIVATIONS, Activation, OneBit, Write
from acclimate.fast.between import Between
from acclimate.fast.native import Kernels
from acclimate.fast.once import once_differentiable

__all__ = ["Fusion"]

_ADDITIONS: Final = (Tensor.__iadd__, Tensor.add_)


@dataclass
class _Watched:
    """What a norm made, until it is clear what follows."""

    y: Tensor
    weight: Tensor
    clamp_unwritten: Callable[[Tensor, Activation], bool]
    """Has the norm see to the gradient of a clamp behind it; whether it can."""
    write: Write | None
    """None if it is written already, and it is only looked what follows."""
    expected: tuple[str, ...]
    seen: tuple[str, ...] = ()
    other: Tensor | None = None
    """What was added."""
    between: Between | None = None


class Fusion:
    """Knows which norms are followed by what.

    Args:
        one_bit: makes activations of sums; without it only sums are made in the pass of a norm.
    """

    def __init__(self, one_bit: OneBit | None) -> None:
        self._one_bit = one_bit
        self._followers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.watched: _Watched | None = None
        """While there is one, it matters what is called next."""

    def expected(self, weight: Tensor | None) -> tuple[str, ...] | None:
        """What follows the norm with this weight: if anything, it may be written later; None if unknown."""
        return () if weight is None else self._followers.get(weight)  # type: ignore[no-untyped-call]

    def watch(
        self,
        y: Tensor,
        weight: Tensor,
        write: Write | None,
        clamp_unwritten: Callable[[Tensor, Activation], bool],
        expected: tuple[str, ...] = (),
    ) -> None:
        """See what follows ``y``, which ``write`` writes if it is not there yet."""
        watched = _Watched(y, weight, clamp_unwritten, write, expected)
        if write is not None:
            self.watched = watched
        else:
            self._look(watched, calls=0)

    def follow(self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The call behind a norm; NotImplemented if it is to be made as always."""
        watched = self._end()
        assert watched is not None
        other = _added(watched.y, function, args, named)
        activation = None if other is not None else _clamp(watched.y, function, args, named)
        kind = "addition" if other is not None else "clamp" if activation is not None else None
        if watched.write is None:
            self._learn(watched, kind)
            return NotImplemented
        # within the forward of a function of the network's own, autograd looks after what is done in place
        is_hidden = watched.y.requires_grad and not torch.is_grad_enabled()
        if (kind,) != watched.expected[:1] or is_hidden:
            self._followers[watched.weight] = ()
            watched.write(other=watched.other)
            return NotImplemented
        if other is not None:
            return self._sum(watched, watched.write, other)
        assert activation is not None
        return self._clamped(watched, watched.write, activation)

    def finish(self) -> None:
        """Write what is not written yet: nothing is called any more."""
        watched = self._end()
        if watched is not None and watched.write is not None:
            watched.write(other=watched.other)

    def _look(self, watched: _Watched, calls: int) -> None:
        """Wait for the next call, before which so many are expected that were made as always."""
        self.watched, watched.between = watched, Between(calls)
        watched.between.__enter__()  # type: ignore[no-untyped-call]

    def _end(self) -> _Watched | None:
        watched, self.watched = self.watched, None
        if watched is not None and watched.between is not None:
            watched.between.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return watched

    def _learn(self, watched: _Watched, kind: str | None) -> None:
        """What follows: nothing that can be fused, if there is more to it than one call behind the other."""
        assert watched.between is not None
        is_sum = "addition" in watched.seen
        if watched.between.calls != 0 or (is_sum and (kind == "addition" or self._one_bit is None)):
            kind = None
        if kind is not None:
            watched.seen += (kind,)
        self._followers[watched.weight] = watched.seen if watched.between.calls == 0 else ()
        if kind == "addition":
            self._look(watched, calls=1)  # the addition itself

    def _sum(self, watched: _Watched, write: Write, other: Tensor) -> Any:
        watched.other, watched.expected = other.detach(), watched.expected[1:]
        made = _Sum.apply(watched.y, other)  # type: ignore[no-untyped-call]
        if watched.expected:
            self.watched = watched
        else:
            write(other=watched.other)
        return made

    def _clamped(self, watched: _Watched, write: Write, activation: Activation) -> Any:
        y, bounds = watched.y, activation.clamp
        if not y.requires_grad:
            write(other=watched.other, bounds=bounds)
            return y
        if watched.other is not None:
            assert self._one_bit is not None
            return self._one_bit.written(y, activation, functools.partial(write, other=watched.other))
        if not watched.clamp_unwritten(y, activation):
            write()
            return NotImplemented
        write(bounds=bounds)
        return y


class _Sum(torch.autograd.Function):
    """What was not written yet, and what is added to it in place."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, other: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient


def _added(
    y: Tensor, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Tensor | None:
    """What a call adds to ``y`` in place, element by element."""
    if function not in _ADDITIONS or len(args) != 2 or named or args[0] is not y:
        return None
    other = args[1]
    if not isinstance(other, Tensor) or other.shape != y.shape or other.dtype != y.dtype:
        return None
    apart = other.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
    return other if apart and Kernels.take(other) else None


def _clamp(
    y: Tensor, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Activation | None:
    """The activation that a call makes of ``y`` in place, if it keeps it within bounds and does no more."""
    if function not in ACTIVATIONS or (args[0] if args else named.get("input")) is not y:
        return None
    make, in_place = ACTIVATIONS[function]
    options = {name: value for name, value in named.items() if name not in ("input", "inplace")}
    activation = make(*args[1:], **options)
    return activation if named.get("inplace", in_place) and activation.clamp is not None else None
