"""A folder of results in which files appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from acclimate.corruptions.arrays import Bytes
from acclimate.corruptions.frost import frost_source
from acclimate.errors import OptionError, OutputError

__all__ = ["ArrayFile", "Output", "open_output"]

_SETTINGS = "corruptions.json"


@dataclass(frozen=True)
class ArrayFile:
    """An array of all images at some severities, one severity after the other."""

    path: str
    name: str
    severities: tuple[int, ...]
    images: int
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.images * len(self.severities)

    def header(self) -> bytes:
        header = BytesIO()
        described = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self.shape)}
        np.lib.format.write_array_header_1_0(header, described)
        return header.getvalue()


@dataclass(frozen=True)
class Output:
    """A folder, and one inside it for what is not yet whole."""

    folder: Path
    parts: Path

    def holds(self, path: str) -> bool:
        return (self.folder / path).exists()

    @contextlib.contextmanager
    def written(self, path: str) -> Iterator[IO[bytes]]:
        """A file to write to, which takes its place when all went well."""
        with _reported(self.folder / path):
            part = self.parts / uuid.uuid4().hex
            try:
                with part.open("xb") as file:
                    yield file
                self._place(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise

    def begin(self, file: ArrayFile) -> None:
        """Room for an array, so that a full disk is found out at the start."""
        header = file.header()
        with _reported(self.folder / file.path), open(self.parts / file.path, "wb") as part:
            size = len(header) + file.count * int(np.prod(file.shape))
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(part.fileno(), 0, size)
            else:  # pragma: no cover - where the call does not exist
                part.truncate(size)
            part.write(header)

    def put(self, file: ArrayFile, row: int, images: Bytes) -> None:
        with _reported(self.folder / file.path), open(self.parts / file.path, "r+b") as part:
            part.seek(len(file.header()) + row * int(np.prod(file.shape)))
            part.write(images.tobytes())

    def finish(self, file: ArrayFile) -> None:
        with _reported(self.folder / file.path):
            self._place(self.parts / file.path, file.path)

    def _place(self, part: Path, path: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)


@contextlib.contextmanager
def open_output(folder: Path, settings: dict[str, Any], frost: bool, force: bool) -> Iterator[Output]:
    """A folder made with these settings, new or to go on with."""
    if frost:
        settings = {**settings, "frost": frost_source()}
    with _reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        before = _settings_of(folder)
        if not force:
            _check_settings(folder, before, settings)
        parts = Path(tempfile.mkdtemp(prefix=f".parts-{os.getpid()}-", dir=folder))
    try:
        output = Output(folder, parts)
        with output.written(_SETTINGS) as file:
            file.write(json.dumps({**before, **settings}, indent=1).encode() + b"\n")
        yield output
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _settings_of(folder: Path) -> dict[str, Any]:
    path = folder / _SETTINGS
    if not path.exists():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise OptionError(f"{path} is damaged: delete it, or choose another folder")
    return settings


def _check_settings(folder: Path, before: dict[str, Any], settings: dict[str, Any]) -> None:
    if not before:
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise OptionError(f"{folder} is not empty and not of our making: choose another, or force it")
        return
    for key, value in settings.items():
        if before.get(key, value) != value:
            raise OptionError(
                f"{folder} was made with {key} {before[key]}, not {value}: choose another folder, or force it"
            )


def _remove_leftovers(folder: Path) -> None:
    """What a killed run has left behind."""
    for parts in folder.glob(".parts-*-*"):
        owner = parts.name.split("-")[1]
        if not owner.isdigit() or not _alive(int(owner)):
            shutil.rmtree(parts, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
