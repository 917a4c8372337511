"""Which cells of a folder a grid is at work on, so that no other one does the same work a second time.

A cell is a byte of the file `.lock`, and a process holds the bytes of its cells. Grids of different cells,
such as the shards of one, share a folder as they like; and what a dead process held is free again, as the
system gives it back. Buckets have no locks, and neither have some network disks: there, nobody is held back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable

from acclimate.errors import OptionError
from acclimate.places import Folder, Place

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows, where nobody is held back
    fcntl = None  # type: ignore[assignment]

__all__ = ["Claims"]

_NAME = ".lock"
_HELD = (errno.EACCES, errno.EAGAIN)  # by another process; anything else says that there are no locks


class Claims:
    """The cells of a place that this process has taken."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._file: int | None = None
        self._unwritable: OSError | None = None

    def take(self, keys: Collection[str]) -> None:
        """All of these cells, or an error that says how many somebody else is at work on."""
        self._open()
        busy = sum(not self._lock(key) for key in keys)
        if busy:
            self.close()
            raise OptionError(
                f"another process is at work on {busy} of these {len(keys)} cells in {self._place}: "
                "wait until it is done, or divide the cells (--shard)"
            )
        self._remove_leftovers(keys)

    def give_back(self, keys: Iterable[str]) -> None:
        """What is done, others may look at."""
        for key in keys:
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _byte(key))

    def check_writable(self) -> None:
        """An error before the first cell is run, not after hours, where no record could be written."""
        if self._unwritable is not None:
            reason = self._unwritable.strerror or self._unwritable
            raise OptionError(f"{self._place} cannot be written: {reason}") from self._unwritable

    def close(self) -> None:
        """Give everything back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        if not isinstance(self._place, Folder) or fcntl is None:
            return
        try:
            self._file = os.open(self._place.path / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:  # of no interest if every cell is finished
            self._unwritable = error

    def _lock(self, key: str) -> bool:
        """Whether a cell is nobody else's."""
        if self._file is None:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(key))
        except OSError as error:
            if error.errno in _HELD:
                return False
            self.close()  # this disk has no locks
        return True

    def _remove_leftovers(self, keys: Collection[str]) -> None:
        """What a killed process was writing of cells that are now this one's."""
        if self._file is None or not isinstance(self._place, Folder):
            return
        for part in self._place.path.glob(".*.part.json"):
            if part.name.split(".")[1] in keys:
                part.unlink(missing_ok=True)


def _byte(key: str) -> int:
    """Of the file: keys are digests of 64 bits, and files have places for 63."""
    return int(key, 16) >> 1
