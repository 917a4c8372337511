"""How far a stream has moved a layer's moments from the source's, and what share of that to correct.

Two moments of each channel are followed, in units of the source's standard deviation σ:

    z = ((mean(x) - μ) / σ,  (mean((x - μ)²) / σ² - 1) / √2)

Both are zero on average over the source's own images, for any size of batch. A batch's variance is not:
that of a few images leaves out how much images differ from each other. d is the average of z over about the
last `WINDOW` images. What it is worth is seen from the batches that come:

    predicted = <z, d> / <d, d>     with z of the *next* batch, mean: 1 if the shift stays, 0 if it was noise
    natural   = n |z - d|²          how much one image differs from the stream it is in, averaged
    share     = r / (r + NATURAL),  r = predicted |d|² / natural

So the correction is small where the stream has moved by less than images differ anyway: a network trained
on such images can take that, and matching each channel would cost more than it brings. Of the first batch
nothing is known but itself: of n images, n / (n + FIRST) is corrected. Mean and variance are those of a
mixture, of which ``share`` has the stream's moments and the rest the source's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

__all__ = ["FEW", "WINDOW", "Moments", "displacement", "followed", "mixed_with_source", "nothing_seen"]

WINDOW: Final = 64
"""Images that a stream's average is made of, about."""
NATURAL: Final = 1.5
"""The r at which half of a shift is corrected. Both were chosen on validation corruptions, with 10 and with
1,000 classes, by benchmarks/small_batches.py."""
FEW: Final = 32
"""With ``statistics="auto"``, a first batch of fewer images makes the policy `stream`."""
FIRST: Final = 16
"""Images that the source counts for beside the first batch, as in Schneider et al. (2020)."""
_TALLIES: Final = 5


class Moments(NamedTuple):
    """Mean and variance of every channel."""

    mean: Tensor
    var: Tensor


def nothing_seen(channels: int, like: Tensor) -> Tensor:
    """The state of a layer before the first batch: d and its tallies, in one tensor that can be saved."""
    return like.new_zeros(2 * channels + _TALLIES)


def followed(state: Tensor, z: Tensor, images: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Move the state of a layer by a batch.

    Returns the state, d with the gradient of the batch, the share of d to correct, and the batch's part in d.
    """
    before, tallies = state[:-_TALLIES], state[-_TALLIES:]
    with torch.no_grad():
        seen = z.detach()
        off = seen - before
        is_later = (tallies[0] > 0).to(z.dtype)  # nothing was predicted for the first batch
        weight = tallies[0] * (1 - 1 / WINDOW) ** images + images
        part = images / weight
        products = [seen.dot(before), before.dot(before), off.dot(off) * images * is_later]
        new = torch.stack([*(product / len(z) for product in products), is_later])
        averages = tallies[1:] + part * (new - tallies[1:])
        agreement, length, apart, compared = averages.unbind()
        tiny = torch.finfo(z.dtype).tiny
        predicted = (agreement / length.clamp_min(tiny)).clamp(0, 1)
        natural = apart / compared.clamp_min(tiny)
    moved = before + part * (z - before)
    with torch.no_grad():
        after = moved.detach()
        signal = predicted * after.dot(after) / len(z)
        later = signal / (signal + NATURAL * natural).clamp_min(tiny)
        share = torch.where(is_later > 0, later, images / (images + FIRST))
    return torch.cat([after, weight.view(1), averages]), moved, share, part


def displacement(source: Moments, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """z of a batch with this mean and variance."""
    scale = source.var + eps
    off = mean - source.mean
    return torch.cat([off * scale.rsqrt(), ((var - source.var + off * off) / scale) * 0.5**0.5])


def mixed_with_source(source: Moments, moved: Tensor, share: Tensor, eps: float) -> Moments:
    """Mean and variance of a mixture of the source and, in the given share, of what ``moved`` says."""
    scale = source.var + eps
    first, second = moved.chunk(2)
    off = share * first * scale.sqrt()
    var = source.var + share * second * (2**0.5 * scale) - off * off
    return Moments(source.mean + off, var.clamp_min(0))
