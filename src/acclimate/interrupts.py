"""Ctrl-C between two steps, not within one; and a request to end as if it were one."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # behind signal, whose functions look every handler up
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

__all__ = ["end_as_interrupt", "uninterrupted"]

_HELD: Final = (int(signal.SIGINT), int(signal.SIGTERM))


def end_as_interrupt() -> None:
    """From here on SIGTERM, which launchers send when another rank has died, is a Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


class uninterrupted:  # noqa: N801 - used as a word in a with statement
    """Within, a first Ctrl-C waits until the end, so that what is done is done as a whole; a second does not.

    Only the main thread can hold signals back, and only from Python's own handler; elsewhere this does
    nothing.
    """

    def __enter__(self) -> None:
        self._pending = False
        is_main = threading.current_thread() is threading.main_thread()
        own = signal.default_int_handler
        self._held = [number for number in _HELD if _signal.getsignal(number) is own] if is_main else []
        for number in self._held:
            _signal.signal(number, self._wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._held:
            _signal.signal(number, signal.default_int_handler)
        if self._pending and error is None:
            raise KeyboardInterrupt

    def _wait(self, number: int, frame: FrameType | None) -> Any:
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True
