"""The progress bar of `fit`, for people at a terminal."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from acclimate.types import History

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(total: int, show: bool | None) -> Iterator[Callable[[int, History], None]]:
    """A function to call with the steps done and the history; by default it shows only in a terminal."""
    console = Console(stderr=True)
    if show is False or (show is None and not console.is_terminal):
        yield lambda done, history: None
        return
    columns = (
        TextColumn("adapting"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("adapting", total=total, state="")

        def update(done: int, history: History) -> None:
            bar.update(task, completed=done, state=_state(history))

        yield update


def _state(history: History) -> str:
    if not history.loss:
        return ""
    return (
        f"loss {history.loss[-1]:.3f} confidence {history.confidence[-1]:.2f} "
        f"classes {math.exp(history.class_entropy[-1]):.1f}"  # that many in effect
    )
