"""Randomness, drawn for each image from (seed, index) and the corruption's name.

An image is corrupted the same alone, in a batch and on any worker. The severity is not part of it: as far as
the draws allow, a higher severity is more of the same snow, not other snow.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

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
        self._made: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, position: int) -> np.random.Generator:
        """The generator of one image, made when it is first drawn from: many corruptions never are."""
        if position not in self._made:
            sequence = np.random.SeedSequence(self._keys[position])
            self._made[position] = np.random.Generator(np.random.SFC64(sequence))
        return self._made[position]

    def normal(self, *shape: int) -> Floats:
        """Mean 0, standard deviation 1."""
        return self._stacked(lambda rng: rng.standard_normal(shape, dtype=np.float32))

    def uniform(self, *shape: int) -> Floats:
        """In [0, 1)."""
        return self._stacked(lambda rng: rng.random(shape, dtype=np.float32))

    def between(self, low: float, high: float) -> list[float]:
        """One number per image."""
        return [float(self.of(i).uniform(low, high)) for i in range(len(self))]

    def integers(self, high: int, *shape: int) -> Ints:
        """From 0 to high - 1."""
        return self._stacked(lambda rng: rng.integers(high, size=shape, dtype=np.int32))

    def _stacked(self, draw: Callable[[np.random.Generator], Ints]) -> Ints:
        if len(self) == 1:
            return draw(self.of(0))[np.newaxis]  # no copy: large images come one by one
        return np.stack([draw(self.of(i)) for i in range(len(self))])
