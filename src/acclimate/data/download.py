"""Files from elsewhere: resumed where they were cut, checked, and complete or not there at all."""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from acclimate.errors import FetchError, check_unmasked, masked, said, shown

__all__ = ["cached", "download"]

Progress = Callable[[int, int | None], None]
_BLOCK = 1 << 20
_LONGEST_NAME = 100
_OF_THIS_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # full or read-only: no further try helps
_TRIES = 5
_TIMEOUT = 30.0
_PAUSE = 0.5  # seconds before the first further try; doubled each time


def download(
    url: str,
    target: Path,
    *,
    md5: str | None = None,
    progress: Progress = lambda done, total: None,
    pause: float = _PAUSE,
) -> Path:
    """A file from an address (http, https, file, or what fsspec knows: s3, gs, …) to ``target``.

    What has come is kept in ``target.part``; a cut connection goes on from there, now or at the next call.
    """
    check_unmasked(url)
    if target.exists():
        if md5 is not None and (found := _md5(target)) != md5:
            raise FetchError(
                f"{target} has the checksum {found}, expected {md5}: it is not what {shown(url)} gives, or "
                "not whole; remove it"
            )
        return target
    part = target.with_name(f"{target.name}.part")
    for attempt in range(_TRIES):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _append(url, part, progress)
            break
        except (OSError, HTTPException) as error:
            if isinstance(error, FetchError):
                raise
            if attempt == _TRIES - 1 or _final(error):
                raise FetchError(_told(url, target, part, error)) from error
            time.sleep(pause * 2**attempt)
    if md5 is not None and (found := _md5(part)) != md5:
        part.unlink()
        raise FetchError(
            f"what {shown(url)} gave has the checksum {found}, expected {md5}: it was removed; fetch it again"
        )
    try:
        part.replace(target)
    except OSError as error:
        raise FetchError(_told(url, target, part, error)) from error
    return target


def cached(url: str, folder: Path | None = None, **options: Any) -> Path:
    """A local copy of what is at an address; made anew if that is newer or of another size."""
    folder = folder or Path.home() / ".cache" / "acclimate"
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    target = folder / name / _file_name(url)
    if target.exists() and _has_changed(url, target):
        target.unlink()
    return download(url, target, **options)


def _file_name(url: str) -> str:
    """The end of an address, where that can be a name: neither a folder nor longer than names can be.

    >>> _file_name("https://host/a.tar"), _file_name("https://host/..")
    ('a.tar', 'file')
    """
    name = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return "file" if name in ("", ".", "..") else name[-_LONGEST_NAME:]


def _has_changed(url: str, copy: Path) -> bool:
    """Whether a server says that it has another file now; one that cannot be asked says nothing."""
    if not url.startswith(("http://", "https://")):
        return False
    try:
        with urllib.request.urlopen(_request(url, method="HEAD"), timeout=_TIMEOUT) as answer:
            length, changed = (answer.headers.get(name) for name in ("Content-Length", "Last-Modified"))
    except (OSError, HTTPException):
        return False
    about = copy.stat()
    try:
        newer = changed is not None and parsedate_to_datetime(changed).timestamp() > about.st_mtime
        return newer or (length is not None and int(length) != about.st_size)
    except (ValueError, TypeError, OverflowError):  # neither a date nor a number
        return False


def _append(url: str, part: Path, progress: Progress) -> None:
    """Add to a part what is missing of it; an error if the end was not reached."""
    there = part.stat().st_size if part.exists() else 0
    part.touch()
    tag = part.with_name(f"{part.name}.tag")
    with _opened(url, there, tag) as (source, start, total), part.open("r+b") as file:
        file.truncate(start)
        file.seek(start)
        while block := source.read(_BLOCK):
            file.write(block)
            progress(file.tell(), total)
        done = file.tell()
        file.flush()
        os.fsync(file.fileno())  # or the name might outlive a power cut without the content
    if total is not None and done < total:
        raise ConnectionError(f"the connection was cut after {done:,} of {total:,} bytes")
    tag.unlink(missing_ok=True)


@contextmanager
def _opened(url: str, start: int, tag: Path) -> Iterator[tuple[IO[bytes], int, int | None]]:
    """A stream, the byte at which it begins, and how many there are in all.

    ``tag`` keeps the server's name for this version of the file: another version begins anew.
    """
    if url.partition("://")[0] in ("http", "https", "file"):
        headers = {}
        if start and not url.startswith("file"):
            headers["Range"] = f"bytes={start}-"
            if tag.exists():
                headers["If-Range"] = "".join(filter(str.isprintable, tag.read_text(errors="replace")))
        request = _request(url, headers=headers)
        try:
            answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != 416:  # nothing is left
                error.close()
                raise
            size = error.headers.get("Content-Range", "").rpartition("/")[2]
            with error:
                yield error, start, int(size) if size.isdigit() else start
            return
        with answer:
            begun = start if answer.status == 206 else 0
            version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            if version is not None and not version.startswith("W/"):
                tag.write_text(version)
            length = answer.headers.get("Content-Length", "")
            yield answer, begun, begun + int(length) if length.isdecimal() else None
        return
    with _by_fsspec(url) as stream:
        stream.seek(start)
        yield stream, start, getattr(stream, "size", None)


def _request(url: str, **options: Any) -> urllib.request.Request:
    """With a name and a password before the host, which urllib does not know, as a header."""
    parts = urllib.parse.urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), **options)
    if login:
        told = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {told}")
    return request


def _by_fsspec(url: str) -> Any:
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError as error:
        raise FetchError(f"{shown(url)} needs fsspec: pip install 'acclimate[data]'") from error
    try:
        return fsspec.open(url, "rb").open()
    except (ImportError, ValueError) as error:
        raise FetchError(f"{shown(url)} cannot be opened by fsspec: {masked(error, url)}") from error


def _final(error: Exception) -> bool:
    """Whether another try would not help."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500
    if isinstance(error, OSError) and error.errno in _OF_THIS_DISK:
        return True
    return isinstance(error, (FetchError, FileNotFoundError, PermissionError)) or "Errno -2" in str(error)


def _told(url: str, target: Path, part: Path, error: Exception) -> str:
    kept = f" ({part.stat().st_size:,} bytes are in {part}; the same call goes on)" if part.exists() else ""
    reason = masked(said(error), url)
    return f"{shown(url)} cannot be fetched: {reason}{kept}. Fetch it elsewhere and put it at {target}"


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
