"""The nineteen common corruptions: one table, one function to apply them.

>>> import numpy as np
>>> image = np.full((32, 32, 3), 128, dtype=np.uint8)
>>> corrupt(image, "contrast", severity=5).shape
(32, 32, 3)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.corruptions import blur, digital, noise, weather
from acclimate.corruptions.frost import frost_source
from acclimate.corruptions.parameters import parameters
from acclimate.corruptions.pixels import Images, opened
from acclimate.corruptions.streams import Streams
from acclimate.errors import OptionError, unknown

__all__ = [
    "CORRUPTIONS",
    "NAMES",
    "SEVERITIES",
    "VALIDATION_NAMES",
    "Corruption",
    "checked_severity",
    "checked_whole",
    "corrupt",
    "frost_source",
    "known",
]

SEVERITIES = (1, 2, 3, 4, 5)
_BLOCK = 1 << 18  # values worked on at once: few enough for a processor's cache


@dataclass(frozen=True)
class Corruption:
    """One row of the table."""

    apply: Callable[..., Any]
    """`(planes, streams, *parameters) -> planes`, or on 8-bit images where `bytes` says so."""
    kind: str
    """noise, blur, weather or digital."""
    validation: bool = False
    """For choosing hyperparameters; the others are for reporting."""
    bytes: bool = False
    """Works on 8-bit images (n, height, width, channels)."""

    @property
    def summary(self) -> str:
        return (self.apply.__doc__ or "").split("\n")[0]


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(noise.gaussian_noise, "noise"),
    "shot_noise": Corruption(noise.shot_noise, "noise"),
    "impulse_noise": Corruption(noise.impulse_noise, "noise"),
    "defocus_blur": Corruption(blur.defocus_blur, "blur"),
    "glass_blur": Corruption(blur.glass_blur, "blur"),
    "motion_blur": Corruption(blur.motion_blur, "blur"),
    "zoom_blur": Corruption(blur.zoom_blur, "blur"),
    "snow": Corruption(weather.snow, "weather"),
    "frost": Corruption(weather.frost, "weather"),
    "fog": Corruption(weather.fog, "weather"),
    "brightness": Corruption(digital.brightness, "weather"),
    "contrast": Corruption(digital.contrast, "digital"),
    "elastic_transform": Corruption(digital.elastic_transform, "digital"),
    "pixelate": Corruption(digital.pixelate, "digital", bytes=True),
    "jpeg_compression": Corruption(digital.jpeg_compression, "digital", bytes=True),
    "speckle_noise": Corruption(noise.speckle_noise, "noise", validation=True),
    "gaussian_blur": Corruption(blur.gaussian_blur, "blur", validation=True),
    "spatter": Corruption(weather.spatter, "weather", validation=True),
    "saturate": Corruption(digital.saturate, "digital", validation=True),
}
NAMES = tuple(name for name, row in CORRUPTIONS.items() if not row.validation)
VALIDATION_NAMES = tuple(name for name, row in CORRUPTIONS.items() if row.validation)


def corrupt(
    images: Images, name: str, severity: int, *, seed: int = 0, index: int | Sequence[int] | None = None
) -> Images:
    """Corrupt one image or a batch; the same kind comes back.

    Args:
        images: a PIL image, an array (H, W), (H, W, C) or (N, H, W, C), or a tensor (H, W), (C, H, W) or
            (N, C, H, W), grey or RGB, as uint8 or as floats in [0, 1].
        name: a name of `NAMES` or `VALIDATION_NAMES`.
        severity: 1 to 5.
        seed: with ``index`` decides all that is random.
        index: the number of the image in its data set, or of each image of a batch; of a batch also
            that of its first image. By default they are counted from 0 in every call: give it when you
            corrupt a data set image by image or batch by batch, or all of them get the same noise.
    """
    row = CORRUPTIONS[known(name)]
    severity, seed = checked_severity(severity), checked_whole("seed", seed)
    pixels = opened(images)
    indices = _indices(index, len(pixels))
    values = parameters(name, severity, pixels.height, pixels.width)
    step = max(1, _BLOCK // (pixels.channels * pixels.height * pixels.width))
    for start in range(0, len(pixels), step):
        part = slice(start, start + step)
        streams = Streams(seed, indices[part], name)
        if row.bytes:
            pixels.put_bytes(part, row.apply(pixels.bytes(part), streams, *values))
        else:
            pixels.put_planes(part, row.apply(pixels.planes(part), streams, *values))
    return pixels.result()


def known(name: str) -> str:
    """The name itself, or an error that offers the nearest names."""
    if not isinstance(name, str):
        raise OptionError(f"expected the name of a corruption, got {type(name).__name__}")
    if name not in CORRUPTIONS:
        raise OptionError(unknown("corruption", name, CORRUPTIONS))
    return name


def checked_severity(severity: Any) -> int:
    """A whole number from 1 to 5, or an error."""
    if isinstance(severity, (int, np.integer)) and not isinstance(severity, bool) and severity in SEVERITIES:
        return int(severity)
    raise OptionError(f"severity must be 1 to 5, got {severity!r}")


def checked_whole(what: str, number: Any) -> int:
    """A whole number that is not negative, or an error that names what it was for."""
    try:
        whole = operator.index(number)
    except TypeError:
        raise OptionError(f"{what} must be a whole number, got {number!r}") from None
    if whole < 0:
        raise OptionError(f"{what} must not be negative, got {whole}")
    return whole


def _indices(index: int | Sequence[int] | None, count: int) -> list[int]:
    if not isinstance(index, Iterable) or getattr(index, "ndim", 1) == 0:
        first = checked_whole("index", 0 if index is None else index)
        return list(range(first, first + count))
    indices = [checked_whole("index", number) for number in index]
    if len(indices) != count:
        raise OptionError(f"expected an index for each of {count} images, got {len(indices)}")
    return indices
