"""Images in memory, or in a data set of somebody else: arrays of bytes, and Pillow's images."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from acclimate.data.array_files import check_images
from acclimate.data.cifar_c import ArrayReader
from acclimate.data.image_set import ImageSet
from acclimate.data.pictures import Bytes, Crop, eight_bits
from acclimate.errors import InputError, said

__all__ = ["ItemReader", "known_pixels"]

_LOOKED_AT = 8  # items of a data set, of which the first may be damaged
_ONE_AT_A_TIME: Final = threading.Lock()
"""Nobody knows whether a data set of somebody else can be read by several threads."""


@dataclass(frozen=True)
class ItemReader:
    """Reads what a list or a data set gives: one of Pillow's images, or a tuple or dict with one in it."""

    items: Any
    crop: Crop | None

    def __call__(self, position: int) -> Bytes:
        try:
            with _ONE_AT_A_TIME:
                found = _picture(self.items[position])
            if found is None:
                raise ValueError("it is none of Pillow's images, as others are")
            image = eight_bits(found)
            return np.asarray(image if self.crop is None else self.crop(image))
        except Exception as error:  # whatever the data set and Pillow's decoders raise
            raise InputError(f"image {position} of the data cannot be read: {said(error)}") from error


def known_pixels(data: Any, crop: Crop | None) -> ImageSet | None:
    """The images of data that are known to be pixels, whatever holds them; None where they may be anything.

    Arrays of bytes are (n, height, width, channels), tensors of bytes (n, channels, height, width).
    """
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, np.ndarray) and data.dtype.kind == "f":
        raise InputError(
            f"an array of {data.dtype} may be anything: give bytes (uint8), or a tensor of what the "
            "model takes (torch.from_numpy makes one), or of pixels in [0, 1] with normalize="
        )
    if isinstance(data, np.ndarray):
        check_images("the array", data)
        return _in_memory(data)
    if isinstance(data, Tensor):
        return _in_memory(_bytes_of(data)) if data.dtype == torch.uint8 else None
    if _gives_pictures(data):
        return ImageSet(ItemReader(data, crop), _names(data), type(data).__name__)
    return None


def _in_memory(pixels: Bytes) -> ImageSet:
    return ImageSet(ArrayReader(pixels), [str(number) for number in range(len(pixels))])


def _bytes_of(images: Tensor) -> Bytes:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not len(images):
        raise InputError(
            "a tensor of bytes must hold images (n, channels, height, width) of 1 or 3 channels, got the "
            f"shape {tuple(images.shape)}: images.permute(0, 3, 1, 2) where channels are last"
        )
    return images.detach().cpu().permute(0, 2, 3, 1).numpy()


def _gives_pictures(data: Any) -> bool:
    """Whether a list or a data set gives Pillow's images, by its first ones."""
    if isinstance(data, (str, bytes, Mapping, DataLoader, IterableDataset)):
        return False
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return False
    with torch.random.fork_rng(devices=[]):  # looking changes nothing
        for position in range(min(_LOOKED_AT, len(data))):
            try:
                return _picture(data[position]) is not None
            except Exception:  # of a damaged file: what is wrong is told when it is read
                continue
    return False


def _picture(item: Any) -> Image.Image | None:
    """The image of an item: itself, the first of a tuple, or the only one of a dict."""
    if isinstance(item, Mapping):
        item = next((value for value in item.values() if isinstance(value, Image.Image)), None)
    elif isinstance(item, (tuple, list)) and item:
        item = item[0]
    return item if isinstance(item, Image.Image) else None


def _names(data: Any) -> list[str]:
    """Paths, where the data set knows them as torchvision's do; otherwise positions."""
    samples = getattr(data, "samples", None)
    if isinstance(samples, list) and len(samples) == len(data) and all(isinstance(s, tuple) for s in samples):
        return [str(sample[0]) for sample in samples]
    return [str(position) for position in range(len(data))]
