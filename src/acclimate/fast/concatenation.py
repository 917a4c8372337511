"""Concatenations that grow piece by piece, as dense blocks make them, in memory that all of them share.

A dense block concatenates its first piece, then the first two, then the first three: torch copies all of
them every time, keeps every copy, and adds up the gradients of every copy. Here a piece is copied once,
next to those before it, its statistics are taken once, and the norms behind all those concatenations add
their gradients up in one place.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from acclimate.fast.native import Kernels

__all__ = ["Concatenations", "Gradients", "Joined", "joined"]

_NOTE: Final = "_acclimate_joined"
"""Attribute by which a concatenation remembers what it was made of."""


class Gradients:
    """Of all concatenations in the same memory, added up while backward goes from the last to the first."""

    def __init__(self, like: Tensor, mean: Tensor) -> None:
        self._like, self._shape = like.new_empty(0), like.shape
        self._mean = mean
        self._sum: Tensor | None = None
        self._slope = self._constant = mean

    def begun(self, width: int) -> Tensor:
        """The sum over the first channels, to add to."""
        if self._sum is None:
            self._sum = _memory(self._like, self._shape, len(self._mean)).zero_()
            self._slope, self._constant = torch.zeros(2, len(self._mean)).unbind()
        return self._sum[:, :width]

    def add_rest(self, mean: Tensor, slope: Tensor, constant: Tensor) -> None:
        """To the first channels of the sum, slope * (x - mean) + constant: done when a piece is complete."""
        width = len(slope)
        self._slope[:width] += slope
        self._constant[:width] += constant + slope * (self._mean[:width] - mean)

    def taken(self, x: Tensor, start: int, kernels: Kernels) -> Tensor | None:
        """The gradient of the piece ``x``, whose channels begin at ``start``; None if nothing was added."""
        if self._sum is None:
            return None
        channels = slice(start, start + x.shape[1])
        rest = self._slope[channels], self._constant[channels]
        return kernels.finished(x, self._sum[:, channels], self._mean[channels], rest)

    def end(self) -> None:
        """Every piece has had its own."""
        self._sum = None


@dataclass(frozen=True)
class Joined:
    """A concatenation in shared memory."""

    x: Tensor
    """Its elements, without a history."""
    mean: Tensor
    var: Tensor
    """Of its channels."""
    gradients: Gradients
    version: int


def joined(x: Tensor) -> Joined | None:
    """What is known of a concatenation that nobody has changed or wants to hear the gradient of."""
    note = getattr(x, _NOTE, None)
    if not isinstance(note, Joined) or note.version != x._version:
        return None
    return None if x._backward_hooks or x.retains_grad else note


@dataclass
class _Growth:
    """The longest concatenation so far that begins with a certain piece."""

    pieces: list[tuple[weakref.ref[Tensor], int]]
    """With their versions."""
    memory: Tensor | None = None
    """Of all channels that there will be."""
    statistics: Tensor = field(default_factory=lambda: torch.empty(2, 0))
    gradients: Gradients | None = None
    width: int = 0
    tip: Tensor | None = None
    version: int = 0
    given: weakref.ref[Tensor] | None = None
    """What the network has of the tip: as long as it lives, the network might write to it."""

    def begins(self, pieces: Sequence[Tensor]) -> bool:
        """Whether these are the same pieces and more."""
        pairs = zip(self.pieces, pieces, strict=False)
        same = all(old() is new and version == new._version for (old, version), new in pairs)
        return same and len(self.pieces) < len(pieces)

    def is_free(self) -> bool:
        """Whether pieces can be added without anybody noticing."""
        untouched = self.tip is not None and self.tip._version == self.version
        return untouched and self.given is not None and self.given() is None


class Concatenations:
    """``torch.cat`` along the channels of images on a CPU."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._widths: dict[tuple[object, ...], int] = {}
        """What a piece of this shape was seen to grow to: the first pass is torch's."""
        self._growths: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def cat(self, tensors: Any, dim: int = 0, *, out: Tensor | None = None) -> Any:
        """NotImplemented where torch's own will do, or has an error to tell."""
        if out is not None or dim not in (1, -3) or not torch.is_grad_enabled():
            return NotImplemented
        pieces = tuple(tensors)
        if not pieces or not all(_taken(piece, pieces[0]) for piece in pieces):
            return NotImplemented
        width = sum(piece.shape[1] for piece in pieces)
        kind = (pieces[0].dtype, *pieces[0].shape[1:])
        growth: _Growth | None = self._growths.get(pieces[0])  # type: ignore[no-untyped-call]
        if growth is None or not growth.begins(pieces):
            growth = self._growths[pieces[0]] = _Growth([])
            if self._widths.get(kind, 0) > width and any(piece.requires_grad for piece in pieces):
                _begin(growth, pieces[0], self._widths[kind])
        else:
            self._widths[kind] = max(width, self._widths.get(kind, 0))
        if growth.memory is not None:
            fits = width <= growth.memory.shape[1] and (growth.tip is None or growth.is_free())
            if fits:
                return self._grown(growth, pieces)
            growth.memory = growth.tip = None
        growth.pieces = _weak(pieces)
        return NotImplemented

    def forget(self) -> None:
        """Whatever has grown in this pass."""
        self._growths.clear()

    def _grown(self, growth: _Growth, pieces: Sequence[Tensor]) -> Tensor:
        assert growth.memory is not None
        assert growth.gradients is not None
        new = pieces[len(growth.pieces) :]
        parts, end = [], growth.width
        for piece in new:
            start, end = end, end + piece.shape[1]
            part = _part(growth.memory, start, end)
            self._kernels.place(piece.detach(), part)
            mean, var = growth.statistics[:, start:end]
            self._kernels.statistics(piece.detach(), mean, var)
            parts.append((part, start))
        whole = _part(growth.memory, 0, end)
        tip: Tensor = _Longer.apply(growth.tip, (whole,), parts, growth.gradients, self._kernels, *new)  # type: ignore[no-untyped-call]
        given = tip.view_as(tip)
        mean, var = growth.statistics[:, :end]
        setattr(
            given, _NOTE, Joined(_part(growth.memory, 0, end), mean, var, growth.gradients, given._version)
        )
        growth.pieces, growth.width = _weak(pieces), end
        growth.tip, growth.version, growth.given = tip, tip._version, weakref.ref(given)
        return given


