"""Noise of sensors: `(planes, streams, *parameters) -> planes`, before the clip to [0, 1]."""

from __future__ import annotations

import numpy as np

from acclimate.corruptions.arrays import Floats
from acclimate.corruptions.poisson import poisson_counts
from acclimate.corruptions.streams import Streams

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(x: Floats, streams: Streams, scale: float) -> Floats:
    """Normal noise of one strength for all pixels, as in low light."""
    noise = streams.normal(*x.shape[1:])
    noise *= np.float32(scale)
    noise += x
    return noise


def shot_noise(x: Floats, streams: Streams, photons: float) -> Floats:
    """Poisson noise of a sensor that counts so many photons on a white pixel."""
    levels = np.rint(x * np.float32(255))
    for i, (own, level) in enumerate(zip(x, levels, strict=True)):
        if np.abs(own * np.float32(255) - level).max() < 1e-3:
            x[i] = poisson_counts(level, streams.of(i).random(own.shape, dtype=np.float32), photons)
        else:
            x[i] = streams.of(i).poisson(own * np.float32(photons))
    x /= np.float32(photons)
    return x


def impulse_noise(x: Floats, streams: Streams, share: float) -> Floats:
    """Salt and pepper: a share of the values is replaced, half by black, half by white."""
    draw = streams.uniform(*x.shape[1:])
    out = x.copy()
    out[draw < share / 2] = 0
    out[draw > 1 - share / 2] = 1
    return out


def speckle_noise(x: Floats, streams: Streams, scale: float) -> Floats:
    """Normal noise in proportion to the pixel."""
    noise = streams.normal(*x.shape[1:])
    noise *= np.float32(scale)
    noise += 1
    noise *= x
    return noise
