"""The file that holds an adaptation: only what changed, and what is needed to go on.

A safetensors file. Its metadata hold one JSON document; nothing in it can run code. The document
names a digest of every tensor of the source model, so that a delta is never put on other weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from acclimate.errors import DeltaError, OutputError, listed, said, short
from acclimate.files import whole_file

__all__ = ["check_source", "digests", "is_delta", "read_delta", "write_delta"]

FORMAT: Final = 2
_KEY: Final = "acclimate"
_SUM: Final = "checksum"
_HEADER: Final = 100_000_000  # bytes: safetensors refuses longer headers
_PARTS: Final[dict[str, type | tuple[type, ...]]] = {
    "method": dict, "options": dict, "source": dict, "about": dict, "fit": (dict, type(None)), "calls": int,
}  # fmt: skip


def write_delta(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]
) -> None:
    """Write a delta as a whole or not at all."""
    target = Path(path)
    contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({**document, "format": FORMAT})
    payload = save(contents, metadata={_KEY: text, _SUM: _checksum(contents, text)})
    try:
        with whole_file(target) as part:
            part.write_bytes(payload)
    except OutputError as error:
        raise OutputError(f"{error}. The adapted model is still in memory: save it elsewhere") from error


def read_delta(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document of a delta."""
    try:
        contents = _contents(path)
        tensors = load(contents)
        metadata = _metadata(contents)
        document = json.loads(metadata[_KEY])
        version = document["format"]
        whole = version != FORMAT or metadata.get(_SUM) == _checksum(tensors, metadata[_KEY])
    except FileNotFoundError:
        raise DeltaError(f"there is no file {os.fspath(path)}") from None
    except OSError as error:
        raise DeltaError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except MemoryError:
        raise DeltaError(f"cannot read {os.fspath(path)}: it does not fit into memory") from None
    except SafetensorError as error:
        raise DeltaError(f"{os.fspath(path)} is not a whole safetensors file ({said(error)})") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DeltaError(
            f"{os.fspath(path)} is a safetensors file but not a delta that Adapter.save wrote"
        ) from error
    if version != FORMAT:
        raise DeltaError(
            f"{os.fspath(path)} has format {short(version)}; this acclimate reads format {FORMAT}"
        )
    if not whole:
        raise DeltaError(
            f"{os.fspath(path)} is damaged: what it holds is not what was saved. Take a copy, or adapt again"
        )
    _check_parts(os.fspath(path), document)
    return tensors, document


def is_delta(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is a delta; whether it is whole, `read_delta` finds out."""
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            size = min(int.from_bytes(start, "little"), _HEADER)
            return _KEY in _metadata(start + file.read(size))
    except OSError as error:
        raise DeltaError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except (ValueError, RecursionError, AttributeError, TypeError):
        return False


def _contents(path: str | os.PathLike[str]) -> bytes:
    """By one opening, as another process may replace the file; of another kind of file, its first bytes."""
    with open(path, "rb") as file:
        start = file.read(9)
        return start + file.read() if start.endswith(b"{") else start


def _metadata(contents: bytes) -> dict[str, str]:
    """What a whole safetensors file says of itself: behind its length, a header in JSON."""
    size = int.from_bytes(contents[:8], "little")
    found: dict[str, str] = json.loads(contents[8 : 8 + size]).get("__metadata__", {})
    return found


def _checksum(tensors: Mapping[str, Tensor], document: str) -> str:
    """Of all that a delta holds: where a disk forgets a bit, there is an error, not another network."""
    digest = hashlib.sha256(document.encode(errors="surrogateescape"))
    for name, own in digests(tensors).items():
        digest.update(f"{name} {own} ".encode())
    return digest.hexdigest()


def _check_parts(path: str, document: Mapping[str, Any]) -> None:
    """Who wrote a file on purpose can give any value to any name: those that are looked into have a type."""
    for name, kind in _PARTS.items():
        if name in document and not isinstance(document[name], kind):
            found = type(document[name]).__name__
            raise DeltaError(f"{path} lacks what this acclimate needs: {name} is a {found}")
    digest = document.get("source", {}).values()
    if not all(isinstance(value, str) for value in digest):
        raise DeltaError(f"{path} lacks what this acclimate needs: source holds no digests")


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """A digest of every tensor of a state dict: type, shape and bytes."""
    found = {}
    for name, tensor in sorted(state.items()):
        if not isinstance(tensor, Tensor):
            continue  # the extra state of a module
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
        found[name] = hashlib.sha256(head + data.tobytes()).hexdigest()[:16]
    return found


def check_source(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a delta that was made from another model, with the names that differ."""
    missing = sorted(expected.keys() - found.keys())
    added = sorted(found.keys() - expected.keys())
    if missing or added:
        parts = []
        if missing:
            parts.append(f"the model lacks {listed(missing, 5)}")
        if added:
            parts.append(f"the delta knows nothing of {listed(added, 5)}")
        raise DeltaError(
            f"this delta belongs to another model: {'; '.join(parts)}. Give the model it was made from"
        )
    differing = [name for name in sorted(expected) if expected[name] != found[name]]
    if differing:
        raise DeltaError(
            "this delta belongs to the same architecture with other weights; "
            f"{len(differing)} of {len(expected)} tensors differ: {listed(differing, 5)}. "
            "Give the model with the weights it had before adapting"
        )
