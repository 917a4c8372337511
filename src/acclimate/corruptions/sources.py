"""What a corrupted data set is made from: a folder of images, or an array in a `.npy` or `.npz` file."""

from __future__ import annotations

import os
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acclimate.corruptions.arrays import Bytes, Ints
from acclimate.errors import InputError, listed

__all__ = ["ArraySource", "FolderSource", "Source", "open_source", "read_image"]

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# What files of labels and images are called inside an .npz.
_IMAGES = ("images", "x", "data", "x_test", "arr_0")
_LABELS = ("labels", "y", "targets", "y_test", "arr_1")


class Source(ABC):
    """Images that are read one at a time, each with a name and a number for its randomness."""

    names: list[str]
    """Relative path of each image, without a suffix where it has no file."""
    labels: Ints | None = None
    ignored: Sequence[str] = ()
    """Suffixes of files that are not taken for images."""

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def read(self, position: int) -> Bytes:
        """An 8-bit image (height, width, channels)."""

    @abstractmethod
    def index(self, position: int) -> int:
        """The number from which the image's randomness is drawn."""


class FolderSource(Source):
    """All images below a folder, in the order of their paths.

    The randomness of an image comes from its path, so that other files may come and go. Class folders
    give labels: the rank of an image's top folder.
    """

    def __init__(self, folder: Path, size: int | None) -> None:
        self.folder, self.size = folder, size
        files = _files_below(folder)
        self.names = sorted(name for name in files if name.lower().endswith(SUFFIXES))
        if not self.names:
            raise InputError(f"no images in {folder}: looked for {listed(SUFFIXES)} in it and below")
        others = set(files) - set(self.names)
        self.ignored = sorted({Path(name).suffix or Path(name).name for name in others})
        if all("/" in name for name in self.names):
            tops = [name.split("/")[0] for name in self.names]
            ranks = {top: rank for rank, top in enumerate(sorted(set(tops)))}
            self.labels = np.array([ranks[top] for top in tops])

    def read(self, position: int) -> Bytes:
        return read_image(self.folder / self.names[position], self.size)

    def index(self, position: int) -> int:
        return zlib.crc32(os.fsencode(self.names[position]))


class ArraySource(Source):
    """Images (n, height, width[, channels]) of a file; a `.npy` file is read as it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        images, labels = _npz(path) if path.suffix.lower() == ".npz" else _npy(path)
        _check_images(path, images)
        self.shape = images.shape[1:]
        self.images = images if images.ndim == 4 else images[..., np.newaxis]
        self.labels = None if labels is None else _checked_labels(path, labels, len(images))
        self.names = [self._name(position) for position in range(len(images))]

    def _name(self, position: int) -> str:
        number = f"{position:05d}"
        return number if self.labels is None else f"{self.labels[position]}/{number}"

    def read(self, position: int) -> Bytes:
        return np.asarray(self.images[position])

    def index(self, position: int) -> int:
        return position

    def __reduce__(self) -> tuple[type[ArraySource], tuple[Path]]:
        return ArraySource, (self.path,)  # another process opens the file itself


def _check_images(path: Path, images: Any) -> None:
    found = f"{images.dtype} of shape {images.shape}"
    expected = f"expected uint8 images (n, height, width, channels) in {path}, got {found}"
    if images.dtype != np.uint8:
        raise InputError(f"{expected}: bring them to 0 to 255 and save them as uint8")
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


def open_source(path: Path, size: int | None) -> Source:
    """The source at a path; ``size`` crops the images of a folder, None leaves them as they are."""
    if path.is_dir():
        return FolderSource(path, size)
    if not path.exists():
        raise InputError(f"there is nothing at {path}: expected a folder of images, a .npy or a .npz file")
    if path.suffix.lower() not in (".npy", ".npz"):
        hint = (
            ": give its folder, or use acclimate.corrupt in Python" if path.suffix.lower() in SUFFIXES else ""
        )
        raise InputError(f"expected a folder of images, a .npy or a .npz file, got {path}{hint}")
    return ArraySource(path)


def read_image(path: Path, size: int | None) -> Bytes:
    """An 8-bit RGB image (height, width, 3), resized and cropped to ``size``.

    Grey, palettes and CMYK become RGB as published, alpha is dropped, 16-bit grey is rounded to 8 bits
    (Pillow itself cuts 16-bit RGB). As for ImageNet, the shorter side becomes 256/224 of ``size`` and the
    centre is kept; an image of that very size is left as it is.
    """
    try:
        with Image.open(path) as file:
            image = _eight_bits(file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image: {error}") from error
    if size is not None and image.size != (size, size):
        image = _cropped(image, size)
    return np.asarray(image)


def _eight_bits(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((values.clip(0, 65535) + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range")
    return image.convert("RGB")


def _cropped(image: Image.Image, size: int) -> Image.Image:
    target = int(size * 256 / 224)
    width, height = image.size
    if min(width, height) != target:
        scale = target / min(width, height)
        width, height = (max(target, int(side * scale)) for side in (width, height))
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def _files_below(folder: Path) -> list[str]:
    """Relative paths, also of what links lead to, each folder once."""

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}")

    found, seen = [], set()
    for root, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        base = Path(root).relative_to(folder)
        for name in files:
            if not name.startswith("."):
                found.append((base / name).as_posix())
    return found


def _npy(path: Path) -> tuple[Any, Any]:
    beside = path.with_name("labels.npy")
    with _readable(path):
        images = np.lib.format.open_memmap(path, mode="r")
        labels = np.lib.format.open_memmap(beside, mode="r") if beside.exists() and beside != path else None
    return images, labels


def _npz(path: Path) -> tuple[Any, Any]:
    with _readable(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        images = next((name for name in _IMAGES if name in archive.files), None)
        if images is None:
            found = listed(archive.files)
            raise InputError(f"expected images in {path} under one of {listed(_IMAGES)}, got {found}")
        labels = next((name for name in _LABELS if name in archive.files), None)
        return archive[images], archive[labels] if labels else None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read as an array: {error}") from error
