"""CIFAR-10-C and CIFAR-100-C: `corruption.npy` with five severities one after the other, `labels.npy`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate.data.array_files import open_array_file
from acclimate.data.image_set import ImageSet
from acclimate.data.pictures import Bytes
from acclimate.data.request import Request
from acclimate.errors import InputError

__all__ = ["ArrayReader", "is_cifar_c", "open_array", "open_cifar_c"]

_SEVERITIES = 5
_ONE = re.compile(r"(.+)_([1-5])")  # a file of one severity


@dataclass(frozen=True)
class ArrayReader:
    """Reads rows of an array from ``start`` on."""

    images: Any
    start: int = 0

    def __call__(self, position: int) -> Bytes:
        image = np.asarray(self.images[self.start + position])
        return image if image.ndim == 3 else image[..., np.newaxis]


def _files(path: Path) -> list[str]:
    return sorted(file.stem for file in path.glob("*.npy") if file.stem != "labels")


def is_cifar_c(path: Path) -> bool:
    return path.is_dir() and (path / "labels.npy").exists() and bool(_files(path))


def open_cifar_c(request: Request) -> ImageSet:
    """One corruption at one severity: a fifth of `fog.npy`, or all of `fog_5.npy`, as `corrupt` makes it."""
    found = [_ONE.fullmatch(stem) for stem in _files(request.folder)]
    alone = {(match[1], match[2]) for match in found if match is not None}
    names = sorted(
        {
            stem if match is None else match[1]
            for stem, match in zip(_files(request.folder), found, strict=True)
        }
    )
    corruption = request.chosen("corruption", names)
    whole = request.folder / f"{corruption}.npy"
    all_five = [str(number + 1) for number in range(_SEVERITIES)]
    severities = all_five if whole.exists() else sorted(level for name, level in alone if name == corruption)
    severity = request.chosen("severity", severities)
    path = whole if whole.exists() else request.folder / f"{corruption}_{severity}.npy"
    images, labels = open_array_file(path)
    if labels is None:
        raise InputError(f"there is no {path.with_name('labels.npy')}, which this layout needs")
    parts = _SEVERITIES if path == whole else 1
    if len(images) % parts:
        raise InputError(f"expected five severities of equal length in {path}, got {len(images):,} images")
    count = len(images) // parts
    own = np.array(labels, dtype=np.int64).reshape(parts, count)
    if (own != own[0]).any():
        raise InputError(
            f"expected five severities of the same images in {path}, but their labels differ: a file of "
            f"one severity is called {corruption}_5.npy"
        )
    start = (int(severity) - 1) * count if path == whole else 0
    numbers = [f"{corruption}/{severity}/{number:05d}" for number in range(count)]
    return ImageSet(ArrayReader(images, start), numbers, "cifar-c", torch.from_numpy(own[0]))


def open_array(request: Request) -> ImageSet:
    """A `.npy` or `.npz` file of images, with labels if it has them."""
    images, labels = open_array_file(request.folder, labels=request.labels)
    names = [f"{number:05d}" for number in range(len(images))]
    own = None if labels is None else torch.from_numpy(np.array(labels, dtype=np.int64))
    return ImageSet(ArrayReader(images), names, "arrays", own)
