"""WebDataset shards: tar files in which `key.jpg` and `key.cls` belong together, here or elsewhere.

Shards that are elsewhere are fetched once, to a cache; images are then reached by their place in the file.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

import torch

from acclimate.data.download import cached
from acclimate.data.image_set import ImageSet
from acclimate.data.pictures import SUFFIXES, Bytes, Crop, decode_image
from acclimate.data.request import Request
from acclimate.data.tars import members_of, opened_tar
from acclimate.errors import InputError, check_unmasked, said, short, shown

__all__ = ["are_shards", "open_shards"]

_MOST_CLASSES = 1 << 31


@dataclass(frozen=True)
class _Sample:
    shard: str
    offset: int
    size: int
    name: str
    label: int | None


@dataclass(frozen=True)
class ShardReader:
    """Reads images at their places in tar files."""

    samples: list[_Sample]
    crop: Crop | None
    decodes: ClassVar[bool] = True

    def __call__(self, position: int) -> Bytes:
        sample = self.samples[position]
        with open(sample.shard, "rb") as file:
            file.seek(sample.offset)
            content = file.read(sample.size)
        return decode_image(content, f"{short(sample.name)} of {sample.shard}", self.crop)


def are_shards(path: str) -> bool:
    return path.endswith(".tar")


def open_shards(request: Request) -> ImageSet:
    """All samples of all shards, `{000..011}` standing for numbers and `*` for anything, in their order."""
    samples = [sample for shard, copy in _shards(request.path) for sample in _read_shard(shard, copy)]
    if not samples:
        raise InputError(f"no images in {shown(request.path)}")
    seen: set[str] = set()
    for sample in samples:
        if sample.name in seen:
            raise InputError(f"{sample.shard} holds {short(sample.name)}, which was there before")
        seen.add(sample.name)
    labels = [sample.label for sample in samples]
    known = [label for label in labels if label is not None]
    if not request.labels:
        known = []
    if known and len(known) < len(labels):
        lacking = samples[labels.index(None)]
        raise InputError(f"{short(lacking.name)} of {lacking.shard} has no label, but others have")
    names = [sample.name for sample in samples]
    own = torch.tensor(known) if known else None
    return ImageSet(ShardReader(samples, request.crop), names, "shards", own)


def _read_shard(shard: str, copy: Path) -> list[_Sample]:
    try:
        return list(_samples(copy))
    except InputError as error:
        if shard == str(copy):
            raise
        copy.unlink()  # so that it is fetched again
        raise InputError(f"{error}: this is a copy of {shown(shard)}, and was removed") from error


def _shards(path: str) -> list[tuple[str, Path]]:
    """Names of shards, and files that hold them."""
    found: list[tuple[str, Path]] = []
    for address in _expanded(path):
        if "://" in address:
            check_unmasked(address)
            if "*" in address:
                raise InputError(
                    f"{shown(address)}: an address cannot have *, as there is no list; give {{000..011}}"
                )
            found.append((address, cached(address)))
            continue
        base = Path(address)
        matches = sorted(base.parent.glob(base.name)) if "*" in base.name else [base]
        if not matches or not matches[0].is_file():
            raise InputError(f"there is no shard {address}")
        found += [(str(match), match) for match in matches]
    return found


def _expanded(path: str) -> Iterator[str]:
    """
    >>> list(_expanded("a-{08..10}.tar"))
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    """
    match = re.search(r"\{(\d+)\.\.(\d+)\}", path)
    if match is None:
        yield path
        return
    for number in range(int(match[1]), int(match[2]) + 1):
        yield from _expanded(f"{path[: match.start()]}{number:0{len(match[1])}d}{path[match.end() :]}")


def _samples(shard: Path) -> Iterator[_Sample]:
    """The images of a shard, each with the label that has its key."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    with opened_tar(shard) as file:
        for member in members_of(file, shard):
            folder, _, base = member.name.rpartition("/")
            stem, dot, suffix = base.partition(".")
            key = f"{folder}/{stem}" if folder else stem
            if not member.isfile():
                continue
            if f"{dot}{suffix}".lower() in SUFFIXES:
                if key in images:
                    both = f"{short(images[key].name)} and {short(member.name)}"
                    raise InputError(f"{shard} holds {short(key)} twice: {both}")
                images[key] = member
            elif suffix in ("cls", "json"):
                found = _label(key, suffix, file.extractfile(member), shard)
                if labels.get(key, found.get(key)) != found.get(key, labels.get(key)):
                    both = f"{labels[key]} and {found[key]}"
                    raise InputError(f"{short(key)} of {shard} has two labels, {both}")
                labels |= found
    for key, member in images.items():
        yield _Sample(str(shard), member.offset_data, member.size, key, labels.get(key))


def _label(key: str, suffix: str, file: IO[bytes] | None, shard: Path) -> dict[str, int]:
    content = b"" if file is None else file.read()
    try:
        found = {"label": int(content)} if suffix == "cls" else json.loads(content)
        if not isinstance(found, dict) or "label" not in found:
            return {}
        if type(found["label"]) is not int or abs(found["label"]) >= _MOST_CLASSES:
            raise ValueError(f"a whole number was expected, got {found['label']!r}")
        return {key: found["label"]}
    except (ValueError, RecursionError) as error:
        raise InputError(f"{short(key)}.{suffix} of {shard} holds no label: {said(error)}") from error
