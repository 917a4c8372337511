"""Image files: which there are below a folder, and one of them as pixels."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from acclimate.errors import InputError, said

__all__ = [
    "SUFFIXES",
    "UNREAD",
    "Bytes",
    "Crop",
    "decode_image",
    "eight_bits",
    "files_below",
    "read_image",
]

Bytes = npt.NDArray[np.uint8]
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""By content, whatever a file is called. Pillow knows others: one of them is a program that it would run."""
_MOST_PIXELS = 1 << 27
"""Of an image made larger for a crop: a line of pixels would become a billion of them."""
_SMALL, _DENSEST = 1 << 24, 1000  # pixels that any file may have, and beyond that for each of its bytes
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
UNREAD = (
    ".apng", ".arw", ".avif", ".cr2", ".cr3", ".dcm", ".dib", ".dng", ".emf", ".eps", ".exr", ".fits", ".gif",
    ".hdr", ".heic", ".heif", ".ico", ".j2k", ".jfif", ".jp2", ".jpe", ".jxl", ".nef", ".orf", ".pbm", ".pcx",
    ".pnm", ".psd", ".raf", ".raw", ".rw2", ".svg", ".tga", ".xcf",
)  # fmt: skip
"""Of files that are images to people, and are not read: animations, and what Pillow has no reader for."""


@dataclass(frozen=True)
class Crop:
    """How an image becomes a square: the shorter side becomes ``resize``, then the centre is kept."""

    size: int = 224
    resize: int | None = None
    """By default 256/224 of the size, as for ImageNet."""
    interpolation: str = "bilinear"
    squash: bool = False
    """Resize to the square itself, whatever the proportions; nothing is cut away."""
    assumed: bool = False
    """Whether nobody asked for this crop: one that the network was evaluated with replaces it."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """The crop; an image of that very size is left as it is, as published ones are cropped already."""
        if image.size == (self.size, self.size):
            return image
        how = Image.Resampling[self.interpolation.upper()]
        if self.squash:
            return image.resize((self.size, self.size), how)
        target = self.resize or int(self.size * 256 / 224)
        width, height = image.size
        if min(width, height) != target:
            shorter = min(width, height)
            width, height = (target * side // shorter for side in (width, height))  # as torchvision rounds
            if width * height > _MOST_PIXELS:
                raise ValueError(f"of {image.width} by {image.height} pixels no square can be cut")
            image = image.resize((width, height), how)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))


def read_image(path: Path, crop: Crop | int | None) -> Bytes:
    """An 8-bit RGB image (height, width, 3), cropped: a number is the size of ImageNet's crop."""
    try:
        content = path.read_bytes()  # at once: Pillow's own small reads take a quarter longer
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    return decode_image(content, str(path), crop)


def decode_image(content: bytes, name: str, crop: Crop | int | None) -> Bytes:
    """An image from the content of its file.

    Grey, palettes and CMYK become RGB as published, alpha is dropped, 16-bit grey is rounded to 8 bits
    (Pillow itself cuts 16-bit RGB).
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as found:
            _check_pixels(found, len(content))
            image = eight_bits(found)
        if crop is not None:
            image = (Crop(crop) if isinstance(crop, int) else crop)(image)
    except Exception as error:  # Pillow's decoders raise whatever they meet: struct's, zlib's, an IndexError
        reason = said(error).partition(" <_io.BytesIO")[0]
        raise InputError(f"{name} cannot be read as an image: {reason}") from error
    return np.asarray(image)


def _check_pixels(image: Image.Image, size: int) -> None:
    """Large images need large files: no format makes a thousand pixels of a byte, but a header may say so."""
    if image.width * image.height > max(_SMALL, _DENSEST * size):
        raise ValueError(f"it announces {image.width} by {image.height} pixels in {size:,} bytes")


def eight_bits(image: Image.Image) -> Image.Image:
    """An image of any kind as RGB of 8 bits."""
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((values.clip(0, 65535) + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range")
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()  # as it is: converting it would copy it
        return image
    return image.convert("RGB")


def files_below(folder: Path) -> list[str]:
    """Relative paths, also of what links lead to, each folder once."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()

    def look(path: str, prefix: str) -> None:
        about = os.stat(path)
        if (about.st_dev, about.st_ino) in seen:
            return
        seen.add((about.st_dev, about.st_ino))
        with os.scandir(path) as found_there:
            # what links lead to comes last, so that a folder goes by its own name
            entries = sorted(found_there, key=lambda entry: (entry.is_symlink(), entry.name))
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    look(entry.path, f"{prefix}{entry.name}/")
                elif entry.is_file() or entry.is_symlink():  # who opens a pipe waits for ever
                    found.append(prefix + entry.name)

    try:
        look(str(folder), "")
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
    return found
