"""Plasma fractals: clouds by the diamond-square algorithm."""

from __future__ import annotations

import numpy as np

from acclimate.corruptions.arrays import Floats

__all__ = ["plasma"]


def plasma(draws: Floats, size: int, decay: float) -> Floats:
    """Diamond-square height maps (n, size, size) in [0, 1] from as many draws in [0, 1) each."""
    field = np.zeros((len(draws), size, size), dtype=np.float32)
    noise = 2 * draws - 1
    strength, step, used = 100.0, size, 0

    def wibbled(total: Floats) -> Floats:
        nonlocal used
        count = total[0].size
        used += count
        own = noise[:, used - count : used].reshape(total.shape)
        return total * np.float32(0.25) + own * np.float32(strength**2)

    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        pairs = corners + _next(corners, 1)
        middles = wibbled(pairs + _next(pairs, 2))
        field[:, half::step, half::step] = middles
        field[:, ::step, half::step] = wibbled(middles + _previous(middles, 1) + corners + _next(corners, 2))
        field[:, half::step, ::step] = wibbled(middles + _previous(middles, 2) + corners + _next(corners, 1))
        step, strength = half, strength / decay
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field


def _next(field: Floats, axis: int) -> Floats:
    """The field moved by one, round and round."""
    parts = (field[:, 1:], field[:, :1]) if axis == 1 else (field[:, :, 1:], field[:, :, :1])
    return np.concatenate(parts, axis=axis)


def _previous(field: Floats, axis: int) -> Floats:
    parts = (field[:, -1:], field[:, :-1]) if axis == 1 else (field[:, :, -1:], field[:, :, :-1])
    return np.concatenate(parts, axis=axis)
