"""How light plays on drops of water: edges, the distance to them, and a relief made from it.

Works on single planes (n, 1, height, width) the way OpenCV's functions of the same names do.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from acclimate.corruptions.arrays import Floats, Ints, whole
from acclimate.corruptions.filters import box_sum

__all__ = ["canny", "chamfer_distance", "equalized", "water_drops"]

Mask: TypeAlias = NDArray[np.bool_]

_FAR = 20  # distances are cut here
_SLOPES = ((1000, 197), (797, 603), (603, 797), (197, 1000))  # per pixel across and down
_TANGENT = np.float32(np.tan(np.pi / 8))
_RIM = ((0, 0), (0, 0), (1, 1), (1, 1))


def water_drops(liquid: Floats) -> Floats:
    """Highlights of drops, at most 1, from a map that is 0 where the lens is dry."""
    level = whole(np.clip(liquid, 0, 1))
    distance = chamfer_distance(canny(level, 50, 150))
    depth = equalized(np.floor(box_sum(distance) / np.float32(9)))
    relief = np.clip(_lit_from_corner(depth), 0, 255)
    relief = np.rint(box_sum(relief) / np.float32(9))
    shine = level * relief
    brightest = shine.max(axis=(1, 2, 3), keepdims=True)
    return shine / np.where(brightest == 0, np.float32(1), brightest)


def canny(level: Floats, low: float, high: float) -> Mask:
    """Canny's edges: thin ridges of the Sobel gradient, strong ones and what hangs on to them."""
    p = np.pad(level.astype(np.int16), _RIM, mode="edge")
    columns = p[..., :-2, :] + 2 * p[..., 1:-1, :] + p[..., 2:, :]
    right = columns[..., 2:] - columns[..., :-2]
    rows = p[..., :-2] + 2 * p[..., 1:-1] + p[..., 2:]
    down = rows[..., 2:, :] - rows[..., :-2, :]
    steepness = np.abs(right) + np.abs(down)
    ridge = _ridges(steepness, right, down, low)
    strong = ridge & (steepness > high)
    while not np.array_equal(grown := _dilated(strong) & ridge, strong):
        strong = grown
    return strong


def _ridges(steepness: Ints, right: Ints, down: Ints, low: float) -> Mask:
    """Where the gradient is above ``low`` and steeper than at both neighbours in its direction."""
    rimmed = np.pad(steepness, _RIM)
    inner = np.zeros_like(rimmed, dtype=bool)
    inner[..., 1:-1, 1:-1] = steep = steepness > low
    at, width = np.flatnonzero(inner), rimmed.shape[-1]
    x, y = right[steep], down[steep]
    across, along = np.abs(x), np.abs(y)
    horizontal, vertical = along < across * _TANGENT, along > across * (_TANGENT + 2)
    diagonal = np.where((x < 0) == (y < 0), width + 1, width - 1)
    step = np.where(horizontal, 1, np.where(vertical, width, diagonal))
    here, before, after = (rimmed.ravel()[index] for index in (at, at - step, at + step))
    ridge = np.zeros(steepness.shape, dtype=bool)
    ridge[steep] = (here > before) & ((here > after) | ((here == after) & (horizontal | vertical)))
    return ridge


def _dilated(mask: Mask) -> Mask:
    p = np.pad(mask, _RIM)
    rows = p[..., :-2, :] | p[..., 1:-1, :] | p[..., 2:, :]
    return rows[..., :-2] | rows[..., 1:-1] | rows[..., 2:]


def chamfer_distance(edges: Mask) -> Floats:
    """Distance to the nearest edge by steps of 1, 1.4 (diagonal) and 2.197 (a knight's), cut at 20.

    Down each column first, then the best of the columns at every distance to the side, in thousandths.
    """
    column = np.minimum(_column_distance(edges), _FAR + 1).astype(np.int16)
    nearest = np.minimum(1000 * column, 1000 * _FAR)
    best, longest, length = (np.empty_like(column) for _ in range(3))
    for side in range(1, min(_FAR, column.shape[-1])):
        if nearest.max() <= 1000 * side:
            break
        best[..., :side] = _FAR + 1
        best[..., side:] = column[..., :-side]
        np.minimum(best[..., :-side], column[..., side:], out=best[..., :-side])
        # the shortest path is as long as the largest of four forms, one for each kind of slope
        longest.fill(0)
        for across, down in _SLOPES:
            np.multiply(best, np.int16(down), out=length)
            length += np.int16(across * side)
            np.maximum(longest, length, out=longest)
        np.minimum(nearest, longest, out=nearest)
    return nearest / np.float32(1000)


def _column_distance(edges: Mask) -> Ints:
    height = edges.shape[-2]
    at = np.arange(height, dtype=np.int32).reshape(-1, 1)
    far = np.int32(height + _FAR + 1)
    above = np.maximum.accumulate(np.where(edges, at, -far), axis=-2)
    below = np.minimum.accumulate(np.where(edges, at, 2 * far)[..., ::-1, :], axis=-2)[..., ::-1, :]
    return np.minimum(at - above, below - at)


def equalized(level: Floats) -> Floats:
    """Histogram equalisation of whole grey levels."""
    out = np.empty_like(level)
    for i, plane in enumerate(level.astype(np.intp)):
        counts = np.bincount(plane.ravel(), minlength=256)
        first = int(np.flatnonzero(counts)[0])
        rest = plane.size - counts[first]
        if rest == 0:
            out[i] = level[i]
            continue
        scale = np.float32(255 / rest)
        table = np.rint((np.cumsum(counts) - counts[first]).astype(np.float32) * scale)
        out[i] = np.clip(table, 0, 255)[plane]
    return out


def _lit_from_corner(depth: Floats) -> Floats:
    p = np.pad(depth, _RIM, mode="reflect")
    before = 2 * p[..., :-2, :-2] + p[..., :-2, 1:-1] + p[..., 1:-1, :-2]
    after = 2 * p[..., 2:, 2:] + p[..., 2:, 1:-1] + p[..., 1:-1, 2:]
    return after - before + depth
