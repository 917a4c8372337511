"""Images that can be reached by position, with their labels beside them, never among them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from acclimate.data.buffers import Buffers
from acclimate.data.decoded import Decoded
from acclimate.data.pictures import Bytes, Crop
from acclimate.errors import InputError, counted, listed

__all__ = ["ImageSet", "readable", "unreadable", "without"]

_HINT = "; if it has labels to measure by, give it as labels (--evaluate FILE)"
_LOOKED_AT = 16  # images whose pixels are part of the fingerprint


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(Dataset[Tensor]):
    """What every layout gives. As a data set it holds images only, pixels in [0, 1]."""

    read: Callable[[int], Bytes]
    """The image at a position: 8 bits, (height, width, channels)."""
    names: Sequence[str]
    layout: str = "arrays"
    labels: Tensor | None = None
    """For each image an output of the network; None where they are not known."""
    class_names: tuple[str, ...] | None = None
    """Of the outputs of the network, as far as the data know them."""
    classes: tuple[int, ...] | None = None
    """The outputs that can occur, where these are not all: what `Adapter(classes=)` takes."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Files that look like images and are none of these, and why."""
    beside: tuple[str, ...] = ()
    """Other files among the images, which are not read."""
    empty: tuple[str, ...] = ()
    """Folders among those of the images in which there are none."""

    _buffers: Buffers = field(default_factory=Buffers, init=False)
    _cropped: dict[Crop | None, ImageSet] = field(default_factory=dict, init=False)
    """The same images with other crops, so that what they have decoded is kept."""
    _read_once: Callable[[int], Bytes] = field(init=False)
    """The reader, with what it has decoded kept."""

    def __post_init__(self) -> None:
        kept = Decoded(self.read) if getattr(self.read, "decodes", False) else self.read
        object.__setattr__(self, "_read_once", kept)
        if self.labels is not None and len(self.labels) != len(self.names):
            raise InputError(f"expected a label for each of {len(self.names)} images, got {len(self.labels)}")

    def __repr__(self) -> str:
        known = (
            "no labels" if self.labels is None else f"labels of {len(set(self.labels.tolist())):,} classes"
        )
        left_out = f", {counted(len(self.left_out), 'file')} left out" if self.left_out else ""
        return f"ImageSet({self.layout}, {len(self):,} images, {known}{left_out})"

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, position: int) -> Tensor:
        """The image (C, H, W) at a position; negative ones count from the end."""
        if not -len(self) <= position < len(self):
            raise IndexError(f"there are {len(self)} images, and none at {position}")
        return self.batch([position % len(self)])[0]

    def batch(self, positions: Sequence[int]) -> Tensor:
        """Images (N, C, H, W) in [0, 1], decoded side by side; in memory pixel by pixel, as they came."""
        if not all(0 <= position < len(self) for position in positions):
            raise IndexError(
                f"there are {len(self)} images, and not all of {list(positions)[:5]} … among them"
            )
        first = self._read_once(positions[0])
        pixels = self._buffers.lend((len(positions), *first.shape))

        def put(rows: range) -> None:
            for row in rows:
                image = first if row == 0 else self._read_once(positions[row])
                if image.shape != first.shape:
                    one, other = (self.names[positions[i]] for i in (0, row))
                    raise InputError(
                        f"images of a batch must have one size, got {one} {first.shape} and "
                        f"{other} {image.shape}: crop them"
                    )
                np.divide(image, np.float32(255), out=pixels[row], dtype=np.float32)

        count = torch.get_num_threads()  # as many as the network may have
        list(_threads(count).map(put, (range(start, len(positions), count) for start in range(count))))
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return images.contiguous().pin_memory() if torch.cuda.is_available() else images

    @property
    def crop(self) -> Crop | None:
        """How files are cropped; None where they are not, or where there are no files."""
        found = getattr(self.read, "crop", None)
        return found if isinstance(found, Crop) else None

    def cropped(self, crop: Crop | None) -> ImageSet:
        """The same images with another crop; arrays, which are never cropped, as they are."""
        if not hasattr(self.read, "crop") or crop == (self.crop and replace(self.crop, assumed=False)):
            return self
        if crop not in self._cropped:
            self._cropped[crop] = replace(self, read=_recropped(self.read, crop))
        return self._cropped[crop]

    def subset(self, positions: Sequence[int]) -> ImageSet:
        """Some of the images, in the order given."""
        kept = [int(position) for position in positions]
        return replace(
            self,
            read=_Moved(self.read, kept),
            names=[self.names[position] for position in kept],
            labels=None if self.labels is None else self.labels[kept],
        )

    def notes(self, used: Collection[str] = ()) -> tuple[str, ...]:
        """What lies among the images and is not read, in sentences, less the files that are ``used``."""
        found = []
        others = [name for name in self.beside if name not in used]
        if others:
            verb = "is" if len(others) == 1 else "are"
            hint = _HINT if any(name.lower().endswith(".csv") for name in others) else ""
            files = counted(len(others), "file")
            found.append(f"{files} among the images {verb} not read: {listed(others, 3)}{hint}")
        if self.empty:
            has = "has" if len(self.empty) == 1 else "have"
            found.append(f"{counted(len(self.empty), 'folder')} {has} no images: {listed(self.empty, 3)}")
        return tuple(found)

    def sample(self, count: int = 64) -> Tensor:
        """A few images (N, C, H, W) from all over the data."""
        step = max(1, len(self) // count)
        return self.batch(range(0, len(self), step)[:count]).contiguous()

    def fingerprint(self) -> str:
        """A digest of all names and labels and of some pixels: the same data have the same."""
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(name.encode(errors="surrogateescape") + b"\0")
        if self.labels is not None:
            digest.update(self.labels.numpy().astype("<i8").tobytes())
        for position in range(0, len(self), max(1, len(self) // _LOOKED_AT)):
            digest.update(np.ascontiguousarray(self.read(position)).tobytes())
        return digest.hexdigest()[:16]


def readable(
    images: ImageSet, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[ImageSet, dict[str, str]]:
    """The images that can be read, and what is wrong with the others."""
    return without(images, unreadable(images, range(len(images)), progress))


def unreadable(
    images: ImageSet,
    positions: Sequence[int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int, str]:
    """The positions, of those given, whose images cannot be read, and what is wrong with them."""
    failed: dict[int, str] = {}

    def look(position: int) -> None:
        try:
            images._read_once(position)
        except InputError as error:
            failed[position] = str(error)

    for done, _ in enumerate(_threads(torch.get_num_threads()).map(look, positions), start=1):
        progress(done, len(positions))
    return failed


def without(images: ImageSet, failed: Mapping[int, str]) -> tuple[ImageSet, dict[str, str]]:
    """The images that can be read, and what is wrong with the others, by name."""
    if len(failed) == len(images):
        raise InputError(f"none of {len(images)} images can be read: {next(iter(failed.values()))}")
    if not failed:
        return images, {}
    kept = [position for position in range(len(images)) if position not in failed]
    return images.subset(kept), {
        images.names[position]: reason for position, reason in sorted(failed.items())
    }


@dataclass(frozen=True)
class _Moved:
    """Reads at other positions; can go to another process where the reader can."""

    read: Callable[[int], Bytes]
    positions: list[int]

    @property
    def decodes(self) -> bool:
        return bool(getattr(self.read, "decodes", False))

    @property
    def crop(self) -> Crop | None:
        return self.read.crop  # type: ignore[attr-defined, no-any-return]

    def __call__(self, position: int) -> Bytes:
        return self.read(self.positions[position])


def _recropped(read: Callable[[int], Bytes], crop: Crop | None) -> Callable[[int], Bytes]:
    if isinstance(read, _Moved):
        return replace(read, read=_recropped(read.read, crop))
    return replace(read, crop=crop)  # type: ignore[type-var]


def _threads(count: int) -> ThreadPoolExecutor:
    return _threads_of(os.getpid(), count)


@cache
def _threads_of(_: int, count: int) -> ThreadPoolExecutor:
    """One pool a process: what a fork inherits has no threads."""
    return ThreadPoolExecutor(count, thread_name_prefix="acclimate-decode")
