"""Ctrl-C between two steps, not within one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["uninterrupted"]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, a first Ctrl-C waits until the end, so that what is done is done as a whole; a second does not.

    Only the main thread can hold signals back, and only from Python's own handler; elsewhere this does
    nothing.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    pending = False

    def wait(number: int, frame: FrameType | None) -> None:
        nonlocal pending
        if pending:
            signal.default_int_handler(number, frame)
        pending = True

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pending:
        raise KeyboardInterrupt
