"""The mode under which a network runs while it adapts: functions of torch give way to their lean forms.

Nothing of the network is swapped, so that there is nothing to undo: its modules, and the functions
that its code calls directly, are all caught where torch itself lets functions be overridden.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from acclimate.fast.activation import ACTIVATIONS, Activation, OneBit
from acclimate.fast.checkpointed import is_checkpointed
from acclimate.fast.concatenation import Concatenations
from acclimate.fast.convolution import convolution
from acclimate.fast.exchange import Exchange
from acclimate.fast.fusion import Fusion
from acclimate.fast.group_norm import GroupNorms
from acclimate.fast.native import native_kernels
from acclimate.fast.norm import Norms
from acclimate.fast.pooling import Pools
from acclimate.fast.trained import Trained
from acclimate.fast.weights import Weights
from acclimate.ranks import ALONE, Ranks

__all__ = ["Lean"]

_ATTRIBUTES: Final = ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "grad_fn", "layout")
"""By which nobody gets at the elements of a tensor."""
_LOOKS: Final = frozenset(
    {
        *(F.batch_norm, Tensor.dim, Tensor.size, Tensor.__len__, Tensor.numel),
        *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES),
    }
)
"""Functions that neither write to a tensor nor hand it on."""


class Lean(TorchFunctionMode):
    """Within, torch's functions keep for backward only what adaptation needs."""

    def __init__(self, tricks: Collection[str], ranks: Ranks = ALONE) -> None:
        super().__init__()
        self._tricks, self._ranks = tuple(tricks), ranks
        self.in_parts = 0
        """How many parts are being run that will be run again, and must keep the same then."""
        self._table: dict[Callable[..., Any], Callable[..., Any]] = {}
        if "weights" in tricks:
            has_winograd = {"winograd", "native"} <= set(tricks)
            weights = Weights(packs="packing" in tricks, winograd=has_winograd)
            trained = Trained(winograd=has_winograd) if {"trained", "native"} <= set(tricks) else None
            self._table[torch.conv1d], self._table[torch.conv3d] = (convolution(n, weights) for n in (1, 3))
            self._table[torch.conv2d] = convolution(2, weights, trained)
            self._table[F.linear] = weights.linear
        one_bit = OneBit(native="native" in tricks) if "activations" in tricks else None
        is_native = {"norms", "native"} <= set(tricks)
        self._fusion = Fusion(one_bit) if is_native and "fusion" in tricks else None
        if "norms" in tricks or ranks.synchronised:
            norms = Norms(native=is_native, fusion=self._fusion, ranks=ranks)
            self._table[F.batch_norm] = norms.batch_norm
        kernels = native_kernels() if is_native and "concatenations" in tricks else None
        self._concatenations = None if kernels is None else Concatenations(kernels)
        if self._concatenations is not None:
            self._table[torch.cat] = self._cat
        forms: list[Callable[..., Any]] = [Norms.activated, GroupNorms.activated] if "norms" in tricks else []
        forms += [one_bit.activated] if one_bit is not None else []
        if forms:
            self._table |= {function: _activation(*row, forms) for function, row in ACTIVATIONS.items()}
        if "layout" in tricks:
            self._table[F.group_norm] = GroupNorms(native=is_native).group_norm
        if "pooling" in tricks:
            pools = Pools(native="native" in tricks)
            self._table |= {F.max_pool2d: pools.max_pool, torch.max_pool2d: pools.max_pool}
            self._table[F.avg_pool2d] = pools.average_pool
        self._exchange: Exchange | None = None
        if {"weights", "pooling", "exchange"} <= set(tricks):
            self._exchange = Exchange(self._table[torch.conv2d], self._table[F.avg_pool2d])
            self._table[torch.conv2d] = self._conv2d

    def __reduce__(self) -> tuple[type[Lean], tuple[tuple[str, ...], Ranks]]:
        """A copy has kernels and weights of its own."""
        return Lean, (self._tricks, self._ranks)

    def __bool__(self) -> bool:
        return bool(self._table)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._fusion is not None:
            self._fusion.finish()
        if self._exchange is not None:
            self._exchange.finish()
        if self._concatenations is not None:
            self._concatenations.forget()

    @contextmanager
    def in_part(self) -> Iterator[None]:
        """Like ``with`` itself, for a part that is run again."""
        self.in_parts += 1
        try:
            with self:
                yield
        finally:
            self.in_parts -= 1

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        shared, exchange, fusion = self._concatenations, self._exchange, self._fusion
        if shared is not None and shared.is_shared and func not in _LOOKS:
            shared.part_with(args)
            if named:
                shared.part_with(named.values())
        if exchange is not None and exchange.waiting is not None:
            made = exchange.follow(func, args, named)
            if made is not NotImplemented:
                return made
        if fusion is not None and fusion.watched is not None:
            made = fusion.follow(func, args, named)
            if made is not NotImplemented:
                return made
        lean = self._table.get(func)
        if lean is not None and (self._ranks.synchronised or not is_checkpointed()):
            if "input" in named:
                others = {name: value for name, value in named.items() if name != "input"}
                made = lean(named["input"], *args, **others)
            else:
                made = lean(*args, **named)
            if made is not NotImplemented:
                return made
        return func(*args, **named)

    def _conv2d(self, *args: Any, **named: Any) -> Any:
        assert self._exchange is not None
        return (self._exchange.plain if self.in_parts else self._exchange.convolve)(*args, **named)

    def _cat(self, *args: Any, **named: Any) -> Any:
        assert self._concatenations is not None
        return NotImplemented if self.in_parts else self._concatenations.cat(*args, **named)


def _activation(
    make: Callable[..., Activation], in_place: bool, forms: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    """An activation in the first of the lean forms that it can take."""

    def lean(y: Tensor, *options: Any, inplace: bool = in_place, **named: Any) -> Any:
        if not y.requires_grad or not torch.is_grad_enabled():
            return NotImplemented
        activation = make(*options, **named)
        for form in forms:
            made = form(y, activation, inplace=inplace)
            if made is not NotImplemented:
                return made
        return NotImplemented

    return lean
