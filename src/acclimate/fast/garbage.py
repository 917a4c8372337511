"""A step without pauses for garbage.

Python looks for cyclic garbage whenever enough objects were made, now and then among all that it has: with
torch imported that takes a tenth of a second. A step makes thousands of objects that live until its backward
pass, and are gone when it is over: they bring about search after search, which finds nothing. So it waits.
"""

from __future__ import annotations

import gc
import os
from typing import ClassVar

__all__ = ["Uncollected"]


class Uncollected:
    """Within, Python does not look for garbage, unless somebody asks it to.

    That is a setting of the whole process: whoever leaves last takes it back, if it was ours.

    >>> with Uncollected():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

    _within: ClassVar[list[None]] = []  # appended to and popped from in one go, whatever other threads do
    _is_ours: ClassVar[bool] = False

    def __enter__(self) -> None:
        if gc.isenabled():
            Uncollected._is_ours = True
            gc.disable()
        self._within.append(None)

    def __exit__(self, *error: object) -> None:
        self._within.pop()
        if not self._within:
            self._take_back()

    @classmethod
    def _take_back(cls) -> None:
        if cls._is_ours:
            gc.enable()
            cls._is_ours = False

    @classmethod
    def in_child(cls) -> None:
        """A new process, in which nobody is within."""
        cls._within.clear()
        cls._take_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Uncollected.in_child)
