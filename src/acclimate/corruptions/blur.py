"""Blurs of lenses and movement: `(planes, streams, *parameters) -> planes`."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from acclimate.corruptions.arrays import Doubles, Floats, whole
from acclimate.corruptions.filters import correlate, gaussian, gaussian_weights, motion, zoom
from acclimate.corruptions.streams import Streams

__all__ = ["defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def gaussian_blur(x: Floats, streams: Streams, sigma: float) -> Floats:
    """A Gaussian blur."""
    return gaussian(x, sigma)


def defocus_blur(x: Floats, streams: Streams, radius: float, softness: float) -> Floats:
    """Points become discs, as with a lens out of focus."""
    return correlate(x, _disc(radius, softness))


def motion_blur(x: Floats, streams: Streams, radius: float, sigma: float) -> Floats:
    """The camera moves, within 45 degrees of the horizontal."""
    return motion(x, radius, sigma, streams.between(-45, 45))


def zoom_blur(x: Floats, streams: Streams, *factors: float) -> Floats:
    """The camera moves towards the scene: the mean over enlargements."""
    total = x.copy()
    for factor in factors:
        total += zoom(x, factor)
    total /= np.float32(len(factors) + 1)
    return total


def glass_blur(x: Floats, streams: Streams, sigma: float, reach: float, rounds: float) -> Floats:
    """Frosted glass: blurred, pixels moved about, blurred again."""
    x = whole(gaussian(x, sigma)) / np.float32(255)
    for _ in range(int(rounds)):
        x = _displaced(x, streams, max(1, round(reach)))
    return gaussian(x, sigma)


def _displaced(x: Floats, streams: Streams, reach: int) -> Floats:
    """From the last pixel to the first, each inner pixel takes the value of a random near one.

    The published loop means to swap the two, but through views of one array it only copies. A pixel may
    take from one that has taken before it, and so on: such chains are followed to their ends here for
    all pixels at once, by replacing each link by the link's own link until nothing changes.
    """
    n, channels, height, width = x.shape
    inner = np.zeros((height, width), dtype=bool)
    inner[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    shift = streams.integers(2 * reach, 2, height - 2 * reach, width - 2 * reach).astype(np.intp) - reach
    out = np.empty_like(x)
    for i in range(n):
        source = np.arange(height * width)
        source[inner.ravel()] += (shift[i, 0] * width + shift[i, 1]).ravel()
        taken_before = inner.ravel()[source] & (source > np.arange(height * width))
        end = np.where(taken_before, source, np.arange(height * width))
        while not np.array_equal(further := end[end], end):
            end = further
        out[i] = x[i].reshape(channels, -1).take(source[end], axis=1).reshape(channels, height, width)
    return out


@lru_cache(maxsize=64)
def _disc(radius: float, softness: float) -> Doubles:
    """A disc, its edge softened by a small Gaussian that mirrors at the kernel's own border."""
    reach, soft_reach = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    at = np.arange(-reach, reach + 1)
    disc = (at[:, np.newaxis] ** 2 + at**2 <= radius**2).astype(np.float64)
    disc /= disc.sum()
    weights = gaussian_weights(softness, soft_reach)
    for _ in range(2):  # along rows, then along columns
        padded = np.pad(disc, ((soft_reach, soft_reach), (0, 0)), mode="reflect")
        disc = sum(w * padded[i : i + len(at)] for i, w in enumerate(weights)).T
    return disc
