"""Ctrl-C at any line of a fit, and what comes of going on."""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import acclimate
from acclimate import Adapter
from acclimate.errors import AcclimateWarning
from fault_tasks import images
from file_readers import network

_FOLLOWED = {
    str(Path(acclimate.__file__).parent / f"{name}.py")
    for name in ("adapter", "delta", "engine", "files", "fitting", "guard", "interrupts", "optimization")
}


def lines(work: Callable[[], Any], interrupt: int | None = None) -> int:
    """Run some work, with a signal before the n-th of its lines; how many lines there were."""
    seen = 0

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in _FOLLOWED:
            return None
        if event == "line":
            if seen == interrupt:
                signal.raise_signal(signal.SIGINT)
            seen += 1
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen


def fitted(adapter: Adapter, path: Path) -> None:
    adapter.fit(images(), 2, batch_size=8, on_step=lambda own: own.save(path) and None, progress=False)


def begun() -> Adapter:
    return Adapter(network(), "slr", freeze="none")


def interrupted(at: int, path: Path) -> tuple[Any, Any]:
    """A fit that was interrupted at a line, gone on with in this process; and the same from its file."""
    path.unlink(missing_ok=True)
    adapter = begun()
    with contextlib.suppress(KeyboardInterrupt):
        lines(lambda: fitted(adapter, path), at)
    again = Adapter.load(path, network()) if path.exists() else begun()
    other = path.with_name("other.safetensors")
    for one, where in ((adapter, path), (again, other)):
        if one._fit is not None or one.step == 0:  # otherwise the signal came after the end
            with warnings.catch_warnings():  # between the last step and the end, nothing is left to do
                warnings.simplefilter("ignore", AcclimateWarning)
                fitted(one, where)
    return bits(adapter), bits(again)


def bits(adapter: Adapter) -> Any:
    """All that a fit leaves behind."""
    return {name: tensor.tolist() for name, tensor in adapter._engine.state().items()}
