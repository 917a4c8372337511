"""A pointwise convolution right before an average pooling, as dense networks have them: made behind it.

One sums over channels only, the other over pixels only, so that it does not matter which comes first; behind
the pooling there are fewer pixels to convolve. As with `fusion`, what the convolution makes is not written
until torch is called the next time, if it was seen to be pooled then, and to be needed for nothing else.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from acclimate.fast.between import Between
from acclimate.fast.weights import is_plain

__all__ = ["Exchange"]

_USUAL: Final = {"stride": 1, "padding": 0, "groups": 1}


@dataclass
class _Convolved:
    """What a convolution made, until it is clear what is made of it."""

    y: weakref.ref[Tensor]
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    is_written: bool
    is_pooled: bool = False
    between: Between = field(default_factory=lambda: Between(0))


class Exchange:
    """Knows which convolutions are pooled.

    Args:
        convolve: ``torch.conv2d``, which may leave what it makes unwritten.
        pool: ``F.avg_pool2d``; both of them NotImplemented where they cannot.
    """

    def __init__(self, convolve: Callable[..., Any], pool: Callable[..., Any]) -> None:
        self.plain, self._pool = convolve, pool
        self._is_pooled: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.waiting: _Convolved | None = None
        """While there is one, it matters what is called next."""

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *geometry: Any, **named: Any
    ) -> Any:
        """``torch.conv2d``."""
        is_pooled = self._is_pooled.get(weight) if _is_pointwise(x, weight, geometry, named) else False  # type: ignore[no-untyped-call]
        made = self.plain(x, weight, bias, *geometry, **named, is_put_off=bool(is_pooled))
        if made is not NotImplemented and is_pooled is not False:
            self._wait(_Convolved(weakref.ref(made), x, weight, bias, is_written=not is_pooled))
        return made

    def follow(self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The call behind a convolution or its pooling; NotImplemented if it is to be made as always."""
        found = self._end()
        assert found is not None
        y = found.y()
        is_hidden = found.between.calls != 0  # somebody has computed something without our being asked
        if not found.is_pooled and not is_hidden and y is not None:
            pooling = _pooling(y, function, args, named)
            if pooling is not None:
                return self._pooled(found, y, pooling)
        self._settle(found, y, is_pooled=found.is_pooled and not is_hidden and y is None)
        return NotImplemented

    def finish(self) -> None:
        """Write what is not written yet: nothing is called any more."""
        found = self._end()
        if found is not None:
            self._settle(found, found.y(), is_pooled=found.is_pooled and found.y() is None)

    def _wait(self, found: _Convolved) -> None:
        self.waiting = found
        if found.is_written:
            found.between.__enter__()  # type: ignore[no-untyped-call]

    def _end(self) -> _Convolved | None:
        found, self.waiting = self.waiting, None
        if found is not None and found.is_written:
            found.between.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return found

    def _pooled(self, found: _Convolved, y: Tensor, pooling: tuple[Any, ...]) -> Any:
        """What a convolution made, pooled; who else wants that remains to be seen."""
        if found.is_written:
            made = self._made_pooling(y, pooling)
        else:
            made = self.plain(self._made_pooling(found.x, pooling), found.weight, found.bias)
        found.is_pooled, found.between = True, Between(0)
        self._wait(found)
        return made

    def _made_pooling(self, x: Tensor, pooling: tuple[Any, ...]) -> Tensor:
        made = self._pool(x, *pooling)
        return F.avg_pool2d(x, *pooling) if made is NotImplemented else made

    def _settle(self, found: _Convolved, y: Tensor | None, *, is_pooled: bool) -> None:
        """Remember what was seen, and write what somebody wants after all."""
        self._is_pooled[found.weight] = is_pooled
        if not found.is_written and y is not None:
            with torch.no_grad():
                y.detach().copy_(self.plain(found.x.detach(), found.weight, found.bias))


def _is_pointwise(x: Tensor, weight: Tensor, geometry: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether each pixel is convolved by itself, in images that lie pixel by pixel and in no other way."""
    if (
        not is_plain(weight)
        or weight.ndim != 4
        or weight.shape[2:] != (1, 1)
        or x.ndim != 4
        or x.shape[1] != weight.shape[1]
    ):
        return False
    given = dict(zip(("stride", "padding", "dilation", "groups"), geometry, strict=False)) | named
    is_usual = all(_both(given.get(name, usual), usual) for name, usual in _USUAL.items())
    return is_usual and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _both(given: Any, value: int) -> bool:
    return given == value or (isinstance(given, (tuple, list)) and {*given} == {value})


def _pooling(
    y: Tensor, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...] | None:
    """Kernel and stride of an average pooling of ``y``, if all its windows are within the image."""
    if function is not F.avg_pool2d or (args[0] if args else named.get("input")) is not y:
        return None
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = dict(zip(names, args[1:], strict=False)) | named
    kernel = given.get("kernel_size")
    stride = given.get("stride") or kernel
    is_simple = _both(given.get("padding", 0), 0) and not given.get("ceil_mode")
    if (
        not is_simple
        or given.get("divisor_override") is not None
        or not isinstance(stride, (int, tuple, list))
    ):
        return None
    steps = (stride, stride) if isinstance(stride, int) else stride
    return (kernel, stride) if math.prod(steps) > 1 else None
