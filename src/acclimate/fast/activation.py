"""Activations that keep next to nothing: behind a norm its output is made again, elsewhere a bit is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.fast.bits import pack, unpack
from acclimate.fast.layout import is_dense
from acclimate.fast.norm import made_by_norm, output_again

__all__ = ["activations"]

_aten: Final = torch.ops.aten


@dataclass(frozen=True)
class _Activation:
    """An activation with its options."""

    forward: Callable[[Tensor], Tensor]
    forward_: Callable[[Tensor], Tensor]
    """The same in place."""
    backward: Callable[[Tensor, Tensor], Tensor]
    """From the gradient and from what went in."""
    bounds: tuple[float, float] | None = None
    """What comes out lies between these where the derivative is 1; elsewhere the derivative is ``slope``."""
    slope: float = 0.0


def _relu() -> _Activation:
    bounds = (0.0, float("inf"))
    return _Activation(torch.relu, torch.relu_, lambda g, y: _aten.threshold_backward(g, y, 0), bounds)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0) -> _Activation:
    return _Activation(
        lambda y: F.hardtanh(y, min_val, max_val),
        lambda y: F.hardtanh(y, min_val, max_val, inplace=True),
        lambda g, y: _aten.hardtanh_backward(g, y, min_val, max_val),
        (min_val, max_val),
    )


def _relu6() -> _Activation:
    return _hardtanh(0.0, 6.0)


def _leaky_relu(negative_slope: float = 0.01) -> _Activation:
    return _Activation(
        lambda y: F.leaky_relu(y, negative_slope),
        lambda y: F.leaky_relu(y, negative_slope, inplace=True),
        lambda g, y: _aten.leaky_relu_backward(g, y, negative_slope, False),
        (0.0, float("inf")) if negative_slope > 0 else None,
        negative_slope,
    )


def _silu() -> _Activation:
    return _Activation(F.silu, lambda y: F.silu(y, inplace=True), _aten.silu_backward)


def _hardswish() -> _Activation:
    return _Activation(F.hardswish, lambda y: F.hardswish(y, inplace=True), _aten.hardswish_backward)


_ROWS: Final[dict[Callable[..., Any], tuple[Callable[..., _Activation], bool]]] = {
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


def activations(*, again: bool, bits: bool) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Lean forms of torch's activations: ``again`` of those behind a norm, ``bits`` of all others."""
    return {function: _lean(*row, again=again, bits=bits) for function, row in _ROWS.items()}


def _lean(make: Callable[..., _Activation], in_place: bool, *, again: bool, bits: bool) -> Callable[..., Any]:
    def lean(y: Tensor, *options: Any, inplace: bool = in_place, **named: Any) -> Any:
        if not y.requires_grad:
            return NotImplemented
        node = made_by_norm(y) if again else None
        chosen = make(*options, **named)
        if node is None and not (bits and chosen.bounds is not None and is_dense(y)):
            return NotImplemented
        kind = _KeepsBits if node is None else _MadeAgain
        return kind.apply(y, chosen, inplace, node)  # type: ignore[no-untyped-call]

    return lean


class _MadeAgain(torch.autograd.Function):
    """Of what a norm gave, which is not kept."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, chosen: _Activation, inplace: bool, node: Any) -> Tensor:
        ctx.chosen, ctx.node = chosen, node
        return _applied(ctx, y, chosen, inplace)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.chosen.backward(gradient, output_again(ctx.node)), None, None, None


class _KeepsBits(torch.autograd.Function):
    """Of anything else: a bit tells which of its two derivatives an element has."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, chosen: _Activation, inplace: bool, node: None) -> Tensor:
        z = _applied(ctx, y, chosen, inplace)
        assert chosen.bounds is not None
        ctx.save_for_backward(pack(_inside(_flat(z), *chosen.bounds)))
        ctx.shape, ctx.stride, ctx.slope = z.shape, z.stride(), chosen.slope
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (bits,) = ctx.saved_tensors
        mask = unpack(bits, ctx.shape.numel()).to(gradient.dtype).as_strided(ctx.shape, ctx.stride)
        if ctx.slope == 0:
            return _aten.threshold_backward(gradient, mask, 0), None, None, None
        return _aten.leaky_relu_backward(gradient, mask, ctx.slope, False), None, None, None


def _applied(ctx: Any, y: Tensor, chosen: _Activation, inplace: bool) -> Tensor:
    if not inplace:
        return chosen.forward(y)
    ctx.mark_dirty(y)
    return chosen.forward_(y)


def _flat(z: Tensor) -> Tensor:
    return z.as_strided((z.numel(),), (1,))


def _inside(z: Tensor, low: float, high: float) -> Tensor:
    if z.device.type != "cpu" or z.dtype not in _INTEGERS:
        return (z > low) & (z < high)
    # Numbers above 0 are ordered as their bit patterns are, which numpy compares several times faster.
    if low != 0:
        return (z > low) & (z < high)
    integer = _INTEGERS[z.dtype]
    pattern = z.view(integer).numpy()
    inside = pattern > 0
    if high != float("inf"):
        inside &= pattern < int(torch.tensor(high, dtype=z.dtype).view(integer))
    return torch.from_numpy(inside)


_INTEGERS: Final = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
