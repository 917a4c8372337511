"""Ctrl-C between two steps, not within one."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # behind signal, whose functions look every handler up
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

__all__ = ["uninterrupted"]

_SIGINT: Final = int(signal.SIGINT)


class uninterrupted:  # noqa: N801 - used as a word in a with statement
    """Within, a first Ctrl-C waits until the end, so that what is done is done as a whole; a second does not.

    Only the main thread can hold signals back, and only from Python's own handler; elsewhere this does
    nothing.
    """

    def __enter__(self) -> None:
        self._pending = False
        self._holds = (
            threading.current_thread() is threading.main_thread()
            and _signal.getsignal(_SIGINT) is signal.default_int_handler
        )
        if self._holds:
            _signal.signal(_SIGINT, self._wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holds:
            _signal.signal(_SIGINT, signal.default_int_handler)
        if self._pending and error is None:
            raise KeyboardInterrupt

    def _wait(self, number: int, frame: FrameType | None) -> Any:
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True
