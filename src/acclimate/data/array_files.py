"""Images in a `.npy` or `.npz` file."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from acclimate.errors import InputError, listed, said
from acclimate.files import room_for

__all__ = ["check_images", "open_array_file"]

Ints = npt.NDArray[np.integer[Any]]
# What files of labels and images are called inside an .npz.
_IMAGES = ("images", "x", "data", "x_test", "arr_0")
_LABELS = ("labels", "y", "targets", "y_test", "arr_1")


def open_array_file(path: Path, *, labels: bool = True) -> tuple[Any, Ints | None]:
    """Images (n, height, width[, channels]) of 8 bits, and labels, if there are any.

    A `.npy` file is read as it is needed; its labels are in `labels.npy` beside it.
    """
    images, found = _npz(path) if path.suffix.lower() == ".npz" else _npy(path)
    check_images(str(path), images)
    return images, None if found is None or not labels else _checked_labels(path, found, len(images))


def check_images(where: str, images: Any) -> None:
    """An error if an array does not hold 8-bit images (n, height, width[, channels])."""
    found = f"{images.dtype} of shape {images.shape}"
    expected = f"expected uint8 images (n, height, width, channels) in {where}, got {found}"
    if images.dtype != np.uint8:
        raise InputError(f"{expected}: bring them to 0 to 255 as uint8")
    if images.ndim not in (3, 4) or not len(images):
        raise InputError(expected)
    if images.ndim == 3 and (images.shape[-1] in (1, 3) or images.shape[0] in (1, 3)):
        raise InputError(f"{expected}: give one image a first axis of 1, and grey images a last axis of 1")
    if images.ndim == 4 and images.shape[-1] not in (1, 3):
        raise InputError(f"{expected}: 1 or 3 channels, and they come last")
    if min(images.shape[1:3]) < 8:
        raise InputError(f"{expected}: at least 8 by 8 pixels")


def _checked_labels(path: Path, labels: Ints, count: int) -> Ints:
    flat = labels.reshape(-1) if labels.shape == (count, 1) else labels
    if flat.shape != (count,) or not np.issubdtype(flat.dtype, np.integer):
        raise InputError(
            f"expected a whole number as label of each of the {count} images of {path}, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    return np.asarray(flat)


def _npy(path: Path) -> tuple[Any, Any]:
    beside = path.with_name("labels.npy")
    with _readable(path):
        images = np.lib.format.open_memmap(path, mode="r")
        labels = np.lib.format.open_memmap(beside, mode="r") if beside.exists() and beside != path else None
    return images, labels


def _npz(path: Path) -> tuple[Any, Any]:
    with _readable(path):
        _check_sizes(path)
    with _readable(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        images = next((name for name in _IMAGES if name in archive.files), None)
        if images is None:
            found = listed(archive.files)
            raise InputError(f"expected images in {path} under one of {listed(_IMAGES)}, got {found}")
        labels = next((name for name in _LABELS if name in archive.files), None)
        return archive[images], archive[labels] if labels else None


def _check_sizes(path: Path) -> None:
    """Nothing is unpacked that would fill the memory: neither by its size nor by the array it announces."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.file_size > room_for(entry.compress_size):
                size = f"{entry.compress_size:,} bytes would become {entry.file_size:,}"
                raise ValueError(f"{entry.filename}: {size}; if it is meant to be so, save it unpacked")
            if entry.filename.endswith(".npy"):
                with archive.open(entry) as file:
                    if _announced(file) > entry.file_size:
                        raise ValueError(f"{entry.filename} announces an array that is larger than it")


def _announced(file: IO[bytes]) -> int:
    """Bytes of the array whose header begins a file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return math.prod(shape) * dtype.itemsize


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # numpy and zipfile raise whatever they meet, from a TokenError to no memory
        raise InputError(f"{path} cannot be read as an array: {said(error)}") from error
