"""Concatenations that grow piece by piece, as dense blocks make them, in memory that all of them share.

A dense block concatenates its first piece, then the first two, then the first three: torch copies all of
them every time, keeps every copy, and adds up the gradients of every copy. Here a piece is copied once,
next to those before it, its statistics are taken once, and the norms behind all those concatenations add
their gradients up in one place. Only norms see that memory: who else wants a concatenation gets a copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from acclimate.fast.native import Kernels
from acclimate.fast.once import once_differentiable

__all__ = ["Concatenations", "Gradients", "Joined", "joined"]

_NOTE: Final = "_acclimate_joined"
"""Attribute by which a concatenation remembers what it was made of."""


class Gradients:
    """Of all concatenations in the same memory, added up while backward goes from the last to the first."""

    def __init__(self, like: Tensor, mean: Tensor) -> None:
        self._like, self._shape = like.new_empty(0), like.shape
        self._mean = mean
        self._sum: Tensor | None = None
        self._pass = -1
        self._rest = mean
        """Slope over constant of what is to come on top of the sum: slope * (x - mean) + constant."""

    def begun(self, width: int) -> tuple[Tensor, bool]:
        """The sum over the first channels, to add to; or else fresh memory, to write all of.

        What an earlier pass has left is not in it.
        """
        is_fresh = not self._is_begun()
        if is_fresh:
            self._pass = _backward_pass()
            self._sum = _memory(self._like, self._shape, len(self._mean))
            self._sum[:, width:].zero_()
            self._rest = self._mean.new_zeros(2, len(self._mean))
        assert self._sum is not None
        return self._sum[:, :width], is_fresh

    def add_rest(self, mean: Tensor, rest: Tensor) -> None:
        """To the first channels of the sum, slope * (x - mean) + constant: done when a piece is complete."""
        width = rest.shape[1]
        if mean.data_ptr() != self._mean.data_ptr():
            slope, constant = rest.unbind()
            constant += slope * (self._mean[:width] - mean)
        self._rest[:, :width].add_(rest)

    def taken(self, x: Tensor, start: int, kernels: Kernels) -> Tensor | None:
        """The gradient of the piece ``x``, whose channels begin at ``start``; None if nothing was added."""
        if not self._is_begun():
            return None
        assert self._sum is not None
        channels = slice(start, start + x.shape[1])
        return kernels.finished(x, self._sum[:, channels], self._mean[channels], self._rest[:, channels])

    def end(self) -> None:
        """Every piece has had its own."""
        self._sum = None

    def _is_begun(self) -> bool:
        return self._sum is not None and self._pass == _backward_pass()


@dataclass(frozen=True)
class Joined:
    """A concatenation in shared memory."""

    x: Tensor
    """Its elements, without a history."""
    mean: Tensor
    var: Tensor
    """Of its channels."""
    gradients: Gradients
    kind: tuple[object, ...]


def joined(x: Tensor) -> Joined | None:
    """What is known of a concatenation, if it is one."""
    note = getattr(x, _NOTE, None)
    return note if isinstance(note, Joined) else None


@dataclass
class _Growth:
    """The longest concatenation so far that begins with a certain piece."""

    pieces: list[tuple[weakref.ref[Tensor], int]]
    """With their versions."""
    memory: Tensor | None = None
    """Of all channels that there will be."""
    means: Tensor = field(default_factory=lambda: torch.empty(0))
    variances: Tensor = field(default_factory=lambda: torch.empty(0))
    gradients: Gradients | None = None
    width: int = 0
    tip: Tensor | None = None
    given: weakref.ref[Tensor] | None = None
    """What the network has of it: as long as that lives, it may be used."""

    def begins(self, pieces: Sequence[Tensor]) -> bool:
        """Whether these are the same pieces and more."""
        pairs = zip(self.pieces, pieces, strict=False)
        same = all(old() is new and version == new._version for (old, version), new in pairs)
        return same and len(self.pieces) < len(pieces)

    def is_free(self) -> bool:
        """Whether the network is done with it."""
        return self.given is None or self.given() is None


class Concatenations:
    """``torch.cat`` along the channels of images on a CPU."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._widths: dict[tuple[object, ...], int] = {}
        """What a piece of this shape was seen to grow to: the first pass is torch's."""
        self._growths: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._given: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """What the network has in shared memory."""
        self._given_ids: set[int] = set()
        """Of all that it had there in this pass."""
        self._has_grown = False
        """Whether there was anything to share at all."""
        self._parted: set[tuple[object, ...]] = set()

    def cat(self, tensors: Any, dim: Any = 0, *, axis: Any = None, out: Tensor | None = None) -> Any:
        """NotImplemented where torch's own will do, or has an error to tell."""
        channels = (dim if axis is None else axis) in (1, -3)
        if out is not None or not channels or not torch.is_grad_enabled():
            return NotImplemented
        pieces = tuple(tensors)
        if not pieces or not isinstance(pieces[0], Tensor):
            return NotImplemented
        growth: _Growth | None = self._growths.get(pieces[0])  # type: ignore[no-untyped-call]
        is_longer = growth is not None and growth.begins(pieces)
        known = len(growth.pieces) if growth is not None and is_longer else 0
        if not all(_taken(piece, pieces[0]) for piece in pieces[known:]):
            return NotImplemented
        width = sum(piece.shape[1] for piece in pieces)
        kind = (pieces[0].dtype, *pieces[0].shape[1:])
        if growth is None or not is_longer:
            growth = self._growths[pieces[0]] = _Growth([])
            self._has_grown = True
            is_worth_it = kind not in self._parted and any(piece.requires_grad for piece in pieces)
            if is_worth_it and self._widths.get(kind, 0) > width:
                _begin(growth, pieces[0], self._widths[kind])
        else:
            self._widths[kind] = max(width, self._widths.get(kind, 0))
        if growth.memory is not None:
            if width <= growth.memory.shape[1] and growth.is_free():
                return self._grown(growth, pieces, kind)
            growth.memory = growth.tip = None
        growth.pieces += _weak(pieces[known:])
        return NotImplemented

    @property
    def is_shared(self) -> bool:
        """Whether the network may have something in shared memory."""
        return bool(self._given_ids)

    def forget(self) -> None:
        """Whatever has grown in this pass."""
        if not self._has_grown:
            return
        self._growths.clear()
        kept: list[Tensor] = list(self._given.keys())  # type: ignore[no-untyped-call]
        self.part_with(kept)
        self._given_ids.clear()
        self._has_grown = False

    def part_with(self, args: Iterable[Any]) -> None:
        """Give concatenations memory of their own, as somebody may write to it or keep it.

        It does not pay to share what is parted with: the next pass leaves it to torch.
        """
        given_ids = self._given_ids
        for a in args:
            if id(a) in given_ids:
                self._part_with(a)
            elif isinstance(a, (list, tuple)) and not given_ids.isdisjoint(map(id, a)):
                self.part_with(a)

    def _part_with(self, x: Any) -> None:
        part = joined(x)
        if part is not None:  # and not something else at the same address, later
            x.data = x.detach().clone(memory_format=torch.channels_last)
            delattr(x, _NOTE)
            del self._given[x]
            self._parted.add(part.kind)

    def _grown(self, growth: _Growth, pieces: Sequence[Tensor], kind: tuple[object, ...]) -> Tensor:
        assert growth.memory is not None
        assert growth.gradients is not None
        new = pieces[len(growth.pieces) :]
        parts, end = [], growth.width
        for piece in new:
            start, end = end, end + piece.shape[1]
            part = growth.memory[:, start:end]
            self._kernels.place(piece, part)
            self._kernels.statistics(piece, growth.means[start:end], growth.variances[start:end])
            parts.append((part, start))
        whole = growth.memory.new_empty(0), _first(growth.memory, end)
        tip, given = _Longer.apply(growth.tip, whole, parts, growth.gradients, self._kernels, *new)  # type: ignore[no-untyped-call]
        mean, var = growth.means[:end], growth.variances[:end]
        setattr(given, _NOTE, Joined(growth.memory[:, :end], mean, var, growth.gradients, kind))
        growth.pieces += _weak(new)
        growth.width = end
        growth.tip, growth.given = tip, weakref.ref(given)
        self._given[given] = True
        self._given_ids.add(id(given))
        made: Tensor = given
        return made


