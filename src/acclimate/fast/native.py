"""The kernels of `kernels.c`, compiled once for this machine by its own C compiler, if it has one.

torch makes eight passes over an activation for a batch norm with a ReLU, forward and backward; these
make five. Without a compiler nothing is lost but time: torch's own functions do the same.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["UNBOUNDED", "Kernels", "native_kernels"]

UNBOUNDED: Final = (-float("inf"), float("inf"))

_SOURCE: Final = Path(__file__).with_name("kernels.c")
_OPTIONS: Final = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
_DEFINED: Final = {torch.float32: (), torch.bfloat16: ("-DBF16",)}
"""What the source is compiled with for each type of its elements."""


class Kernels:
    """Calls them with tensors, of which it trusts shape and layout."""

    def __init__(self, libraries: Mapping[torch.dtype, ctypes.CDLL]) -> None:
        pointer, number, value = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
        size, bounds = (number, number), (value, value)
        kinds: dict[str, tuple[Any, ...]] = {
            "statistics": (pointer, *size, *[pointer] * 2),
            "forward": (*[pointer] * 2, *size, *[pointer] * 2, *bounds),
            "sums": (*[pointer] * 2, *size, *[pointer] * 3, *bounds, pointer),
            "backward": (*[pointer] * 3, *size, *[pointer] * 5, *bounds),
            "pack": (pointer, number, pointer, *bounds),
            "masked": (*[pointer] * 3, number, value),
        }
        self._functions: dict[tuple[str, torch.dtype], Any] = {}
        for dtype, library in libraries.items():
            for kind, arguments in kinds.items():
                function = getattr(library, kind)
                function.argtypes, function.restype = arguments, ctypes.c_int
                self._functions[kind, dtype] = function

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of every channel of an activation."""
        mean, var = x.new_empty(2, x.shape[1], dtype=torch.float32)
        self._call("statistics", x, *_size(x), mean, var)
        return mean, var

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """scale * x + shift, channel by channel."""
        made = torch.empty_like(x)
        self._call("forward", x, made, *_size(x), scale, shift, *UNBOUNDED)
        return made

    def sums(
        self, x: Tensor, gradient: Tensor, line: Sequence[Tensor], mean: Tensor, bounds: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """Of a gradient, where scale * x + shift is within bounds: its sum, and that of it times x - mean."""
        made = x.new_empty(2, x.shape[1], dtype=torch.float64)
        self._call("sums", x, gradient, *_size(x), *line, mean, *bounds, made)
        total, product = made
        return total, product

    def backward(
        self,
        x: Tensor,
        gradient: Tensor,
        line: Sequence[Tensor],
        mean: Tensor,
        rest: Sequence[Tensor],
        bounds: tuple[float, float],
    ) -> Tensor:
        """The gradient of x: scale times the other, within bounds, and slope * (x - mean) + constant."""
        made = torch.empty_like(x)
        self._call("backward", x, gradient, made, *_size(x), *line, mean, *rest, *bounds)
        return made

    def pack(self, z: Tensor, bounds: tuple[float, float]) -> Tensor:
        """A bit for each element: whether it is within bounds."""
        made = torch.empty(-(-z.numel() // 8), dtype=torch.uint8)
        self._call("pack", z, z.numel(), made, *bounds)
        return made

    def masked(self, gradient: Tensor, bits: Tensor, slope: float) -> Tensor:
        """The gradient where a bit is set, elsewhere times slope."""
        made = torch.empty_like(gradient)
        self._call("masked", gradient, bits, made, gradient.numel(), slope)
        return made

    def _call(self, kind: str, x: Tensor, *arguments: Tensor | float) -> None:
        given = [a.data_ptr() if isinstance(a, Tensor) else a for a in (x, *arguments)]
        if self._functions[kind, x.dtype](*given):
            raise MemoryError("there is no memory left for the sums of a batch norm")

    @staticmethod
    def know(x: Tensor) -> bool:
        """Whether there are kernels for elements of this type."""
        return x.device.type == "cpu" and x.dtype in _DEFINED

    @staticmethod
    def take(x: Tensor) -> bool:
        """Whether they can work on an activation: in which precision it is, and how it lies in memory."""
        if not Kernels.know(x) or x.numel() == 0:
            return False
        return x.is_contiguous() if x.ndim == 2 else x.is_contiguous(memory_format=torch.channels_last)


def _size(x: Tensor) -> tuple[int, int]:
    """Rows and channels."""
    return x.numel() // x.shape[1], x.shape[1]


@functools.cache
def native_kernels() -> Kernels | None:
    """The kernels, compiled on the first call on this machine; None without a compiler that can."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or platform.system() != "Linux":
        return None
    try:
        return Kernels({dtype: ctypes.CDLL(str(_compiled(compiler, dtype))) for dtype in _DEFINED})
    except (OSError, subprocess.SubprocessError):
        return None


def _compiled(compiler: str, dtype: torch.dtype) -> Path:
    command = [compiler, *_OPTIONS, *_DEFINED[dtype]]
    folder = _cache_folder()
    made = folder / f"kernels-{_digest(command)}.so"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            new = Path(scratch) / "kernels.so"
            command += [str(_SOURCE), "-o", str(new)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(new, made)
    return made


def _cache_folder() -> Path:
    """A folder that only its owner can write to: what lies in it is run."""
    own_cache = Path.home() / ".cache" / "acclimate" / "kernels"
    for folder in (own_cache, Path(tempfile.gettempdir()) / f"acclimate-kernels-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = folder.lstat()
        except OSError:
            continue
        own = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if own and stat.S_ISDIR(state.st_mode) and os.access(folder, os.W_OK):
            return folder
    raise OSError("there is no folder of one's own to compile in")


def _digest(command: Sequence[str]) -> str:
    """Of all that the library depends on: the source, how it is compiled, and for which processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        processor = platform.processor()
    parts = (_SOURCE.read_text(encoding="utf-8"), *command, platform.machine(), processor)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
