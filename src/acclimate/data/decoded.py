"""Images that were decoded once and will be asked for again in the next epoch, as long as memory allows."""

from __future__ import annotations

import os
from collections.abc import Callable

from acclimate.data.pictures import Bytes

__all__ = ["Decoded"]

_MOST = 2 << 30
_SHARE = 8  # of the memory that is free, one part in so many


class Decoded:
    """Reads by a reader, and keeps what it gave: the first images that come, up to a number of bytes.

    >>> import numpy as np
    >>> read = Decoded(lambda position: np.full((2, 2, 3), position, np.uint8), most=30)
    >>> [int(read(position)[0, 0, 0]) for position in (7, 8, 9, 7)], read.kept
    ([7, 8, 9, 7], 24)
    """

    def __init__(self, read: Callable[[int], Bytes], most: int | None = None) -> None:
        self._read = read
        self._most = _affordable() if most is None else most
        self._images: dict[int, Bytes] = {}
        self.kept = 0
        """Bytes."""

    def __call__(self, position: int) -> Bytes:
        found = self._images.get(position)
        if found is not None:
            return found
        image = self._read(position)
        # several threads may get here at once: at worst, some images too many are kept
        if self.kept + image.nbytes <= self._most:
            self._images[position] = image if image.base is None else image.copy()
            self.kept += image.nbytes
        return image

    def __getstate__(self) -> dict[str, object]:
        """Another process has its own memory, and decodes for itself."""
        return {"_read": self._read, "_most": self._most, "_images": {}, "kept": 0}


def _affordable() -> int:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _MOST // _SHARE
    return min(_MOST, free // _SHARE)
