"""What is in a tar file, of which nothing is believed before it was looked at."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acclimate.errors import InputError, said, short

__all__ = ["members_of", "opened_tar"]


@contextmanager
def opened_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """A tar file that is not compressed: such a one holds no more than it is long."""
    try:
        with tarfile.open(path, "r:") as file:
            yield file
    except (InputError, OSError):
        raise
    except Exception as error:  # tarfile raises whatever it meets: its own, a ValueError, no memory
        raise InputError(f"{path} cannot be read as a tar file: {said(error)}") from error


def members_of(file: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """Its files and folders, one after the other.

    Headers can name sizes that are not there, or lead back to where the reader was before, which some
    versions of Python follow for ever.
    """
    length, end = path.stat().st_size, 0
    for member in file:
        if not (member.isfile() or member.isdir()) or member.issparse():
            raise InputError(f"{path} holds {short(member.name)!r}, which is neither file nor folder")
        if not end <= member.offset < member.offset_data or member.size < 0:
            raise InputError(f"{path} is damaged: {short(member.name)!r} lies where something else does")
        end = member.offset_data + (member.size if member.isfile() else 0)
        if end > length:
            raise InputError(f"{path} is damaged: {short(member.name)!r} goes on beyond its end")
        yield member
