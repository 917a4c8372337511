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
from acclimate.corruptions.warp import resized

__all__ = ["frost_source", "frosted_panes"]

_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
_DRAWN = 5  # the published generators draw a number below five and so never the sixth photograph
_SCALE = {224: 1.0, 64: 0.3, 32: 0.2}  # how much the published generators shrink the photographs


def frost_source() -> str:
    """Where frost comes from: "photographs" or "crystals"."""
    return "photographs" if _photographs() else "crystals"


def frosted_panes(height: int, width: int) -> tuple[Floats, ...]:
    """Panes (3, rows, columns) in [0, 1], as large as fits an image of the size, and never smaller."""
    size = published_size(height, width)
    return _scaled(_SCALE[size] * min(height, width) / size, height, width)


@lru_cache(maxsize=8)
def _scaled(scale: float, height: int, width: int) -> tuple[Floats, ...]:
    panes = []
    for pane in _photographs() or drawn_panes():
        fitting = max(scale, height / pane.shape[1], width / pane.shape[2])
        panes.append(pane if fitting == 1 else resized(pane[np.newaxis], fitting)[0])
    return tuple(panes)


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
