"""One JSON file per cell, and many of them as the lines of one file, compressed or not.

They lie in a folder of this machine or behind an address: see `acclimate.places`.
"""

from __future__ import annotations

import gzip
import io
import json
import platform
import subprocess
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from acclimate.errors import InputError, said, short, shown
from acclimate.files import room_for, whole_file
from acclimate.places import Place, is_address, open_place

__all__ = [
    "SCHEMA",
    "Record",
    "finished",
    "origin",
    "pack_records",
    "read_cells",
    "read_records",
    "record_content",
    "record_name",
    "same",
    "write_record",
]

SCHEMA = 1
Record = dict[str, Any]
"""``schema``, ``cell`` (what was asked for), ``spec`` (what that turned out to be), ``result`` or ``error``,
``cost`` and ``origin``."""
_SUFFIX = ".json"
_REQUIRED, _OPTIONAL = {"schema", "cell", "cost", "origin"}, {"spec", "result", "error"}
_LONGEST, _MOST = 16 << 20, 1_000_000  # bytes of a record in a packed file, and records of any file
_UNREADABLE = (OSError, EOFError, ValueError, RecursionError, MemoryError, zlib.error)


def record_name(key: str) -> str:
    """The file of a record."""
    return f"{key}{_SUFFIX}"


def record_content(record: Record) -> bytes:
    """What stands in it."""
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def write_record(path: Path, record: Record) -> None:
    with whole_file(path) as part:
        part.write_bytes(record_content(record))


def same(one: Record, other: Record) -> bool:
    """Whether two records say the same: what it took and where it ran does not matter."""
    return all(one.get(name) == other.get(name) for name in ("schema", "cell", "spec", "result", "error"))


def finished(place: str | Path) -> dict[str, Record]:
    """The records of a place that hold a result, by key; what is broken or failed is to be run again."""
    found = {}
    records = open_place(place)
    for name in records.names(_SUFFIX):
        try:
            record = _checked(_parsed(records.read(name)), name)
        except _UNREADABLE:
            continue
        if "result" in record:
            found[name.removesuffix(_SUFFIX)] = record
    return found


def read_records(
    *paths: str | Path, keep: Callable[[Record], Record] = lambda record: record
) -> list[Record]:
    """All records of folders and of ``.json``, ``.jsonl`` and ``.jsonl.gz`` files.

    ``keep`` takes each record and returns what of it is kept: thousands of whole ones fill the memory.
    """
    found = [keep(record) for path in paths for record in _read(path)]
    if not found:
        raise InputError(
            f"no records in {', '.join(map(shown, paths))}: expected .json files of `acclimate bench` "
            "or `acclimate adapt`"
        )
    return found


def read_cells(path: str | Path) -> list[dict[str, Any]]:
    """What the records of a folder or file were asked for; a file may hold that alone, as a report's does."""
    cells = []
    for line, file, number in _lines(path):
        if not isinstance(line, dict) or not isinstance(line.get("cell"), dict):
            raise InputError(f"{file}, line {number}: expected a cell, or a record with its cell")
        cells.append(line["cell"])
    if not cells:
        raise InputError(
            f"no cells in {shown(path)}: expected records of `acclimate bench`, or a report's cells"
        )
    return cells


def pack_records(folder: str | Path, target: Path) -> None:
    """All records of a folder into one ``.jsonl.gz`` file; the same records give the same file."""
    lines = [json.dumps(record, allow_nan=False) for record in _read(folder)]
    with whole_file(target) as part:
        part.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def _read(path: str | Path) -> Iterator[Record]:
    for line, file, number in _lines(path):
        yield _checked(line, file, number)


def _lines(path: str | Path) -> Iterator[tuple[Any, str, int]]:
    """What stands in the lines of all files, with the file and the number of the line."""
    place, names = _files(path)
    for name in names:
        file = f"{place}/{name}"
        try:
            content = place.read(name)
            lines = _unpacked(content) if name.endswith(".gz") else io.BytesIO(content)
            for number, line in enumerate(lines, start=1):
                if number > _MOST:
                    raise InputError(f"it has more than {_MOST:,} lines")
                yield _parsed(line), file, number
        except _UNREADABLE as error:
            raise InputError(f"{file} is no record of acclimate: {said(error)}") from error


def _unpacked(content: bytes) -> Iterator[bytes]:
    """The lines of a packed file, one at a time: nobody knows how many there are before they are there."""
    there, room = 0, room_for(len(content))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        while line := file.readline(_LONGEST + 1):
            there += len(line)
            if len(line) > _LONGEST or there > room:
                raise InputError(f"expected records, got more than {min(there, room):,} bytes of something")
            yield line


def _parsed(line: bytes) -> Any:
    return json.loads(line, parse_constant=_no_number)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _files(path: str | Path) -> tuple[Place, list[str]]:
    """A file by itself, or all records of a place."""
    single = str(path).endswith((".jsonl", ".jsonl.gz")) if is_address(path) else not Path(path).is_dir()
    if not single:
        place = open_place(path)
        return place, place.names(_SUFFIX)
    if not is_address(path) and not Path(path).exists():
        raise InputError(f"there is nothing at {path}: expected a folder of records or a .jsonl file")
    folder, _, name = (
        str(path).rpartition("/") if is_address(path) else (Path(path).parent, "", Path(path).name)
    )
    return open_place(folder), [name]


def _checked(record: Any, file: str, line: int = 1) -> Record:
    if not isinstance(record, dict) or not record.keys() >= _REQUIRED:
        raise InputError(f"{file}, line {line}: no record of acclimate")
    if record["schema"] != SCHEMA:
        found = short(record["schema"])
        raise InputError(f"{file}, line {line}: schema {found}, but this acclimate knows {SCHEMA}")
    for part in (_REQUIRED | _OPTIONAL) & record.keys() - {"schema"}:
        if not isinstance(record[part], dict):
            raise InputError(f"{file}, line {line}: expected names and values as {part!r} of a record")
    return record


@cache
def origin() -> dict[str, Any]:
    """Versions, commit where there is one, machine."""
    return {
        "acclimate": version("acclimate"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _commit() -> str | None:
    """Of the source, where it lies in a repository of its own; otherwise the version says all."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "--error-unmatch", Path(__file__).name):
            return None
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")
    except OSError:  # no git
        return None
