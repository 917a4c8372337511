"""Frosted window panes: photographs where they are installed, drawn crystals otherwise.

The published corruption lays parts of photographs over the image. They are not ours to give away, but
the distribution `imagecorruptions` carries them: where it is installed, its files are read (its code is
never imported). Otherwise panes are drawn, see `crystals`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
from PIL import Image

from acclimate.corruptions.arrays import Floats
from acclimate.corruptions.crystals import drawn_panes
from acclimate.corruptions.parameters import published_size
from acclimate.corruptions.warp import clamped, sampled

__all__ = ["frost_panes", "frost_source", "part_of_pane"]

_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
_DRAWN = 5  # the published generators draw a number below five and so never the sixth photograph
_SCALE = {224: 1.0, 64: 0.3, 32: 0.2}  # how much the published generators shrink the photographs


def frost_source() -> str:
    """Where frost comes from: "photographs" or "crystals"."""
    return "photographs" if _photographs() else "crystals"


def frost_panes() -> tuple[Floats, ...]:
    """The panes (3, rows, columns) in [0, 1], as they were photographed or drawn."""
    return _photographs() or drawn_panes()


def part_of_pane(pane: Floats, height: int, width: int, down: float, right: float) -> Floats:
    """A part (3, height, width) of a pane; ``down`` and ``right`` in [0, 1) say which.

    The pane is thought enlarged or shrunk as for images of the size, and to at least their size.
    """
    size = published_size(height, width)
    rows, columns = pane.shape[1:]
    scale = max(_SCALE[size] * min(height, width) / size, height / rows, width / columns)
    top = int(down * (round(rows * scale) - height))
    left = int(right * (round(columns * scale) - width))
    if scale == 1:
        return pane[:, top : top + height, left : left + width]
    # linear interpolation between pixel centres without smoothing, as OpenCV's resize
    at_rows = (np.arange(top, top + height, dtype=np.float32) + np.float32(0.5)) / np.float32(scale)
    at_columns = (np.arange(left, left + width, dtype=np.float32) + np.float32(0.5)) / np.float32(scale)
    grid = np.meshgrid(at_rows - np.float32(0.5), at_columns - np.float32(0.5), indexing="ij")
    return sampled(pane[np.newaxis], grid[0][np.newaxis], grid[1][np.newaxis], clamped)[0]


@lru_cache(maxsize=1)
def _photographs() -> tuple[Floats, ...]:
    try:
        installed = distribution("imagecorruptions")
    except PackageNotFoundError:
        return ()
    paths = [Path(str(installed.locate_file(f"imagecorruptions/frost/{name}"))) for name in _FILES]
    if not all(path.is_file() for path in paths):
        return ()
    return tuple(_planes(path) for path in paths[:_DRAWN])


def _planes(path: Path) -> Floats:
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32) / np.float32(255)