class _Longer(torch.autograd.Function):
    """The tip and new pieces behind it, all of which lie in their places already."""

    @staticmethod
    def forward(
        ctx: Any,
        tip: Tensor | None,
        whole: tuple[Tensor],
        parts: Sequence[tuple[Tensor, int]],
        gradients: Gradients,
        kernels: Kernels,
        *new: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.gradients, ctx.kernels = gradients, kernels
        ctx.starts = [start for _, start in parts]
        ctx.save_for_backward(*(part for part, _ in parts))
        ctx.is_first = tip is None or not tip.requires_grad
        return whole[0]  # wrapped, as it is no input

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients: Gradients = ctx.gradients
        if gradient is not None:  # of others than norms
            gradients.begun(gradient.shape[1]).add_(gradient)
        parts = zip(ctx.saved_tensors, ctx.starts, ctx.needs_input_grad[5:], strict=True)
        made = [gradients.taken(x, start, ctx.kernels) if needed else None for x, start, needed in parts]
        if ctx.is_first:
            gradients.end()
        return (None, None, None, None, None, *made)


def _begin(growth: _Growth, first: Tensor, capacity: int) -> None:
    growth.memory = _memory(first, first.shape, capacity)
    growth.statistics = torch.empty(2, capacity)
    growth.gradients = Gradients(first, growth.statistics[0])


def _memory(like: Tensor, shape: Sequence[int], channels: int) -> Tensor:
    count, _, *size = shape
    return torch.empty(count, channels, *size, dtype=like.dtype, memory_format=torch.channels_last)


def _part(memory: Tensor, start: int, end: int) -> Tensor:
    """Some channels of it: a tensor by itself and no view, as autograd watches what is written to those."""
    shape = (len(memory), end - start, *memory.shape[2:])
    return memory.new_empty(0).set_(memory.untyped_storage(), start, shape, memory.stride())


def _taken(piece: object, first: Tensor) -> bool:
    if not isinstance(piece, Tensor) or piece.ndim != 4 or not Kernels.take(piece) or piece.shape[3] == 1:
        return False
    same = piece.shape[0] == first.shape[0] and piece.shape[2:] == first.shape[2:]
    return same and piece.dtype == first.dtype


def _weak(pieces: Sequence[Tensor]) -> list[tuple[weakref.ref[Tensor], int]]:
    return [(weakref.ref(piece), piece._version) for piece in pieces]
