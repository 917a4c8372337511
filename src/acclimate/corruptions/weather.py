"""Weather: `(planes, streams, *parameters) -> planes`, before the clip to [0, 1]."""

from __future__ import annotations

import numpy as np

from acclimate.corruptions.arrays import Floats, luma, whole
from acclimate.corruptions.filters import gaussian, motion, zoom
from acclimate.corruptions.frost import frost_panes, part_of_pane
from acclimate.corruptions.liquid import water_drops
from acclimate.corruptions.plasma import plasma
from acclimate.corruptions.streams import Streams

__all__ = ["fog", "frost", "snow", "spatter"]

_WATER = (175, 238, 238)  # pale turquoise
_MUD = (63, 42, 20)  # brown


def snow(
    x: Floats,
    streams: Streams,
    mean: float,
    spread: float,
    scale: float,
    threshold: float,
    radius: float,
    sigma: float,
    clarity: float,
) -> Floats:
    """The scene whitened, flakes blown across it and, turned by half a turn, once more."""
    flakes = streams.normal(1, *x.shape[2:]) * np.float32(spread) + np.float32(mean)
    flakes = zoom(flakes, max(1, scale))
    flakes[flakes < threshold] = 0
    flakes = whole(np.clip(flakes, 0, 1)) / np.float32(255)
    flakes = whole(motion(flakes, radius, sigma, streams.between(-135, -45))) / np.float32(255)
    white = np.maximum(x, luma(x) * np.float32(1.5) + np.float32(0.5))
    scene = np.float32(clarity) * x + np.float32(1 - clarity) * white
    return scene + flakes + flakes[..., ::-1, ::-1]


def fog(x: Floats, streams: Streams, thickness: float, decay: float) -> Floats:
    """A plasma fractal added, the brightest value kept."""
    height, width = x.shape[2:]
    # a fractal goes on beyond its edges, so that it need not be as large as a long image
    side = min(max(height, width), 2 * min(height, width))
    size = 1 << (side - 1).bit_length()
    field = plasma(streams.uniform(size * size), size, decay)
    haze = np.tile(field, (1, -(-height // size), -(-width // size)))[:, np.newaxis, :height, :width]
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    x += np.float32(thickness) * haze
    x *= brightest / (brightest + np.float32(thickness))
    return x


def frost(x: Floats, streams: Streams, clarity: float, amount: float) -> Floats:
    """The scene seen through a random part of a frosted window pane."""
    height, width = x.shape[2:]
    panes = frost_panes()
    choice, position = streams.integers(len(panes)), streams.uniform(2)
    ice = np.empty((len(x), 3, height, width), dtype=np.float32)
    for i, (number, (down, right)) in enumerate(zip(choice, position, strict=True)):
        ice[i] = part_of_pane(panes[number], height, width, down, right)
    if x.shape[1] == 1:
        ice = luma(ice)
    return np.float32(clarity) * x + np.float32(amount) * ice


def spatter(
    x: Floats,
    streams: Streams,
    mean: float,
    spread: float,
    sigma: float,
    threshold: float,
    amount: float,
    mud: float,
) -> Floats:
    """Drops of water or stains of mud on the lens."""
    liquid = streams.normal(1, *x.shape[2:]) * np.float32(spread) + np.float32(mean)
    liquid = gaussian(liquid, sigma)
    if mud:
        stain = gaussian((liquid > threshold).astype(np.float32), amount)
        stain[stain < 0.8] = 0
        return x * (1 - stain) + stain * _colour(_MUD, x.shape[1])
    liquid[liquid < threshold] = 0
    return x + water_drops(liquid) * np.float32(amount) * _colour(_WATER, x.shape[1])


def _colour(rgb: tuple[int, int, int], channels: int) -> Floats:
    colour = np.array(rgb, dtype=np.float32).reshape(1, 3, 1, 1) / np.float32(255)
    return luma(colour) if channels == 1 else colour
