"""Memory that one step frees, kept for the next one.

Every step of a network asks for the same gigabytes again, in pieces that glibc's malloc takes from the
system one by one and gives back at once. The system has to clear every page of them before it can be
used, which takes a quarter of a ResNet-50's step on a CPU. Told to keep large pieces, malloc hands the
pages of the last step to the next.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from typing import Any, Final

__all__ = ["keep_memory", "release_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of settings in glibc's malloc.h
_LARGEST: Final = 2**31 - 1  # settings are C ints


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
