"""How far accuracies can be trusted: 95% intervals, and tests of whether a difference is chance.

Three questions, an answer for each:

- How accurate is it? Wilson's score interval of a proportion (1927).
- Are two networks different on the same images? McNemar's test (1947), exact: where only one of them is
  right, it may be either as by the toss of a coin. Beside it stands the interval of the difference for paired
  images, method 10 of Newcombe, "Improved confidence intervals for the difference between binomial
  proportions based on paired data" (1998).
- Are two figures of a table different? Where only counts are known, the interval of the difference is made of
  the intervals of both, method 10 of Newcombe, "Interval estimation for the difference between independent
  proportions" (1998). Right answers on the same images go together, so that this is cautious.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from acclimate.errors import InputError

__all__ = ["ALPHA", "T95", "Z95", "Estimate", "Paired", "compare_paired", "estimate", "mcnemar", "wilson"]

ALPHA = 0.05
Z95 = 1.959963984540054  # quantile of the normal distribution
T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Quantiles of Student's t with 1, 2, … degrees of freedom; with more, the last: a little cautious."""


def wilson(share: float, count: int) -> tuple[float, float]:
    """95% interval of a proportion that was seen ``count`` times.

    >>> [round(end, 4) for end in wilson(81 / 263, 263)]
    [0.2553, 0.3662]
    """
    z2 = Z95**2 / count
    middle, half = share + z2 / 2, Z95 * math.sqrt(share * (1 - share) / count + z2 / count / 4)
    low, high = ((middle + side * half) / (1 + z2) for side in (-1, 1))
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def mcnemar(won: int, lost: int) -> float:
    """Exact two-sided p-value of this many wins and losses, if each is as likely as the other.

    >>> mcnemar(9, 1)
    0.021484375
    """
    count, term, tail = won + lost, 1, 0
    for k in range(min(won, lost) + 1):
        tail += term
        term = term * (count - k) // (k + 1)
    return min(1.0, 2 * tail / (1 << count))


@dataclass(frozen=True)
class Paired:
    """Accuracy before and after on the same images."""

    images: int
    won: int
    """Images that are right after, and were wrong before."""
    lost: int
    """Images that are wrong after, and were right before."""
    difference: float
    """Of the accuracies, after less before."""
    interval: tuple[float, float]
    """95% interval of the difference: Newcombe's for paired images."""
    p: float
    """Of McNemar's exact test."""

    @property
    def within_chance(self) -> bool:
        return self.p >= ALPHA


def compare_paired(before: Tensor, after: Tensor) -> Paired:
    """Compare which images are right before and after: two masks.

    >>> import torch
    >>> found = compare_paired(torch.tensor([True, False, False]), torch.tensor([True, True, True]))
    >>> found.won, found.lost, found.p
    (2, 0, 0.5)
    """
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise InputError(
            f"expected two masks of the same images, got {tuple(before.shape)} and {tuple(after.shape)}"
        )
    count = len(before)
    won, lost = int((after & ~before).sum()), int((before & ~after).sum())
    both = int((before & after).sum())
    low, high = _newcombe(both, won, lost, count)
    return Paired(count, won, lost, (won - lost) / count, (low, high), mcnemar(won, lost))


def _newcombe(both: int, won: int, lost: int, count: int) -> tuple[float, float]:
    """Method 10 for paired proportions: Wilson's intervals of both, combined by their correlation."""
    after, before = (both + won) / count, (both + lost) / count
    difference, phi = (won - lost) / count, _correlation(both, won, lost, count)
    (low, high), (other_low, other_high) = wilson(after, count), wilson(before, count)
    down = _combined(after - low, other_high - before, phi)
    up = _combined(high - after, before - other_low, phi)
    return max(-1.0, difference - down), min(1.0, difference + up)


def _correlation(both: int, won: int, lost: int, count: int) -> float:
    """Of being right before and after, corrected for continuity as Newcombe does."""
    neither = count - both - won - lost
    spread = (both + won) * (lost + neither) * (both + lost) * (won + neither)
    if not spread:
        return 0.0
    shared = both * neither - won * lost
    return (max(shared - count / 2, 0) if shared > 0 else shared) / math.sqrt(spread)


def _combined(one: float, other: float, phi: float = 0.0) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95% interval."""

    value: float
    low: float
    high: float

    def minus(self, other: Estimate) -> Estimate:
        """The difference of two figures, as if they were of different images."""
        value = self.value - other.value
        down = _combined(self.value - self.low, other.high - other.value)
        up = _combined(self.high - self.value, other.value - other.low)
        return Estimate(value, value - down, value + up)

    def apart_from(self, other: Estimate) -> bool:
        """Whether a difference of nothing is outside of the interval of the difference."""
        found = self.minus(other)
        return not found.low <= 0 <= found.high


def estimate(
    parts: Sequence[Sequence[float]], images: Sequence[int], seeds: Sequence[float] = ()
) -> Estimate:
    """The mean of accuracies, first over the seeds of each part, then over the parts, and its interval.

    Of the images it takes Wilson's intervals, and as their mean the mean of their ends: the same images may
    stand behind all parts and seeds, and then errors do not cancel. To that comes, of several ``seeds``
    (the mean of all parts by each), Student's interval of their mean, as the squares of both add up.

    >>> found = estimate([[0.5], [0.7]], [100, 100])
    >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
    (0.6, 0.504, 0.6886)
    """
    value = statistics.fmean(statistics.fmean(part) for part in parts)
    of_seeds = _of_seeds(seeds)
    down, up = (math.hypot(half, of_seeds) for half in _of_images(parts, images))
    return Estimate(value, max(0.0, value - down), min(1.0, value + up))


def _of_images(parts: Sequence[Sequence[float]], images: Sequence[int]) -> tuple[float, float]:
    """How far down and up the mean may be off, as other images might have been drawn."""
    down, up = [], []
    for part, count in zip(parts, images, strict=True):
        ends = [wilson(share, count) for share in part]
        down.append(statistics.fmean(share - low for share, (low, _) in zip(part, ends, strict=True)))
        up.append(statistics.fmean(high - share for share, (_, high) in zip(part, ends, strict=True)))
    return statistics.fmean(down), statistics.fmean(up)


def _of_seeds(seeds: Sequence[float]) -> float:
    """How far the mean may be off, as other seeds might have been taken; of one seed that is not known."""
    if len(seeds) < 2:
        return 0.0
    return T95[min(len(seeds) - 1, len(T95)) - 1] * statistics.stdev(seeds) / math.sqrt(len(seeds))