class _Longer(torch.autograd.Function):
    """New pieces behind the tip, which lie in their places already.

    It makes the next tip, which has a history and no elements, and what the network gets.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tip: Tensor | None,
        whole: Sequence[Tensor],
        parts: Sequence[tuple[Tensor, int]],
        gradients: Gradients,
        kernels: Kernels,
        *new: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.gradients, ctx.kernels = gradients, kernels
        ctx.starts = [start for _, start in parts]
        ctx.save_for_backward(*(part for part, _ in parts))
        ctx.is_first = tip is None or not tip.requires_grad
        return tuple(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: None, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients: Gradients = ctx.gradients
        if gradient is not None:  # of others than norms
            onto, is_fresh = gradients.begun(gradient.shape[1])
            onto.copy_(gradient) if is_fresh else onto.add_(gradient)
        parts = zip(ctx.saved_tensors, ctx.starts, ctx.needs_input_grad[5:], strict=True)
        made = [gradients.taken(x, start, ctx.kernels) if needed else None for x, start, needed in parts]
        if ctx.is_first:
            gradients.end()
        return (None, None, None, None, None, *made)


def _begin(growth: _Growth, first: Tensor, capacity: int) -> None:
    growth.memory = _memory(first, first.shape, capacity)
    growth.means = first.new_empty(capacity, dtype=torch.float32)
    growth.variances = torch.empty_like(growth.means)
    growth.gradients = Gradients(first, growth.means)


def _memory(like: Tensor, shape: Sequence[int], channels: int) -> Tensor:
    count, _, *size = shape
    form = torch.channels_last
    return torch.empty(count, channels, *size, dtype=like.dtype, device=like.device, memory_format=form)


def _first(memory: Tensor, width: int) -> Tensor:
    """So many of its channels: a tensor by itself and no view, as autograd watches who writes to those."""
    count, _, *size = memory.shape
    return memory.new_empty(0).set_(memory.untyped_storage(), 0, (count, width, *size), memory.stride())


def _taken(piece: object, first: Tensor) -> bool:
    if not isinstance(piece, Tensor) or piece.ndim != 4 or piece.shape[3] == 1 or piece.is_inference():
        return False
    if not Kernels.take(piece):
        return False
    same = piece.shape[0] == first.shape[0] and piece.shape[2:] == first.shape[2:]
    return same and piece.dtype == first.dtype


def _backward_pass() -> int:
    """Which one it is: another number for every pass, and -1 outside of them."""
    return torch._C._current_graph_task_id()


def _weak(pieces: Sequence[Tensor]) -> list[tuple[weakref.ref[Tensor], int]]:
    return [(weakref.ref(piece), piece._version) for piece in pieces]
