"""Bilinear interpolation at any positions, and affine maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from acclimate.corruptions.arrays import Floats, Ints

__all__ = ["affine_positions", "clamped", "mirrored", "mirrored_edge", "sampled"]


def sampled(x: Floats, rows: Floats, columns: Floats, edge: Callable[[Ints, int], Ints]) -> Floats:
    """Planes at positions (n, height, width); ``edge`` says which pixel stands for one outside."""
    channels, height, width = x.shape[1:]
    out = np.empty((len(x), channels, *rows.shape[1:]), dtype=np.float32)
    for i, flat in enumerate(x.reshape(len(x), channels, -1)):
        top, left = np.floor(rows[i]), np.floor(columns[i])
        down, right = rows[i] - top, columns[i] - left
        row, column = top.astype(np.int32), left.astype(np.int32)
        near, far = (edge(row + step, height) * width for step in (0, 1))
        here, next_ = (edge(column + step, width) for step in (0, 1))
        upper = _between(flat.take(near + here, axis=1), flat.take(near + next_, axis=1), right)
        lower = _between(flat.take(far + here, axis=1), flat.take(far + next_, axis=1), right)
        out[i] = _between(upper, lower, down)
    return out


def _between(first: Floats, second: Floats, weight: Floats) -> Floats:
    second -= first
    second *= weight
    second += first
    return second


def clamped(index: Ints, size: int) -> Ints:
    """What lies outside is the edge."""
    return np.clip(index, 0, size - 1)


def mirrored(index: Ints, size: int) -> Ints:
    """What lies outside is mirrored, the edge itself not repeated.

    >>> mirrored(np.arange(-2, 6), 4).tolist()
    [2, 1, 0, 1, 2, 3, 2, 1]
    """
    period = max(1, 2 * (size - 1))
    if index.min() < -period // 2 or index.max() > period:
        index = index % period
    index = np.abs(index)
    return np.minimum(index, period - index)


def mirrored_edge(index: Ints, size: int) -> Ints:
    """What lies outside is mirrored, the edge repeated.

    >>> mirrored_edge(np.arange(-2, 6), 4).tolist()
    [1, 0, 0, 1, 2, 3, 3, 2]
    """
    if index.min() < -size or index.max() >= 2 * size:
        index = index % (2 * size)
    index = np.maximum(index, -1 - index)
    return np.minimum(index, 2 * size - 1 - index)


def affine_positions(shifts: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """Where each pixel comes from (rows, columns) when three points near the centre are shifted.

    ``shifts`` are (n, 3, 2) pixels to the right and down.
    """
    side = min(height, width) // 3
    corners = np.array([(side, side), (side, -side), (-side, -side)])
    corners += np.array([width // 2, height // 2])
    ones = np.ones((len(shifts), 3, 1))
    moved = np.concatenate((corners + shifts, ones), axis=2, dtype=np.float64)
    back = np.linalg.solve(moved, np.broadcast_to(corners, shifts.shape)).astype(np.float32)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    right, down = (
        back[:, 0, k, None, None] * columns + back[:, 1, k, None, None] * rows + back[:, 2, k, None, None]
        for k in (0, 1)
    )
    return down, right
