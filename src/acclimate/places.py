"""Folders of small files, on this machine or behind an address that fsspec knows, such as ``s3://bucket/grid``.

Whatever is read or written as a whole lies in one: a grid that was begun in a bucket goes on anywhere.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final, Protocol

from acclimate.errors import InputError, OptionError, OutputError, check_unmasked, masked, shown
from acclimate.files import whole_file

__all__ = ["Bucket", "Folder", "Place", "is_address", "open_place"]

_OBJECT_STORES: Final = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss"}
"""Which have no folders, only buckets, and whose objects come to be as a whole."""
_TRIES, _PAUSE = 3, 1.0  # of a write, and seconds before the second


class Place(Protocol):
    """Where files of one kind lie."""

    def make(self) -> None:
        """Let it be there, or say why it cannot be."""

    def names(self, suffix: str) -> list[str]:
        """Of the whole files with this end, sorted: what a process was writing begins with a dot."""

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, content: bytes) -> None:
        """As a whole or not at all."""


def is_address(place: str | Path) -> bool:
    """Whether it is none of this machine's file names."""
    return isinstance(place, str) and "://" in place


def open_place(place: str | Path) -> Place:
    """A folder of this machine, or of wherever an address leads."""
    if isinstance(place, str) and is_address(place):
        return Bucket(place)
    return Folder(Path(place))


class Folder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"{self.path} cannot be made: {error.strerror or error}") from error

    def names(self, suffix: str) -> list[str]:
        found = [path for path in self.path.glob(f"*{suffix}") if not path.name.startswith(".")]
        return sorted(path.name for path in found if path.is_file())  # who opens a pipe waits for ever

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        with whole_file(self.path / name) as part:
            part.write_bytes(content)


class Bucket:
    """A folder behind an address."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise OptionError(
                f"{shown(address)} needs fsspec: pip install 'acclimate[cluster]', or give a folder"
            ) from error
        check_unmasked(address)
        self._shown = shown(address)
        try:
            self._system, self._root = fsspec.core.url_to_fs(address)
            self._has_objects = not _OBJECT_STORES.isdisjoint(_protocols(self._system))
        except (ImportError, ValueError) as error:
            raise OptionError(f"{self._shown} cannot be opened: {_first_line(error)}") from error

    def __str__(self) -> str:
        return self._shown

    def make(self) -> None:
        try:
            if self._has_objects:  # a bucket is the user's to make: a wrong name would cost money
                self._check_bucket()
            else:
                self._system.makedirs(self._root, exist_ok=True)
        except (PermissionError, NotImplementedError):
            pass  # the first write will tell
        except OptionError:
            raise
        except Exception as error:
            raise OptionError(f"{self._shown} cannot be reached: {_first_line(error)}") from error

    def _check_bucket(self) -> None:
        bucket = self._root.lstrip("/").partition("/")[0]
        self._system.invalidate_cache()
        if not self._system.exists(bucket):
            raise OptionError(f"{self._shown} cannot be used: there is no bucket {bucket!r}")

    def names(self, suffix: str) -> list[str]:
        self._system.invalidate_cache()  # others write there too
        try:
            found = self._system.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise InputError(f"{self._shown} cannot be listed: {_first_line(error)}") from error
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if name.endswith(suffix) and not name.startswith("."))

    def read(self, name: str) -> bytes:
        try:
            content: bytes = self._system.cat_file(self._path(name))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise InputError(f"{self._shown}/{name} cannot be read: {_first_line(error)}") from error
        return content

    def write(self, name: str, content: bytes) -> None:
        for attempt in range(_TRIES):
            try:
                self._write(name, content)
                return
            except Exception as error:
                if attempt == _TRIES - 1 or isinstance(error, (FileNotFoundError, PermissionError)):
                    said = _first_line(error)
                    raise OutputError(f"{self._shown}/{name} cannot be written: {said}") from error
                time.sleep(_PAUSE * 2**attempt)

    def _write(self, name: str, content: bytes) -> None:
        if self._has_objects:
            self._system.pipe_file(self._path(name), content)
            return
        part = self._path(f".{name}.{os.getpid()}.part")
        try:
            self._system.pipe_file(part, content)
            self._system.mv(part, self._path(name))
        except Exception:
            with contextlib.suppress(Exception):
                self._system.rm_file(part)
            raise

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def _protocols(system: Any) -> set[str]:
    names = system.protocol
    return {names} if isinstance(names, str) else set(names)


def _first_line(error: Any) -> str:
    return masked(str(error).strip() or type(error).__name__).partition("\n")[0]
