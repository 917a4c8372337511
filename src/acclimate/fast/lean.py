"""The mode under which a network runs while it adapts: functions of torch give way to their lean forms.

Nothing of the network is swapped, so that there is nothing to undo: its modules, and the functions
that its code calls directly, are all caught where torch itself lets functions be overridden.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from acclimate.fast.activation import activations
from acclimate.fast.convolution import convolution
from acclimate.fast.norm import batch_norm
from acclimate.fast.pooling import average_pool, max_pool
from acclimate.fast.weights import Weights

__all__ = ["Lean"]


class Lean(TorchFunctionMode):
    """Within, torch's functions keep for backward only what adaptation needs."""

    def __init__(self, tricks: Collection[str]) -> None:
        super().__init__()
        self._table: dict[Callable[..., Any], Callable[..., Any]] = {}
        if "weights" in tricks:
            weights = Weights()
            kinds = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
            self._table |= {function: convolution(n, weights) for n, function in kinds.items()}
            self._table[F.linear] = weights.linear
        if "norms" in tricks:
            self._table[F.batch_norm] = batch_norm
        if "norms" in tricks or "activations" in tricks:
            self._table |= activations(again="norms" in tricks, bits="activations" in tricks)
        if "pooling" in tricks:
            self._table[F.max_pool2d] = self._table[torch.max_pool2d] = max_pool
            self._table[F.avg_pool2d] = average_pool

    def __bool__(self) -> bool:
        return bool(self._table)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        lean = self._table.get(func)
        if lean is not None:
            made = lean(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        return func(*args, **(kwargs or {}))
