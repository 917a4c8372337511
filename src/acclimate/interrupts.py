"""Ctrl-C between two steps, not within one; and a request to end, which is treated alike."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # behind signal, whose functions look every handler up
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from acclimate.errors import WorkerError

__all__ = ["Ended", "end_as_interrupt", "ending_already", "ending_at_once", "uninterrupted"]


class Ended(KeyboardInterrupt):
    """Somebody has asked this process to end: launchers do so when another rank has died."""


def end_as_interrupt() -> None:
    """From here on SIGTERM is an interrupt."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)


def ending_already() -> None:
    """Ignore Ctrl-C and SIGTERM from here on: this process is ending, and its exit code is settled."""
    if threading.current_thread() is threading.main_thread():
        for number in _HANDLERS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within, Ctrl-C kills the process: for waits in C++, during which Python's own handler is not called."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> Any:
    raise Ended


_HANDLERS: Final = {int(signal.SIGINT): signal.default_int_handler, int(signal.SIGTERM): _end}


class uninterrupted:  # noqa: N801 - used as a word in a with statement
    """Within, a first Ctrl-C waits until the end, so that what is done is done as a whole; a second does not.

    Only the main thread can hold signals back, and only from Python's own handler; elsewhere this does
    nothing.
    """

    def __enter__(self) -> None:
        self._pending: int | None = None
        is_main = threading.current_thread() is threading.main_thread()
        self._held = [n for n, own in _HANDLERS.items() if is_main and _signal.getsignal(n) is own]
        for number in self._held:
            _signal.signal(number, self._wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._held:
            _signal.signal(number, _HANDLERS[number])
        # what other ranks did because of the same Ctrl-C is no error
        if self._pending is not None and (error is None or isinstance(error, WorkerError)):
            _HANDLERS[self._pending](self._pending, None)

    def _wait(self, number: int, frame: FrameType | None) -> Any:
        if self._pending is not None:
            _HANDLERS[number](number, frame)
        self._pending = number
