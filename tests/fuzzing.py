"""Damaged and hostile files, each from a number, so that any failure can be had again.

`fuzzed("npz", 17)` gives the seventeenth input of a reader; `judged` reads it and says how it went.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from acclimate.errors import AcclimateError
from file_readers import READERS, Reader
from hostile import HOSTILE, SENTINEL

Rng = np.random.Generator
_LONGEST: Final = 1500  # characters of an error that is still a sentence


def _at(content: bytes, rng: Rng) -> int:
    """A place in a file; every other time near its beginning, where headers are."""
    most = min(len(content), 128) if rng.random() < 0.5 else len(content)
    return int(rng.integers(0, most + 1))


def truncated(content: bytes, rng: Rng) -> bytes:
    return content[: _at(content, rng)]


def beheaded(content: bytes, rng: Rng) -> bytes:
    return content[_at(content, rng) :]


def flipped(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(int(rng.integers(1, 4))):
        changed[min(_at(content, rng), len(changed) - 1)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def overwritten(content: bytes, rng: Rng) -> bytes:
    """Some bytes in a row by those that make numbers large, negative or zero, text end, or by any."""
    at, size = _at(content, rng), int(rng.choice([1, 2, 4, 8, 32]))
    filling = bytes([int(rng.choice([0, 0x7F, 0x80, 0xFF, 0x30, 0x39]))]) * size
    return content[:at] + (rng.bytes(size) if rng.random() < 0.3 else filling) + content[at + size :]


def inserted(content: bytes, rng: Rng) -> bytes:
    at = _at(content, rng)
    return content[:at] + rng.bytes(int(rng.choice([1, 7, 64, 1024]))) + content[at:]


def removed(content: bytes, rng: Rng) -> bytes:
    at = _at(content, rng)
    return content[:at] + content[at + int(rng.choice([1, 8, 100])) :]


def repeated(content: bytes, rng: Rng) -> bytes:
    at, size = _at(content, rng), int(rng.choice([1, 16, 512]))
    return content[:at] + content[at : at + size] * int(rng.choice([2, 3, 50])) + content[at + size :]


def spliced(content: bytes, rng: Rng) -> bytes:
    """The head of one file on the tail of another, perhaps of another kind."""
    other = _any_valid(rng)
    return content[: _at(content, rng)] + other[_at(other, rng) :]


MUTATIONS: Final[dict[str, Callable[[bytes, Rng], bytes]]] = {
    "truncated": truncated,
    "beheaded": beheaded,
    "flipped": flipped,
    "overwritten": overwritten,
    "inserted": inserted,
    "removed": removed,
    "repeated": repeated,
    "spliced": spliced,
}
_ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -1e308, 1e308, float("nan"),
    float("inf"), "", "x", "²", "\0", "\ud800", "../../outside", "/outside", "x" * 5000, "nan", [], {}, [[]],
    [0], ["x"], {"x": 1}, {"": {}}, [None] * 50,
)  # fmt: skip


def odd(document: Any, rng: Rng) -> Any:
    """A document with one of its values, names or lists replaced by what nobody expects."""
    places = list(_places(document))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(_ODD[int(rng.integers(len(_ODD)))])
    holder, key = places[int(rng.integers(len(places)))]
    way = rng.random()
    if way < 0.1:
        del holder[key]
    elif way < 0.2 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif way < 0.3 and isinstance(holder[key], str) and holder[key]:
        holder[key] = flipped(holder[key].encode(), rng).decode("latin-1")
    else:
        holder[key] = copy.deepcopy(_ODD[int(rng.integers(len(_ODD)))])
    return document


def _places(document: Any) -> Any:
    """Every place of a document at which something stands."""
    if isinstance(document, dict):
        entries: Any = list(document.items())
    elif isinstance(document, list):
        entries = list(enumerate(document))[:20]
    else:
        return
    for key, value in entries:
        yield document, key
        yield from _places(value)


def _any_valid(rng: Rng) -> bytes:
    reader = READERS[list(READERS)[int(rng.integers(len(READERS)))]]
    return _one_of(reader.make(), rng)


def _one_of(choices: tuple[bytes, ...], rng: Rng) -> bytes:
    return choices[int(rng.integers(len(choices)))]


class Input(NamedTuple):
    """A file to read."""

    content: bytes
    written: bool = False
    """Whether it is a whole file that somebody wrote on purpose, so that no checksum speaks against it."""


def fuzzed(name: str, number: int) -> Input:
    """An input of a reader: the same for the same number."""
    reader, rng = READERS[name], np.random.default_rng([zlib.crc32(name.encode()), number])
    content = _one_of(reader.make(), rng)
    known = HOSTILE.get(name, {})
    if known and rng.random() < 0.05:
        content = known[list(known)[int(rng.integers(len(known)))]].make()
    elif reader.rewrite is not None and rng.random() < 0.4:
        try:
            return Input(reader.rewrite(content, lambda document: odd(document, rng)), written=True)
        except (ValueError, TypeError, OverflowError, AttributeError):  # no such file can be written
            pass
    for _ in range(int(rng.choice([1, 1, 2, 4]))):
        content = list(MUTATIONS.values())[int(rng.integers(len(MUTATIONS)))](content, rng)
    return Input(content)


class Verdict(NamedTuple):
    """How reading went: ``accepted``, ``refused`` by a clear error, or what is wrong with acclimate."""

    kind: str
    said: str = ""


def judged(name: str, given: Input, folder: Path) -> Verdict:
    """Read a file in a new folder below ``folder``, and look for traces outside of it."""
    reader, home = READERS[name], folder / "home"
    home.mkdir(parents=True)
    (home / reader.file).write_bytes(given.content)
    try:
        return _read(reader, home / reader.file, given.written)
    finally:
        around = [path.name for path in folder.iterdir()]
        shutil.rmtree(home, ignore_errors=True)
        assert around == ["home"], f"{name} left something outside of its folder: {around}"
        assert not SENTINEL.exists(), f"{name} ran code from a file"


def _read(reader: Reader, path: Path, written: bool) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = reader.read(path)
        except AcclimateError as error:
            said = str(error)
            clear = said.strip() and "\n" not in said and len(said) < _LONGEST
            return Verdict("refused" if clear else "unclear", said)
        except Exception as error:
            return Verdict("other", f"{type(error).__name__}: {error}")
    if reader.exact and not written and not any(_same(found, good) for good in _valid_results(reader)):
        return Verdict("wrong", "what was read is not what was written")
    return Verdict("accepted")


_VALID: dict[str, list[Any]] = {}


def _valid_results(reader: Reader) -> list[Any]:
    """What the undamaged files of a reader hold."""
    key = f"{reader.file} {reader.read.__name__}"
    if key not in _VALID:
        with tempfile.TemporaryDirectory() as folder:
            _VALID[key] = []
            for content in reader.make():
                (Path(folder) / reader.file).write_bytes(content)
                _VALID[key].append(reader.read(Path(folder) / reader.file))
    return _VALID[key]


def _same(one: Any, other: Any) -> bool:
    return _shown(one) == _shown(other)


def _shown(found: Any) -> str:
    """A result as text, to compare."""
    return json.dumps(found, sort_keys=True, default=lambda value: getattr(value, "tolist", value.__repr__)())
