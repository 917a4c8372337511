"""A folder of results in which files appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from acclimate.corruptions import CORRUPTIONS
from acclimate.corruptions.arrays import Bytes
from acclimate.errors import OptionError, OutputError, listed, short

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows, where leftovers of a killed run stay
    fcntl = None  # type: ignore[assignment]

__all__ = ["ArrayFile", "Output", "open_output"]

_SETTINGS = "corruptions.json"
_ARRAY = re.compile(rf"({'|'.join(CORRUPTIONS)})(_[1-5])?\.npy")


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
        with part.open("rb") as file:
            os.fsync(file.fileno())  # or the name might outlive a power cut without the content
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)


@contextlib.contextmanager
def open_output(
    folder: Path, settings: dict[str, Any], results: Sequence[str], force: bool
) -> Iterator[Output]:
    """A folder made with these settings, new or to go on with; if forced, without these results."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is not a folder")
    with _reported(folder):
        before = _settings_of(folder)
        _check_settings(folder, before, settings, results, force)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        parts = Path(tempfile.mkdtemp(prefix=f".parts-{os.getpid()}-", dir=folder))
    with _held(parts):
        if force:
            _remove(folder, results)
        output = Output(folder, parts)
        with output.written(_SETTINGS) as file:
            file.write(json.dumps({**before, **settings}, indent=1).encode() + b"\n")
        try:
            yield output
        finally:
            if {entry.name for entry in folder.iterdir()} <= {_SETTINGS, parts.name}:
                with contextlib.suppress(OSError):  # what went wrong is told already
                    (folder / _SETTINGS).unlink(missing_ok=True)  # nothing was made: as if it was not called


def _settings_of(folder: Path) -> dict[str, Any]:
    path = folder / _SETTINGS
    if not path.exists():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise OptionError(f"{path} is damaged: delete it, or choose another folder")
    return settings


def _check_settings(
    folder: Path, before: dict[str, Any], settings: dict[str, Any], results: Sequence[str], force: bool
) -> None:
    if not before:
        if folder.exists() and not all(_is_leftover(entry) for entry in folder.iterdir()):
            raise OptionError(f"{folder} is not empty and not of our making: choose another folder")
        return
    differing = [key for key, value in settings.items() if before.get(key, value) != value]
    if not differing:
        return
    key = differing[0]
    made = f"{folder} was made with {key} {short(before[key])}, not {settings[key]}"
    made = {"images": f"{folder} was made of other images"}.get(key, made)
    # where frost comes from matters to frost alone
    mattering = [r for r in _results_in(folder) if differing != ["frost"] or r.startswith("frost")]
    if others := sorted(set(mattering) - set(results)):
        raise OptionError(f"{made}, and also holds {listed(others, 3)}: choose another folder")
    if not force:
        raise OptionError(f"{made}: choose another folder, or force it, which removes what is there")


def _results_in(folder: Path) -> Iterator[str]:
    for name in CORRUPTIONS:
        if (folder / name).is_dir():
            yield from (f"{name}/{entry.name}" for entry in (folder / name).iterdir())
    yield from (entry.name for entry in folder.iterdir() if _ARRAY.fullmatch(entry.name))


def _remove(folder: Path, results: Sequence[str]) -> None:
    with _reported(folder):
        for result in results:
            path = folder / result
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _held(parts: Path) -> Iterator[None]:
    """A lock on the folder of parts says that its run is alive; the folder goes with the run."""
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, parts, ignore_errors=True)
        with _reported(parts):
            lock = stack.enter_context((parts / "lock").open("w"))
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_leftover(path: Path) -> bool:
    """Of a run that may have been killed before it wrote anything else."""
    return re.fullmatch(r"\.parts-\d+-\w+", path.name) is not None


def _remove_leftovers(folder: Path) -> None:
    """What killed runs have left behind."""
    for parts in folder.glob(".parts-*-*"):
        if fcntl is None or not _is_leftover(parts):
            continue
        with contextlib.suppress(OSError):
            if not (parts / "lock").exists():  # killed between its first two steps
                parts.rmdir()
                continue
            with (parts / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(parts, ignore_errors=True)


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
