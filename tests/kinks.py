"""One step of an adapter, and on which side of its kink each unit was.

The gradient of a network with ReLUs jumps where a unit crosses zero. Two computations that round differently
put a few units in a million on different sides, and then their gradients differ by far more than by rounding.
Whether both compute the same is seen once they have all units on the same sides. (Which of its inputs a max
pooling takes is not held: where two are equal but for rounding, either gradient is right.)

Used by `test_agreement.py` and by `benchmarks/agreement.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from acclimate import Adapter

_RELU = (0.0, math.inf)
_KINKS: dict[Callable[..., Any], tuple[float, float]] = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _RELU),
    F.relu6: (0.0, 6.0),
    F.hardtanh: (-1.0, 1.0),
}
"""Functions with a kink at both bounds, and those bounds unless they are given."""


class Side(NamedTuple):
    """Of the units of one call, which are between the bounds, and which above, if there is such a bound."""

    inside: Tensor
    above: Tensor | None


class Way(NamedTuple):
    """How a step is computed."""

    fast: bool | Collection[str] = True
    dtype: torch.dtype = torch.float32
    onednn: bool = True


class Step(NamedTuple):
    """What came of it, in float64."""

    logits: Tensor
    gradient: Tensor
    parameters: Tensor
    """After the update."""
    sides: list[Side]
    turned: int
    """Units that were held on the other side of their kink than they would have been on."""


class _Watch(TorchFunctionMode):
    """Notes sides; or, if some are given, holds every unit on its own."""

    def __init__(self, held: list[Side] | None) -> None:
        super().__init__()
        self.sides: list[Side] = []
        self._held: Iterator[Side] | None = None if held is None else iter(held)
        self.turned = 0

    @property
    def is_done(self) -> bool:
        """Whether all sides that were given have been used."""
        return self._held is None or next(self._held, None) is None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func not in _KINKS:
            return func(*args, **named)
        low, high = _KINKS[func]
        low, high = named.get("min_val", low), named.get("max_val", high)  # torch hands them on by name
        if self._held is None:
            made = func(*args, **named)
            self.sides.append(_side(made, low, high))
            return made
        own, held = _side(args[0], low, high), next(self._held)
        self.turned += int((own.inside != held.inside).sum())
        rest = low if held.above is None else torch.where(held.above, high, low).to(args[0].dtype)
        return torch.where(held.inside, args[0], rest)


def _side(x: Tensor, low: float, high: float) -> Side:
    x = x.detach().contiguous()
    return Side(x > low, None) if high == math.inf else Side((x > low) & (x < high), x >= high)


def step(
    model: nn.Module,
    images: Tensor,
    way: Way,
    *,
    method: str = "tent",
    normalize: Any = None,
    watched: bool = True,
    held: list[Side] | None = None,
) -> Step:
    """A first step by SGD, long enough to be seen; where sides are held, they are those of an earlier one."""
    watch = _Watch(held)
    with nullcontext() if way.onednn else torch.backends.mkldnn.flags(enabled=False):
        # without a rehearsal, so that the network runs once
        own = copy.deepcopy(model).to(way.dtype)
        options: dict[str, Any] = {"optimizer": "sgd", "lr": 1.0, "guard": False, "memory": "off"}
        adapter = Adapter(
            own, method, normalize=normalize, fast=way.fast, **{"statistics": "batch", **options}
        )
        network = adapter._engine.network.model
        if watched:
            network.register_forward_pre_hook(lambda *_: watch.__enter__() and None)
            network.register_forward_hook(lambda *_: watch.__exit__(None, None, None))
        logits = adapter(images.to(way.dtype).contiguous())  # the plain loop goes plane by plane
    assert watch.is_done, "sides are left over"
    parameters = adapter._engine.parameters.values()
    gradients = [p.grad.flatten().double() for p in parameters if p.grad is not None]
    updated = [p.detach().flatten().double() for p in parameters]
    return Step(logits.double(), torch.cat(gradients), torch.cat(updated), watch.sides, watch.turned)


def error(found: Tensor, right: Tensor) -> float:
    """The largest there is, relative to values of more than 1."""
    return float(((found - right).abs() / right.abs().clamp(min=1)).max())


def errors(found: Step, right: Step) -> dict[str, float]:
    """Of all that came of a step; that of a gradient relative to its largest element."""
    return {
        "logits": error(found.logits, right.logits),
        "gradient": float((found.gradient - right.gradient).abs().max() / right.gradient.abs().max()),
        "parameters": error(found.parameters, right.parameters),
    }
