"""The kernels of `kernels.c`, compiled once for this machine by its own C compiler, if it has one.

torch makes eight passes over an activation for a batch norm with a ReLU, forward and backward; these
make four. Without a compiler nothing is lost but time: torch's own functions do the same.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from acclimate.fast.compiling import compiled
from acclimate.fast.recycling import room_like

__all__ = ["UNBOUNDED", "Kernels", "Line", "bits_of", "native_kernels"]

UNBOUNDED: Final = (-float("inf"), float("inf"))

_DEFINED: Final = {torch.float32: (), torch.bfloat16: ("-DBF16",)}
"""What the source is compiled with for each type of its elements."""


class Line(NamedTuple):
    """What a norm does to each channel: weight * (x - mean) / sqrt(var + eps) + bias, all in float32."""

    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    var: Tensor
    eps: float

    def given(self) -> tuple[int | None, int | None, int, int, float]:
        """As a kernel takes it."""
        weight, bias, mean, var, eps = self
        return _place(weight), _place(bias), mean.data_ptr(), var.data_ptr(), eps


class Kernels:
    """Calls them with tensors, of which it trusts shape and layout."""

    def __init__(self, libraries: Mapping[torch.dtype, ctypes.CDLL]) -> None:
        pointer, number, value = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
        size, bounds, line = (number, number), (value, value), (*[pointer] * 4, value)
        kinds: dict[str, tuple[Any, ...]] = {
            "statistics": (pointer, *size, *[pointer] * 4, value),
            "forward": (pointer, number, *[pointer] * 2, *size, *line, *bounds, pointer),
            "sums": (pointer, number, *[pointer] * 2, ctypes.c_int, *size, *line, *bounds, *[pointer] * 3),
            "rest": (pointer, value, pointer, number, pointer, ctypes.c_double, *[pointer] * 2),
            "backward": (*[pointer] * 3, *size, *line, *bounds, *[pointer] * 3),
            "gradients": (*[pointer] * 3, *size, *line, *bounds, pointer, ctypes.c_double, *[pointer] * 2),
            "group_forward": (*[pointer] * 2, *[number] * 4, *[pointer] * 2, value, *[pointer] * 2),
            "group_gradients": (*[pointer] * 3, *[number] * 4, *line, *bounds, *[pointer] * 2),
            "finished": (*[pointer] * 2, number, pointer, *size, *[pointer] * 3),
            "place": (*[pointer] * 2, number, *size),
            "pack": (pointer, number, pointer, *bounds),
            "clamped": (pointer, number, pointer, *bounds),
            "masked": (*[pointer] * 3, number, value),
        }
        self._functions: dict[tuple[str, torch.dtype], Any] = {}
        for dtype, library in libraries.items():
            for kind, arguments in kinds.items():
                function = getattr(library, kind)
                function.argtypes, function.restype = arguments, ctypes.c_int
                self._functions[kind, dtype] = function

    def statistics(
        self,
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        running: tuple[Tensor, Tensor] | tuple[None, None] = (None, None),
        momentum: float = 0.0,
    ) -> None:
        """Write mean and variance of every channel, and move the running ones towards them."""
        made, moved = (mean.data_ptr(), var.data_ptr()), map(_place, running)
        self._call("statistics", x, *_size(x), *made, *moved, momentum)

    def forward(
        self,
        x: Tensor,
        line: Line,
        made: Tensor,
        *,
        bounds: tuple[float, float] = UNBOUNDED,
        other: Tensor | None = None,
        bits: Tensor | None = None,
    ) -> None:
        """Write into ``made``: line(x) + other, within bounds, with a bit for each element between them."""
        places = _place(other), made.data_ptr()
        self._call("forward", x, _step(x), *places, *_size(x), *line.given(), *bounds, _place(bits))

    def sums(
        self,
        x: Tensor,
        gradient: Tensor,
        line: Line,
        bounds: tuple[float, float],
        onto: Tensor | None = None,
        *,
        fresh: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of a gradient, where line(x) is within bounds: its sum over that of it times x - mean.

        Also the gradients of weight and bias that they come to. ``onto``, which lies as ``x`` does, gets
        more by what goes straight through the line; if it is fresh, that only.
        """
        total = x.new_empty(2, x.shape[1], dtype=torch.float64)
        in_weight, in_bias = torch.empty_like(line.mean), torch.empty_like(line.mean)
        places, made = (gradient.data_ptr(), _place(onto)), (in_weight.data_ptr(), in_bias.data_ptr())
        size = _size(x)
        self._call(
            "sums", x, _step(x), *places, fresh, *size, *line.given(), *bounds, total.data_ptr(), *made
        )
        return total, in_weight, in_bias

    def rest(self, line: Line, total: Tensor, part: float) -> Tensor:
        """Slope over constant of the gradient that goes through the statistics, from `sums`."""
        made = torch.empty_like(total, dtype=torch.float32)
        given = _place(line.weight), total.shape[1], total.data_ptr(), part
        self._call("rest", line.var, line.eps, *given, *_rows(made))
        return made

    def backward(
        self,
        x: Tensor,
        gradient: Tensor,
        line: Line,
        bounds: tuple[float, float],
        mean: Tensor,
        rest: Tensor,
    ) -> Tensor:
        """The gradient of x: that which goes straight through the line, and slope * (x - mean) + constant."""
        made = room_like(x)
        places, given = (gradient.data_ptr(), made.data_ptr()), line.given()
        self._call("backward", x, *places, *_size(x), *given, *bounds, mean.data_ptr(), *_rows(rest))
        return made

    def gradients(
        self,
        x: Tensor,
        gradient: Tensor,
        line: Line,
        bounds: tuple[float, float],
        mean: Tensor,
        part: float,
        *,
        wants_x: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Those of x, of weight and of bias: `sums`, `rest` and `backward` in one call."""
        made = room_like(x) if wants_x else None
        in_weight, in_bias = torch.empty_like(line.mean), torch.empty_like(line.mean)
        places, size = (gradient.data_ptr(), _place(made)), _size(x)
        results = (mean.data_ptr(), part, in_weight.data_ptr(), in_bias.data_ptr())
        self._call("gradients", x, *places, *size, *line.given(), *bounds, *results)
        return made, in_weight, in_bias

    def group_forward(self, x: Tensor, groups: int, line: Line, made: Tensor) -> None:
        """Write into ``made`` the group norm of x, and its statistics of every image into the line's."""
        weight, bias, mean, var, eps = line
        parameters, statistics = (_place(weight), _place(bias)), (mean.data_ptr(), var.data_ptr())
        size = _images(x)
        self._call("group_forward", x, made.data_ptr(), *size, groups, *parameters, eps, *statistics)

    def group_gradients(
        self,
        x: Tensor,
        gradient: Tensor,
        groups: int,
        line: Line,
        bounds: tuple[float, float],
        *,
        wants_x: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Those of x, of weight and of bias."""
        made = room_like(x) if wants_x else None
        in_weight, in_bias = line.mean.new_empty(2, x.shape[1]).unbind()
        places, results = (gradient.data_ptr(), _place(made)), (in_weight.data_ptr(), in_bias.data_ptr())
        size = _images(x)
        self._call("group_gradients", x, *places, *size, groups, *line.given(), *bounds, *results)
        return made, in_weight, in_bias

    def finished(self, x: Tensor, gradient: Tensor, mean: Tensor, rest: Tensor) -> Tensor:
        """Gradient + slope * (x - mean) + constant, of two that lie in the same way."""
        made = room_like(x)
        places = gradient.data_ptr(), _step(x), made.data_ptr()
        self._call("finished", x, *places, *_size(x), mean.data_ptr(), *_rows(rest))
        return made

    def place(self, x: Tensor, made: Tensor) -> None:
        """Copy what lies pixel by pixel to where pixels lie further apart."""
        self._call("place", x, made.data_ptr(), _step(made), *_size(x))

    def pack(self, z: Tensor, bounds: tuple[float, float]) -> Tensor:
        """A bit for each element: whether it is within bounds."""
        made = bits_of(z)
        self._call("pack", z, z.numel(), made.data_ptr(), *bounds)
        return made

    def clamp_(self, z: Tensor, bounds: tuple[float, float]) -> Tensor:
        """The same, and the elements are kept within them."""
        made = bits_of(z)
        self._call("clamped", z, z.numel(), made.data_ptr(), *bounds)
        return made

    def masked(self, gradient: Tensor, bits: Tensor, slope: float) -> Tensor:
        """The gradient where a bit is set, elsewhere times slope."""
        made = torch.empty_like(gradient)
        self._call("masked", gradient, bits.data_ptr(), made.data_ptr(), gradient.numel(), slope)
        return made

    def _call(self, kind: str, x: Tensor, *arguments: float | None) -> None:
        if self._functions[kind, x.dtype](x.data_ptr(), *arguments):
            raise MemoryError("there is no memory left for the sums of a norm")

    @staticmethod
    def know(x: Tensor) -> bool:
        """Whether there are kernels for elements of this type."""
        return x.is_cpu and x.dtype in _DEFINED

    @staticmethod
    def read(parameter: Tensor) -> bool:
        """Whether they can read an entry for every channel of an activation from this."""
        return parameter.dtype == torch.float32 and parameter.is_cpu and parameter.is_contiguous()

    @staticmethod
    def take(x: Tensor) -> bool:
        """Whether they can work on an activation: in which precision it is, and how it lies in memory."""
        if not Kernels.know(x) or x.numel() == 0:
            return False
        return x.is_contiguous() if x.ndim == 2 else x.is_contiguous(memory_format=torch.channels_last)


def bits_of(z: Tensor) -> Tensor:
    """Memory for a bit of each element."""
    return torch.empty(-(-z.numel() // 8), dtype=torch.uint8, device=z.device)


def _place(x: Tensor | None) -> int | None:
    """Where its elements lie, if it is there."""
    return None if x is None else x.data_ptr()


def _rows(x: Tensor) -> tuple[int, int]:
    """Where those of two rows lie."""
    first = x.data_ptr()
    return first, first + x.stride(0) * x.element_size()


def _size(x: Tensor) -> tuple[int, int]:
    """Rows and channels."""
    channels = x.shape[1]
    return x.numel() // channels, channels


def _images(x: Tensor) -> tuple[int, int, int]:
    """Images, pixels of each and channels."""
    return len(x), x.shape[2:].numel(), x.shape[1]


def _step(x: Tensor) -> int:
    """Elements from one row to the next."""
    return x.stride(3) if x.ndim == 4 and x.shape[3] > 1 else x.shape[1]


@functools.cache
def native_kernels() -> Kernels | None:
    """The kernels, compiled on the first call on this machine; None without a compiler that can."""
    libraries = {dtype: compiled("kernels.c", *options) for dtype, options in _DEFINED.items()}
    made = {dtype: library for dtype, library in libraries.items() if library is not None}
    return Kernels(made) if len(made) == len(libraries) else None
