"""A pointwise convolution right before an average pooling, as dense networks have them: made behind it.

One sums over channels only, the other over pixels only, so that it does not matter which comes first; behind
the pooling there are fewer pixels to convolve. As with `fusion`, what the convolution makes is not written
until torch is called the next time, if it was seen to be pooled then, and to be needed for nothing else.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from acclimate.fast.between import Between
from acclimate.fast.weights import is_plain

__all__ = ["Exchange"]

_USUAL: Final = {"stride": 1, "padding": 0, "groups": 1}


class _Surroundings(NamedTuple):
    """What a call depends on and no call tells."""

    history: object
    """Of what was made: a function of the network's own may put another one onto it."""
    autocast: tuple[bool, torch.dtype]
    learns: tuple[bool, bool]

    @classmethod
    def of(cls, y: Tensor) -> _Surroundings:
        kind = y.device.type
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        return cls(y.grad_fn, autocast, (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))


@dataclass
class _Convolved:
    """What a convolution made, until it is clear what is made of it."""

    y: weakref.ref[Tensor]
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    surroundings: _Surroundings
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
            surroundings = _Surroundings.of(made)
            self._wait(_Convolved(weakref.ref(made), x, weight, bias, surroundings, not is_pooled))
        return made

    def follow(self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The call behind a convolution or its pooling; NotImplemented if it is to be made as always."""
        found = self._end()
        assert found is not None
        y = found.y()
        is_hidden = found.between.calls != 0  # somebody has computed something without our being asked
        if not found.is_pooled and not is_hidden and y is not None:
            pooling = _pooling(y, function, args, named)
            if pooling is not None and _Surroundings.of(y) == found.surroundings:
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
            found.between = Between(0)
            self._wait(found)
        else:
            self._wait(found)  # already now: should there be no memory left, it is written after all
            made = self.plain(self._made_pooling(found.x, pooling), found.weight, found.bias)
        found.is_pooled = True
        return made

    def _made_pooling(self, x: Tensor, pooling: tuple[Any, ...]) -> Tensor:
        made = self._pool(x, *pooling)
        return F.avg_pool2d(x, *pooling) if made is NotImplemented else made

    def _settle(self, found: _Convolved, y: Tensor | None, *, is_pooled: bool) -> None:
        """Remember what was seen, and write what somebody wants after all."""
        self._is_pooled[found.weight] = is_pooled
        if found.is_written or y is None:
            return
        enabled, dtype = found.surroundings.autocast
        with torch.no_grad(), torch.autocast(y.device.type, dtype, enabled):
            y.detach().copy_(self.plain(found.x.detach(), found.weight, found.bias))


def _is_pointwise(x: Tensor, weight: Tensor, geometry: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether each pixel is convolved by itself, in images that lie pixel by pixel and in no other way."""
    if not is_plain(weight) or weight.ndim != 4 or weight.shape[2:] != (1, 1):
        return False
    if x.ndim != 4 or x.shape[1] != weight.shape[1]:
        return False
    given = dict(zip(("stride", "padding", "dilation", "groups"), geometry, strict=False)) | named
    if not all(_pair(given.get(name, usual)) == (usual, usual) for name, usual in _USUAL.items()):
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _pooling(
    y: Tensor, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...] | None:
    """Kernel and stride of an average pooling of ``y``, if all its windows are within the image.

    None where torch has an error to tell, too.
    """
    if function is not F.avg_pool2d or (args[0] if args else named.get("input")) is not y:
        return None
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = dict(zip(names, args[1:], strict=False)) | named
    kernel, padding = _pair(given.get("kernel_size")), _pair(given.get("padding", 0))
    stride = given.get("stride")
    steps = kernel if stride is None or stride == [] else _pair(stride)
    if padding != (0, 0) or given.get("ceil_mode") or given.get("divisor_override") is not None:
        return None
    if kernel is None or steps is None or min(*kernel, *steps) < 1 or steps == (1, 1):
        return None
    return (kernel, steps) if kernel[0] <= y.shape[2] and kernel[1] <= y.shape[3] else None


def _pair(value: Any) -> tuple[int, int] | None:
    """Of a number for both sides or one for each."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    both = given * 2 if len(given) == 1 else given
    return both if len(both) == 2 and all(isinstance(n, int) for n in both) else None
