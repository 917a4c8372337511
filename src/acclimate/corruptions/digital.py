"""Corruptions of the digital path and of colour: `(planes, streams, *parameters) -> planes`.

`pixelate` and `jpeg_compression` work on 8-bit images (n, height, width, channels) instead.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

from acclimate.corruptions.arrays import Bytes, Floats
from acclimate.corruptions.filters import smooth
from acclimate.corruptions.streams import Streams
from acclimate.corruptions.warp import affine_positions, mirrored, mirrored_edge, sampled
from acclimate.errors import InputError

__all__ = [
    "brightness",
    "check_fits_jpeg",
    "contrast",
    "elastic_transform",
    "jpeg_compression",
    "pixelate",
    "saturate",
]

_LARGEST_JPEG = 65_500


def brightness(x: Floats, streams: Streams, amount: float) -> Floats:
    """Add to the value of hue, saturation and value: all channels grow in proportion."""
    value = x.max(axis=1, keepdims=True)
    brighter = np.minimum(value + np.float32(amount), 1)
    black = value == 0
    x /= np.where(black, np.float32(1), value)  # shares of the value, at most one
    x *= brighter
    return np.where(black, brighter, x)


def saturate(x: Floats, streams: Streams, factor: float, offset: float) -> Floats:
    """Multiply the saturation and add to it; a grey pixel has red's hue, an image of one channel none."""
    if x.shape[1] == 1:
        return x
    value = x.max(axis=1, keepdims=True)
    away = value - x
    spread = away.max(axis=1, keepdims=True)  # saturation times value
    grey = spread == 0
    wanted = np.clip(spread * np.float32(factor) + value * np.float32(offset), 0, value)
    away *= wanted / np.where(grey, np.float32(1), spread)
    away[:, 1:] += np.where(grey, wanted, 0)
    return value - away


def contrast(x: Floats, streams: Streams, factor: float) -> Floats:
    """Draw every channel towards its mean over the image."""
    mean = x.reshape(*x.shape[:2], -1).mean(axis=2, dtype=np.float64)[..., np.newaxis, np.newaxis]
    scale = np.float32(factor)
    return x * scale + (mean * (1 - factor)).astype(np.float32)


def pixelate(images: Bytes, streams: Streams, share: float) -> Iterator[Bytes]:
    """Shrink to a share of the size by the mean over boxes, and enlarge again."""
    for image in _pictures(images):
        width, height = (min(max(1, int(side * share)), side - 1) for side in image.size)
        small = image.resize((width, height), Image.Resampling.BOX)
        yield np.asarray(small.resize(image.size, Image.Resampling.NEAREST))


def jpeg_compression(images: Bytes, streams: Streams, quality: float) -> Iterator[Bytes]:
    """Through JPEG and back."""
    check_fits_jpeg(*images.shape[1:3])
    for image in _pictures(images):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(quality))
        yield np.asarray(Image.open(file, formats=("JPEG",)))


def check_fits_jpeg(height: int, width: int) -> None:
    """An error for images that JPEG cannot hold."""
    if max(height, width) > _LARGEST_JPEG:
        raise InputError(f"JPEG holds at most {_LARGEST_JPEG} pixels a side, got {height} by {width}")


def _pictures(images: Bytes) -> Iterator[Image.Image]:
    for image in images:
        yield Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def elastic_transform(x: Floats, streams: Streams, strength: float, sigma: float, affine: float) -> Floats:
    """A random affine map, then a random smooth displacement of every pixel."""
    height, width = x.shape[2:]
    shifts = (2 * streams.uniform(3, 2) - 1) * np.float32(affine)
    x = sampled(x, *affine_positions(shifts, height, width), mirrored)
    if strength == 0:
        return x
    shift = smooth(2 * streams.uniform(2, height, width) - 1, sigma) * np.float32(strength)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    return sampled(x, rows + shift[:, 1], columns + shift[:, 0], mirrored_edge)
