"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from acclimate.errors import OptionError, OutputError

__all__ = ["check_writable", "room_for", "whole_file"]

_ROOM, _GROWTH = 64 << 20, 100


def check_writable(*paths: Path | None) -> None:
    """An error before the work, not after it, if a file cannot be written."""
    for path in filter(None, paths):
        if path.is_dir():
            raise OptionError(f"{path} is a folder: expected the name of a file to write")
        if not path.parent.is_dir():
            raise OptionError(f"{path} cannot be written: there is no folder {path.parent}")
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise OptionError(f"{path} cannot be written: {error.strerror or error}") from error


def room_for(packed: int) -> int:
    """How many bytes a packed file may become: records and images shrink to no hundredth, bombs to less.

    >>> room_for(1000) // 2**20, room_for(2**30) // 2**30
    (64, 100)
    """
    return max(_ROOM, _GROWTH * packed)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; it takes the file's place when all went well.

    The name keeps the suffix, by which some writers choose the format.
    """
    if path.exists() and not path.is_file():  # a pipe, a terminal: nothing to replace
        yield path
        return
    path = path.resolve()  # what a link leads to is replaced, not the link
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
