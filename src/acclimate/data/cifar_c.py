"""CIFAR-10-C and CIFAR-100-C: `corruption.npy` with five severities one after the other, `labels.npy`."""

from __future__ import annotations

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
    """One corruption at one severity: a fifth of its file."""
    corruption = request.chosen("corruption", _files(request.folder))
    path = request.folder / f"{corruption}.npy"
    images, labels = open_array_file(path)
    if labels is None:
        raise InputError(f"there is no {path.with_name('labels.npy')}, which this layout needs")
    if len(images) % _SEVERITIES:
        raise InputError(f"expected five severities of equal length in {path}, got {len(images):,} images")
    severity = int(request.chosen("severity", [str(number + 1) for number in range(_SEVERITIES)]))
    count = len(images) // _SEVERITIES
    start = (severity - 1) * count
    names = [f"{corruption}/{severity}/{number:05d}" for number in range(count)]
    own = torch.from_numpy(np.array(labels[start : start + count], dtype=np.int64))
    return ImageSet(ArrayReader(images, start), names, "cifar-c", own)


def open_array(request: Request) -> ImageSet:
    """A `.npy` or `.npz` file of images, with labels if it has them."""
    images, labels = open_array_file(request.folder, labels=request.labels)
    names = [f"{number:05d}" for number in range(len(images))]
    own = None if labels is None else torch.from_numpy(np.array(labels, dtype=np.int64))
    return ImageSet(ArrayReader(images), names, "arrays", own)
