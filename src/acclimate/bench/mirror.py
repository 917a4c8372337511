"""Data and weights that lie behind an address, brought to this machine when a cell needs them."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from acclimate.bench.spec import Cell
from acclimate.corruptions import CORRUPTIONS
from acclimate.data.download import download
from acclimate.errors import FetchError, InputError, check_unmasked, masked, short, shown
from acclimate.places import is_address

__all__ = ["local_root"]


def local_root(root: str | Path, cell: Cell, cache: Path | None = None) -> Path:
    """The folder of this machine below which a cell's data and weights lie.

    Of an address such as ``s3://bucket/data``, that is a copy of what the cell needs and of no more: of
    corrupted images, those of its own corruption and severity. What is there is not fetched again.
    """
    if not is_address(root):
        return Path(root)
    check_unmasked(root)
    address = str(root).rstrip("/")
    cache = cache or Path.home() / ".cache" / "acclimate"
    folder = cache / "data" / hashlib.sha256(address.encode()).hexdigest()[:16]
    with _alone_in(folder):  # other processes of this machine want the same
        for part in _parts(cell):
            for name in _wanted(_names(address, part), cell):
                if not (folder / name).exists():
                    download(f"{address}/{name}", folder / name)
    return folder


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Within, no other process is, where the system has locks."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _parts(cell: Cell) -> Iterator[str]:
    """What lies below the root."""
    for path in (cell.data.path, cell.data.clean, cell.network.weights):
        if path is not None and ":" not in path and not Path(path).is_absolute():
            yield PurePosixPath(path).as_posix()


def _names(address: str, part: str) -> list[str]:
    """Of all files at or below a part of an address, as they are called there."""
    import fsspec

    system, top = fsspec.core.url_to_fs(address)
    top = top.rstrip("/")
    try:
        found = system.find(top if part == "." else f"{top}/{part}")
    except Exception as error:
        said = masked(str(error) or type(error).__name__, address).partition("\n")[0]
        raise FetchError(f"{shown(address)} cannot be listed: {said}") from error
    if not found:
        raise InputError(f"there is nothing at {shown(address)}/{part}, or nobody who tells what is there")
    return [_below(str(path), top, address) for path in found]


def _below(path: str, top: str, address: str) -> str:
    """The name of a file within an address; one that would be written elsewhere is refused."""
    name = path.removeprefix(top).lstrip("/")
    if not path.startswith(f"{top}/") or ".." in PurePosixPath(name).parts:
        raise InputError(
            f"{shown(address)} names {short(path)!r}, which does not lie below it: it is not fetched"
        )
    return name


def _wanted(names: Iterable[str], cell: Cell) -> Iterator[str]:
    """Those that are not of another corruption or severity, by the words of their path."""
    others = CORRUPTIONS.keys() - {cell.corruption}
    for name in names:
        words = [re.sub(r"\.\w+$", "", word) for word in PurePosixPath(name).parts]
        if others.intersection(words):
            continue
        if cell.corruption in words:
            below = words[words.index(cell.corruption) + 1 :]
            if below[:1] and below[0] in "12345" and below[0] != str(cell.severity):
                continue
        yield name
