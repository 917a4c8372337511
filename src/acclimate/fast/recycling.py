"""Memory that one step frees, kept for the next one.

Every step of a network asks for the same gigabytes again, in pieces that glibc's malloc takes from the
system one by one and gives back at once. The system has to clear every page of them before it can be
used, which takes a quarter of a ResNet-50's step on a CPU. Told to keep large pieces, malloc hands the
pages of the last step to the next.

What it keeps has holes. For memory that begins at a multiple of 64, as torch wants it, glibc takes some bytes
more and gives those away again, to whoever asks for a few: for want of them the next piece of the same size
does not fit into the hole of the last one. So the pieces that are ours get smaller in the course of a step.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["begin_step", "exactly", "keep_memory", "release_memory", "room_like"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of settings in glibc's malloc.h
_LARGEST: Final = 2**31 - 1  # settings are C ints
_PIECES: Final = 256  # of a step that get smaller
_LESS: Final = 4096  # bytes from one to the next
_HOLE: Final = 2**20  # bytes of a piece whose hole would be missed


class _Step(threading.local):
    """Of this thread: how many pieces are left that get smaller, and whether there are none."""

    pieces = 0
    is_exact = False


_STEP: Final = _Step()


def begin_step() -> None:
    """Let malloc keep what is freed, and the pieces of the next step be as large as those of the last."""
    _STEP.pieces = _PIECES if keep_memory() and not _STEP.is_exact else 0


@contextmanager
def exactly() -> Iterator[None]:
    """Within, no piece is larger than it needs to be: for somebody who measures them."""
    before = _STEP.is_exact, _STEP.pieces
    _STEP.is_exact, _STEP.pieces = True, 0
    try:
        yield
    finally:
        _STEP.is_exact, _STEP.pieces = before


def room_like(x: Tensor) -> Tensor:
    """Memory for an activation, which lies pixel by pixel and without gaps if it is one of images."""
    if x.ndim != 4:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    each = x.element_size()
    if not _STEP.pieces or x.numel() * each < _HOLE or not x.is_cpu:
        return torch.empty_like(x, memory_format=torch.channels_last)
    _STEP.pieces -= 1
    piece = torch.empty(x.numel() + _STEP.pieces * _LESS // each, dtype=x.dtype, device=x.device)
    _, channels, height, width = x.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return piece.new_empty(0).set_(piece.untyped_storage(), 0, x.shape, strides)


@functools.cache
def keep_memory() -> bool:
    """From here on, malloc keeps what is freed; whether it can. A setting of the whole process."""
    libc = _glibc()
    if libc is None:
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, _LARGEST) and libc.mallopt(_TRIM_THRESHOLD, -1))


def release_memory() -> None:
    """Give back to the system what is kept and not in use."""
    libc = _glibc()
    if libc is not None and keep_memory.cache_info().currsize:
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> Any:
    if platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)
