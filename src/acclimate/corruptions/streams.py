"""Randomness, drawn for each image from (seed, index) and the corruption's name.

An image is corrupted the same alone, in a batch and on any worker, and all severities of a corruption
share one pattern: a higher severity is more of the same snow, not other snow.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from acclimate.corruptions.arrays import Floats, Ints

__all__ = ["Streams"]


class Streams:
    """One generator per image; every draw has the images as its first axis.

    >>> alone, batch = Streams(0, [7], "snow"), Streams(0, [5, 6, 7], "snow")
    >>> bool((alone.normal(4)[0] == batch.normal(4)[2]).all())
    True
    """

    def __init__(self, seed: int, indices: Sequence[int], name: str) -> None:
        self._keys = [(seed, zlib.crc32(name.encode()), index) for index in indices]

    @cached_property
    def _generators(self) -> list[np.random.Generator]:
        """Made when they are first drawn from: many corruptions are not random."""
        sequences = (np.random.SeedSequence(key) for key in self._keys)
        return [np.random.Generator(np.random.SFC64(sequence)) for sequence in sequences]

    def normal(self, *shape: int) -> Floats:
        """Mean 0, standard deviation 1."""
        return self._stacked(lambda rng: rng.standard_normal(shape, dtype=np.float32))

    def uniform(self, *shape: int) -> Floats:
        """In [0, 1)."""
        return self._stacked(lambda rng: rng.random(shape, dtype=np.float32))

    def between(self, low: float, high: float) -> list[float]:
        """One number per image."""
        return [float(rng.uniform(low, high)) for rng in self._generators]

    def integers(self, high: int, *shape: int) -> Ints:
        """From 0 to high - 1."""
        return self._stacked(lambda rng: rng.integers(high, size=shape, dtype=np.int32))

    def poisson(self, expected: Floats) -> Floats:
        """Counts for one image, with an expectation for every pixel."""
        (rng,) = self._generators
        return rng.poisson(expected).astype(np.float32)

    def __getitem__(self, position: int) -> Streams:
        """The stream of one image."""
        one = Streams(0, (), "")
        one._generators = [self._generators[position]]
        return one

    def _stacked(self, draw: Callable[[np.random.Generator], Ints]) -> Ints:
        if len(self._generators) == 1:
            return draw(self._generators[0])[np.newaxis]  # no copy: large images come one by one
        return np.stack([draw(rng) for rng in self._generators])
