"""One JSON file per cell, and many of them as the lines of one file, compressed or not."""

from __future__ import annotations

import gzip
import json
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from acclimate.errors import InputError
from acclimate.files import whole_file

__all__ = [
    "SCHEMA",
    "Record",
    "finished",
    "origin",
    "pack_records",
    "read_cells",
    "read_records",
    "record_path",
    "same",
    "write_record",
]

SCHEMA = 1
Record = dict[str, Any]
"""``schema``, ``cell`` (what was asked for), ``spec`` (what that turned out to be), ``result`` or ``error``,
``cost`` and ``origin``."""
_REQUIRED = {"schema", "cell", "cost", "origin"}


def record_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def write_record(path: Path, record: Record) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="utf-8")


def same(one: Record, other: Record) -> bool:
    """Whether two records say the same: what it took and where it ran does not matter."""
    return all(one.get(name) == other.get(name) for name in ("schema", "cell", "spec", "result", "error"))


def finished(folder: Path) -> dict[str, Record]:
    """The records of a folder that hold a result, by key; what is broken or failed is to be run again."""
    found = {}
    for path in _files(folder):
        try:
            record = _checked(json.loads(path.read_text(encoding="utf-8")), path)
        except (OSError, ValueError, InputError):
            continue
        if "result" in record:
            found[path.stem] = record
    return found


def _files(folder: Path) -> list[Path]:
    """Whole records: what a process was writing when it was killed begins with a dot."""
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def read_records(
    *paths: str | Path, keep: Callable[[Record], Record] = lambda record: record
) -> list[Record]:
    """All records of folders and of ``.json``, ``.jsonl`` and ``.jsonl.gz`` files.

    ``keep`` takes each record and returns what of it is kept: thousands of whole ones fill the memory.
    """
    found = [keep(record) for path in paths for record in _read(Path(path))]
    if not found:
        raise InputError(
            f"no records in {', '.join(map(str, paths))}: expected .json files of `acclimate bench` "
            "or `acclimate adapt`"
        )
    return found


def read_cells(path: str | Path) -> list[dict[str, Any]]:
    """What the records of a folder or file were asked for; a file may hold that alone, as a report's does."""
    found = [line.get("cell") for line, _, _ in _lines(Path(path)) if isinstance(line, dict)]
    cells = [cell for cell in found if isinstance(cell, dict)]
    if not cells:
        raise InputError(f"no cells in {path}: expected records of `acclimate bench`, or a report's cells")
    return cells


def pack_records(folder: str | Path, target: Path) -> None:
    """All records of a folder into one ``.jsonl.gz`` file; the same records give the same file."""
    lines = [json.dumps(record, allow_nan=False) for record in _read(Path(folder))]
    with whole_file(target) as part:
        part.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def _read(path: Path) -> Iterator[Record]:
    for line, file, number in _lines(path):
        yield _checked(line, file, number)


def _lines(path: Path) -> Iterator[tuple[Any, Path, int]]:
    """What stands in the lines of all files, with the file and the number of the line."""
    if path.is_dir():
        files: Iterable[Path] = _files(path)
    elif path.exists():
        files = [path]
    else:
        raise InputError(f"there is nothing at {path}: expected a folder of records or a .jsonl file")
    for file in files:
        try:
            content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            lines = content.decode("utf-8").splitlines()
            for number, line in enumerate(lines, start=1):
                yield json.loads(line), file, number
        except (OSError, EOFError, ValueError) as error:
            raise InputError(f"{file} is no record of acclimate: {error}") from error


def _checked(record: Any, path: Path, line: int = 1) -> Record:
    if not isinstance(record, dict) or not record.keys() >= _REQUIRED:
        raise InputError(f"{path}, line {line}: no record of acclimate")
    if record["schema"] != SCHEMA:
        raise InputError(f"{path}, line {line}: schema {record['schema']}, but this acclimate knows {SCHEMA}")
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
