"""Poisson counts for 8-bit images, three times as fast as one by one.

With 256 levels there are 256 distributions. Their cumulative probabilities are put in one table, and a
draw in [0, 1) is looked up in it: a first table says for each sixty-fourth of [0, 1) where to begin.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from acclimate.corruptions.arrays import Floats, Ints

__all__ = ["poisson_counts"]

_LEVELS, _BUCKETS = 256, 64


def poisson_counts(levels: Ints, draws: Floats, photons: float) -> Floats:
    """The smallest count whose cumulative probability exceeds the draw, at photons · level / 255.

    >>> poisson_counts(np.array([0, 255, 255]), np.array([0.9, 0.1, 0.9], dtype=np.float32), 3.0).tolist()
    [0.0, 1.0, 5.0]
    """
    cumulative, begin = _tables(photons)
    level = levels.astype(np.int32).ravel()
    draw = draws.ravel()
    bucket = (draw * np.float32(_BUCKETS)).astype(np.int32)
    bucket += level * _BUCKETS
    at = begin.take(bucket)
    rising = np.flatnonzero(cumulative.take(at) <= draw)
    while len(rising):
        at[rising] += 1
        rising = rising[cumulative.take(at[rising]) <= draw[rising]]
    at -= level * (cumulative.size // _LEVELS)
    return at.reshape(levels.shape).astype(np.float32)


@lru_cache(maxsize=8)
def _tables(photons: float) -> tuple[Floats, Ints]:
    """Cumulative probabilities of all levels in a row, and where in it each bucket begins."""
    expected = photons * np.arange(_LEVELS) / 255
    width = int(photons + 12 * photons**0.5 + 20)
    counts = np.arange(1, width)
    logarithm = np.zeros((_LEVELS, width))
    with np.errstate(divide="ignore"):
        logarithm[:, 1:] = np.cumsum(np.log(expected)[:, np.newaxis] - np.log(counts), axis=1)
    cumulative = np.cumsum(np.exp(logarithm - expected[:, np.newaxis]), axis=1).astype(np.float32)
    cumulative[:, -1] = 1  # a draw is below one, so that the search ends
    edges = np.arange(_BUCKETS) / _BUCKETS
    begin = [row * width + np.searchsorted(own, edges, side="right") for row, own in enumerate(cumulative)]
    return cumulative.ravel(), np.stack(begin).astype(np.int32).ravel()
