"""Files that somebody made on purpose to do harm, by the reader they are meant for.

Each is small, and each was, or could have been, believed: it announces terabytes, unpacks to gigabytes, leads
out of its folder, back to its own beginning, or to a program. ``expected`` is part of what its reader says.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from acclimate.delta import _checksum
from file_readers import saved, tar_of

SENTINEL = Path(tempfile.gettempdir()) / f"acclimate-ran-code-{os.getpid()}"
"""Comes into being if a file runs code."""
DEEP = "[" * 100_000


class Hostile(NamedTuple):
    make: Callable[[], bytes]
    expected: str


class _Runs:
    """What touches the sentinel when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(SENTINEL),)


def _pickled() -> bytes:
    return pickle.dumps({"state_dict": _Runs()})


def _delta(document: str) -> bytes:
    tensors = {"a": torch.zeros(1)}
    return save(tensors, metadata={"acclimate": document, "checksum": _checksum(tensors, document)})


def _huge_header() -> bytes:
    return (2**62).to_bytes(8, "little") + b"{" + b" " * 100


def _bomb(unit: bytes, times: int) -> bytes:
    """Members of a gzip file, one after the other: a megabyte each, a thousandth of that here."""
    return gzip.compress(unit * (2**20 // len(unit)), mtime=0) * times


_ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
_MERGES = _ALIASES.replace("[x,x,x,x,x,x,x,x,x]", "{x: 1}").replace(" [*", " {<<: [*").replace("]", "]}")
_MANY = json.dumps({
    "networks": [{"name": "demo"}], "data": [{"name": "d"}], "methods": ["slr"] * 9000,
    "seeds": list(range(9000)), "severities": [1] * 9000,
})  # fmt: skip


def _picture(size: tuple[int, int], kind: str = "png") -> bytes:
    return saved(lambda file: Image.new("L", size).save(file, kind))


def _huge_png() -> bytes:
    """One that says it has a billion pixels."""
    content, size = bytearray(_picture((8, 8))), (32_000).to_bytes(4, "big")
    content[16:24] = size + size
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def _huge_jpeg() -> bytes:
    content, size = _picture((8, 8), "jpeg"), (65_000).to_bytes(2, "big")
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + size + size + content[at + 4 :]


_PROGRAM = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(/tmp/acclimate-ran-code) (w) file closefile showpage
%%EOF
"""


def _npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


_TERABYTES = "{'descr': '|u1', 'fortran_order': False, 'shape': (1048576, 1024, 1024, 3)}"
_OVERFLOW = "{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775807, 8, 8, 3)}"


def _objects() -> np.ndarray:
    found = np.empty(10, dtype=object)
    found[:] = _Runs()
    return found


def _zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
    return file.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def _backwards() -> bytes:
    """A member of a negative size: the next one begins where this one did, for ever."""
    members: list[Any] = [("set/a.png", b"x"), ("set/b.png", b"x")]
    content = tar_of(members, tarfile.USTAR_FORMAT)
    return content[:1024] + _sized(content[1024:], b"\xff" * 10 + b"\xfe\x00")  # -512, in base 256


def _sized(member: bytes, size: bytes) -> bytes:
    """The header of a member with another size, and the checksum of that."""
    head = member[:124] + size + member[136:148] + b" " * 8 + member[156:512]
    return head[:148] + b"%06o\0 " % sum(head) + head[156:] + member[512:]


def _announcing(name: str) -> bytes:
    """A member whose size is that of no disk."""
    return _sized(tar_of([(name, b"1")], tarfile.GNU_FORMAT), b"\x80" + (2**60).to_bytes(11, "big"))


def _expanded() -> bytes:
    """A tensor of one number that says it is 2^40 of them."""
    state = {"0.weight": torch.zeros(1).expand(2**40)}
    return saved(lambda file: torch.save(state, file))


_OUT, _IN = "../outside.txt", "set/a.png"
HOSTILE: dict[str, dict[str, Hostile]] = {
    "delta": {
        "a header of 2^62 bytes": Hostile(_huge_header, "not a whole safetensors file"),
        "a document 100,000 deep": Hostile(lambda: _delta(DEEP), "not a delta"),
        "a document that is a list": Hostile(lambda: _delta("[1]"), "not a delta"),
        "a pickle": Hostile(_pickled, "not a whole safetensors file"),
        "a source that is a number": Hostile(lambda: _delta('{"format": 2, "source": 1}'), "source is a int"),
    },
    "record": {
        "100,000 deep": Hostile(DEEP.encode, "is no record"),
        "no numbers": Hostile(lambda: b'{"schema": NaN}', "NaN is no number"),
        "a number of 100,000 digits": Hostile(lambda: b"1" * 100_000, "is no record"),
        "parts that are lists": Hostile(
            lambda: b'{"schema": 1, "cell": [], "cost": {}, "origin": {}}', "expected"
        ),
    },
    "records, packed": {
        "a gigabyte of nothing": Hostile(lambda: _bomb(b"\0", 1024), "more than"),
        "a gigabyte of lists": Hostile(lambda: _bomb(b"[]\n", 1024), "no record"),
        "100,000 deep": Hostile(lambda: gzip.compress(DEEP.encode()), "is no record"),
    },
    "spec": {
        "a billion laughs": Hostile(_ALIASES.encode, "more than 100,000 values"),
        "a billion merges": Hostile(_MERGES.encode, "more than 100,000 values"),
        "a list within itself": Hostile(lambda: b"overrides: &a [*a]", "more than 100,000 values"),
        "100,000 deep": Hostile(DEEP.encode, "cannot be read as a spec"),
        "a call": Hostile(
            lambda: f"networks: !!python/object/apply:os.mkdir ['{SENTINEL}']".encode(), "could not determine"
        ),
        "a date that is none": Hostile(lambda: b"networks: 2020-99-99", "cannot be read as a spec"),
        "a trillion cells": Hostile(_MANY.encode, "729,000,000,000 cells"),
        "names that are numbers": Hostile(
            lambda: b"{1: 2, networks: [{name: a}], data: [{name: a}], methods: [slr]}", "1"
        ),
        "two megabytes": Hostile(lambda: b"#" * (2 << 20), "more than 1,048,576 bytes"),
    },
    "png": {
        "a billion pixels": Hostile(_huge_png, "exceeds limit"),
        "a line": Hostile(lambda: _picture((1, 2_000_000)), "no square can be cut"),
        "a program": Hostile(lambda: _PROGRAM, "cannot identify image file"),
    },
    "jpeg": {
        "a billion pixels": Hostile(_huge_jpeg, "exceeds limit"),
    },
    "npy": {
        "terabytes": Hostile(lambda: _npy(_TERABYTES, b"0" * 100), "cannot be read as an array"),
        "more bytes than there are numbers": Hostile(lambda: _npy(_OVERFLOW), "cannot be read as an array"),
        "a pickle": Hostile(lambda: saved(lambda file: np.save(file, _objects())), "cannot be read"),
        "a header that does not end": Hostile(lambda: _npy("(" * 9000), "cannot be read as an array"),
    },
    "npz": {
        "a pickle": Hostile(lambda: saved(lambda file: np.savez(file, images=_objects())), "cannot be read"),
        "a pickle alone": Hostile(_pickled, "cannot be read"),
        "terabytes": Hostile(lambda: _zipped(_npy(_TERABYTES, b"0" * 100)), "larger than it"),
        "megabytes of nothing": Hostile(lambda: _zipped(bytes(80 << 20)), "would become"),
    },
    "shard": {
        "a member of 2^60 bytes": Hostile(lambda: _announcing("a.png"), "beyond its end"),
        "a label of 2^60 bytes": Hostile(lambda: _announcing("a.cls"), "beyond its end"),
        "a header of 2^60 bytes": Hostile(lambda: _announcing("././@LongLink"), "a.tar"),
        "a member before itself": Hostile(_backwards, "lies where something else does"),
        "a link": Hostile(
            lambda: tar_of([(_member("a.png", tarfile.SYMTYPE, "/etc/passwd"), b"")]), "neither file nor"
        ),
        "a label 100,000 deep": Hostile(lambda: tar_of([("a.json", DEEP.encode())]), "holds no label"),
        "a label of 30 digits": Hostile(lambda: tar_of([("a.cls", b"9" * 30)]), "holds no label"),
    },
    "archive": {
        "a way out": Hostile(lambda: tar_of([(_OUT, b"x"), (_IN, b"x")]), "outside"),
        "a way from the top": Hostile(
            lambda: tar_of([(_member("/../../../../../../../../etc/outside.txt"), b"")]), "outside"
        ),
        "a link out": Hostile(
            lambda: tar_of([(_member("set", tarfile.SYMTYPE, ".."), b""), ("set/outside.txt", b"x")]),
            "neither file nor folder",
        ),
        "a hard link": Hostile(
            lambda: tar_of([(_member("set", tarfile.LNKTYPE, "../../set.tar"), b"")]),
            "neither file nor folder",
        ),
        "a pipe": Hostile(lambda: tar_of([(_member("set", tarfile.FIFOTYPE), b"")]), "neither file"),
        "a gigabyte, packed": Hostile(lambda: _bomb(b"\0", 1024), "cannot be read as a tar file"),
        "a member before itself": Hostile(_backwards, "lies where something else does"),
        "a member of 2^60 bytes": Hostile(lambda: _announcing(_IN), "beyond its end"),
    },
    "checkpoint": {
        "code": Hostile(
            lambda: saved(lambda file: torch.save({"state_dict": _Runs()}, file)), "running code"
        ),
        "code, as before 2020": Hostile(
            lambda: saved(lambda file: torch.save(_Runs(), file, _use_new_zipfile_serialization=False)),
            "running code",
        ),
        "code, pickled": Hostile(_pickled, "running code"),
        "a tensor of 2^40 numbers": Hostile(_expanded, "weights of another network"),
    },
    "weights": {"a header of 2^62 bytes": Hostile(_huge_header, "damaged, or not a safetensors file")},
    "training": {
        "a header of 2^62 bytes": Hostile(_huge_header, "damaged"),
        "100,000 deep": Hostile(lambda: save({"a": torch.zeros(1)}, metadata={"training": DEEP}), "damaged"),
    },
    "visda list": {
        "a digit that is no number": Hostile(lambda: "bus/b.png ²".encode(), "a label below 12"),
        "5,000 digits": Hostile(lambda: b"bus/b.png " + b"1" * 5000, "a label below 12"),
        "a way out": Hostile(lambda: b"../home/bus/b.png 2", "there is no file"),
        "a way from the top": Hostile(lambda: b"/etc/passwd 2", "there is no file"),
        "a name that is too long": Hostile(lambda: b"bus/" + b"x" * 5000 + b" 2", "there is no file"),
    },
    "settings": {"100,000 deep": Hostile(DEEP.encode, "is damaged")},
}
