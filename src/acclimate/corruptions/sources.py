"""What a corrupted data set is made from: a folder of images, or an array in a `.npy` or `.npz` file."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acclimate.corruptions.arrays import Bytes, Ints
from acclimate.data.array_files import open_array_file
from acclimate.data.pictures import SUFFIXES, files_below, read_image
from acclimate.errors import InputError, listed

__all__ = ["ArraySource", "FolderSource", "Source", "open_source"]


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
        files = files_below(folder)
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
        images, self.labels = open_array_file(path)
        self.shape = images.shape[1:]
        self.images = images if images.ndim == 4 else images[..., np.newaxis]
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
