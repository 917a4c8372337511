"""A step without pauses for garbage.

Python looks for cyclic garbage whenever enough objects were made, now and then among all that it has: with
torch imported that takes a tenth of a second. A step makes thousands of objects that live until its backward
pass, and are gone when it is over: they bring about search after search, which finds nothing. So it waits.
"""

from __future__ import annotations

import gc

__all__ = ["Uncollected"]


class Uncollected:
    """Within, Python does not look for garbage, unless somebody asks it to.

    That is a setting of the whole process, until the thread leaves that was the first to enter.

    >>> with Uncollected():
    ...     gc.isenabled()
    False
    """

    def __init__(self) -> None:
        self._ours: list[bool] = []

    def __enter__(self) -> None:
        self._ours.append(gc.isenabled())
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._ours.pop():
            gc.enable()
