"""Frozen weights in the form that the kernels want: made once, as they never change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Weights"]


class Weights:
    """Remembers what it made of each weight."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str, torch.dtype], _Kept] = {}
        self._own: set[int] = set()
        """Ids of what was made and is kept."""

    def cast(self, weight: Tensor) -> Tensor:
        """A frozen weight in the precision that autocast asks for, if it does."""
        if not _wants_cast(weight):
            return weight
        dtype = torch.get_autocast_dtype(weight.device.type)
        return self._kept(weight, "cast", dtype, lambda: _as_kernels_take_it(weight.to(dtype)))

    def laid_out(self, weight: Tensor) -> Tensor:
        """A convolution's weight pixel by pixel, as its input lies: torch would do it anew in each pass."""
        form = torch.channels_last
        if weight.is_contiguous(memory_format=form):
            return weight
        return self._kept(weight, "laid out", weight.dtype, lambda: weight.contiguous(memory_format=form))

    def flipped(self, weight: Tensor) -> Tensor:
        """A convolution's weight turned round in all its spatial dimensions."""
        return self._kept(weight, "flipped", weight.dtype, lambda: weight.flip(*range(2, weight.ndim)))

    def for_autocast(self, x: Tensor) -> Tensor:
        """An activation in that precision."""
        return x.to(torch.get_autocast_dtype(x.device.type)) if _wants_cast(x) else x

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """``F.linear`` with a weight that is cast only once; torch keeps no input for a frozen weight."""
        if weight.requires_grad or (bias is not None and bias.requires_grad) or not _wants_cast(weight):
            return NotImplemented
        return F.linear(self.for_autocast(x), self.cast(weight), None if bias is None else self.cast(bias))

    def _kept(self, weight: Tensor, form: str, dtype: torch.dtype, make: Callable[[], Tensor]) -> Tensor:
        key = (id(weight), form, dtype)
        kept = self._made.get(key)
        if kept is not None:
            if kept.state == _state(weight):
                return kept.made
            self._own.discard(id(kept.made))
        with torch.no_grad():
            made = make()
        # Some layers compute their weight for every pass: what is made of such a one is not worth keeping.
        if isinstance(weight, nn.Parameter) or id(weight) in self._own:
            self._made[key] = _Kept(weight, _state(weight), made)
            self._own.add(id(made))
        return made


class _Kept(NamedTuple):
    weight: Tensor
    """Lives as long as what was made of it, so that its id stays its own."""
    state: tuple[int, int]
    made: Tensor


def _state(weight: Tensor) -> tuple[int, int]:
    """Another one when somebody has written other values into a weight."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _wants_cast(x: Tensor) -> bool:
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return False
    return x.is_floating_point() and x.dtype not in (torch.float64, torch.get_autocast_dtype(device))


def _as_kernels_take_it(weight: Tensor) -> Tensor:
    is_image_kernel = weight.ndim == 4 and weight.device.type == "cpu"
    return weight.contiguous(memory_format=torch.channels_last) if is_image_kernel else weight
