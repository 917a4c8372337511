"""Whether a normalisation is the one that a network was trained with: a probe without labels.

The first norm of a network remembers its training images (`acclimate.remembered`): what mean and contrast
they had, if a normalisation was the right one. Where images are known to be clean, that is compared with
theirs. Where they may be corrupted it cannot be: fog under one normalisation looks like clean images
under another. Then what is remembered is compared with what photographs have, in which the images take no
part. They can only acquit: a normalisation that makes what is remembered look like them is not called
into question.

A network that remembers nothing is judged by its confidence, on clean images only, which is a weak sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from acclimate.half import in_float32
from acclimate.mean_std import NORMALIZATIONS, MeanStd
from acclimate.outputs import logits_of
from acclimate.remembered import (
    Remembered,
    in_evaluation,
    into_first_norm,
    kept_by,
    moments_at_first_norm,
    natural_fields,
    remembered,
)

__all__ = ["ANOTHER", "IN_USE", "Probe", "probe_normalization"]

IN_USE: Final = "in use"
ANOTHER: Final = "another"
"""Neither the normalisation in use nor a common one."""

_BATCH: Final = 32
_SAME: Final = 0.05
"""Difference of mean and std below which two normalisations are one."""
_SURE: Final = 0.95
"""How sure the probe has to be before it calls a normalisation into question."""
_LIKELY: Final = 0.5
_FITS: Final = 0.1
"""Divergence from what the first norm remembers up to which images fit."""
_FACTOR: Final = 3.0
"""Another normalisation is better if the divergence in use is larger by this."""
_MORE_CONFIDENT: Final = 0.1
_ANOTHER: Final = -4.5
"""Log-likelihood of a normalisation that nobody thought of: as good as three standard deviations."""

# Photographs: mean and standard deviation of the pixels of a data set, and how far data sets differ in them.
_MEAN, _MEAN_SPREAD = 0.45, 0.15
_STD, _LOG_STD_SPREAD = 0.26, 0.22
# Clean images: how far what the norm remembers may be from them under the right normalisation, by
# augmentation and other images. The shift is in standard deviations of the images.
_LOG_SCALE, _SHIFT = 0.12, 0.2
# Images are alike if neither mean nor log of the standard deviation differs by more.
_MEAN_ALIKE, _LOG_STD_ALIKE = 0.15, 0.3


@dataclass(frozen=True)
class Probe:
    """What some images and a network's memory say of the normalisation in use."""

    by: str
    """``statistics`` of the first batch normalisation, or ``confidence``."""
    clean: bool
    """Whether the images are known to be like those of training."""
    scores: dict[str, float]
    """For each normalisation, the divergence from the remembered statistics (0 is a perfect fit), or the
    mean confidence. Corrupted images may fit a wrong one better."""
    likely: dict[str, float]
    """How likely each normalisation is; empty where that cannot be said."""
    verdict: str
    """``fits``; ``wrong``, of clean images only; ``doubtful``; or ``unknown``."""
    sure: float | None = None
    """How sure the verdict is, from 0 to 1."""
    better: str | None = None
    """Name of the common normalisation that fits instead."""
    estimate: MeanStd | None = None
    """The normalisation under which clean images would have the remembered mean and contrast."""
    pixels: tuple[float, float] | None = None
    """Mean and standard deviation of the training images, if the normalisation in use were right."""

    @property
    def caution(self) -> str | None:
        """One sentence if the normalisation in use is wrong or doubtful."""
        return self.sentence if self.verdict in ("wrong", "doubtful") else None

    @property
    def sentence(self) -> str:
        """What is to be said, how sure it is, and what to do."""
        sure = "" if self.sure is None else f"; how sure: {_percent(self.sure)}"
        if self.verdict == "fits":
            provided = "" if self.clean else ", if the network was trained on photographs"
            return f"nothing speaks against the normalisation in use{provided}{sure}"
        if self.verdict == "wrong":
            return (
                f"the network seems to expect {self._instead()}, not the normalisation in use{sure}: check "
                "what it was trained with"
            )
        if self.verdict == "doubtful":
            return f"the normalisation in use is doubtful{sure}: {self._why()}; {_ASK}"
        if self.clean:
            return "these images cannot tell whether the normalisation in use is right: check what it was"
        return f"these images cannot tell whether the normalisation in use is right; {_ASK}"

    def _instead(self) -> str:
        if self.better is not None:
            return f"the normalisation {self.better!r}"
        if self.estimate is None:
            return "another normalisation"
        mean, std = (",".join(f"{value:.2f}" for value in part) for part in self.estimate)
        return f"none of the common normalisations but about {mean}/{std}"

    def _why(self) -> str:
        assert self.pixels is not None
        mean, std = self.pixels
        better = "" if self.better is None else f", and {self.better!r} fits better"
        return (
            f"with it, the network would have been trained on pixels of mean {mean:.2f} and standard "
            f"deviation {std:.2f}, which photographs in [0, 1] seldom have{better}"
        )


_ASK: Final = (
    "as they may be corrupted, look at clean ones, like those of training (clean=True, --clean), before "
    "anything is changed"
)


def probe_normalization(
    model: nn.Module, images: Tensor, normalize: MeanStd | None, *, clean: bool = False
) -> Probe:
    """Judge a normalisation by feeding a few images, pixels in [0, 1]; the network is left as it was.

    Args:
        normalize: the one in use; None feeds pixels as they are.
        clean: whether the images are known to be uncorrupted and like those of training. Only then is a
            normalisation said to be wrong.

    >>> from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
    >>> images = bundled_images()[0][:32]
    >>> probe_normalization(bundled_model(), images, (MEAN, STD), clean=True).verdict
    'fits'
    >>> probe_normalization(bundled_model(), images, NORMALIZATIONS["imagenet"], clean=True).verdict
    'wrong'
    """
    model = in_float32(model)
    tried = _tried(images.shape[1], normalize or NORMALIZATIONS["none"])
    if into_first_norm(model, images[:1]) is None:
        return _by_confidence(model, images, tried, clean)
    scores = {name: _divergence(model, _normalised(images, given)) for name, given in tried.items()}
    if clean:
        return _against_images(model, images, tried, scores)
    return _against_photographs(model, images, tried, scores)


def _tried(channels: int, in_use: MeanStd) -> dict[str, MeanStd]:
    """The normalisation in use and the common ones that differ from it."""
    alike = len(in_use[0]) == 1  # for all channels
    tried = {IN_USE: (tuple(in_use[0]) * channels, tuple(in_use[1]) * channels) if alike else in_use}
    for name, (mean, std) in NORMALIZATIONS.items():
        common = (mean[:channels], std[:channels])
        if not _close(common, tried[IN_USE]) and len(common[0]) == channels:
            tried[name] = common
    return tried


def _against_images(
    model: nn.Module, images: Tensor, tried: dict[str, MeanStd], scores: dict[str, float]
) -> Probe:
    """Clean images: what is remembered is what they are under the right normalisation."""
    mean, std = images.mean((0, 2, 3)), float(images.std((0, 2, 3)).mean())
    kept = None if std == 0 else remembered(model, (images - mean.view(-1, 1, 1)) / std)
    if kept is None:
        best = min(scores, key=lambda name: scores[name])
        wrong = scores[IN_USE] > max(_FITS, _FACTOR * scores[best])
        verdict = "wrong" if wrong else "fits" if scores[IN_USE] <= _FITS else "unknown"
        return Probe("statistics", True, scores, {}, verdict, better=best if wrong else None)
    scale = std / kept.std
    shift = [float(m) - scale * own for m, own in zip(mean, kept.mean, strict=True)]

    def fit(normalization: MeanStd) -> float:
        means, stds = normalization
        apart = sum(((m - own) / std / _SHIFT) ** 2 for m, own in zip(means, shift, strict=True)) / len(shift)
        return -0.5 * (apart + (math.log(sum(stds) / len(stds) / scale) / _LOG_SCALE) ** 2)

    likely = _shares({name: fit(normalization) for name, normalization in tried.items()})
    estimate = (tuple(shift), (scale,) * len(shift))
    sure = 1 - likely[IN_USE]
    if sure >= _SURE:
        common = {name: share for name, share in likely.items() if name in NORMALIZATIONS}
        best = max(common, key=lambda name: common[name])
        better = best if common[best] >= _LIKELY else None
        return Probe("statistics", True, scores, likely, "wrong", sure, better, estimate)
    return _fitting_or_not("statistics", True, scores, likely, estimate)


def _against_photographs(
    model: nn.Module, images: Tensor, tried: dict[str, MeanStd], scores: dict[str, float]
) -> Probe:
    """Images that may be corrupted: what is remembered is photographs under the right normalisation."""
    kept = remembered(model, natural_fields(*images.shape[1:])) if images.shape[1] in (1, 3) else None
    if kept is None:
        return Probe("statistics", False, scores, {}, "unknown")
    likely = _shares({name: _like_photographs(kept, normalization) for name, normalization in tried.items()})
    pixels, sure = kept.pixels(tried[IN_USE]), 1 - likely[IN_USE]
    if sure >= _SURE and not _alike(images, *pixels):
        best = min(scores, key=lambda name: scores[name])
        better = best if scores[best] <= _FITS and likely[best] >= _LIKELY else None
        return Probe("statistics", False, scores, likely, "doubtful", sure, better, pixels=pixels)
    return _fitting_or_not("statistics", False, scores, likely, None)


def _fitting_or_not(
    by: str, clean: bool, scores: dict[str, float], likely: dict[str, float], estimate: MeanStd | None
) -> Probe:
    if likely[IN_USE] >= _LIKELY and (clean or scores[IN_USE] <= _FITS):
        return Probe(by, clean, scores, likely, "fits", likely[IN_USE], estimate=estimate)
    return Probe(by, clean, scores, likely, "unknown", estimate=estimate)


def _by_confidence(model: nn.Module, images: Tensor, tried: dict[str, MeanStd], clean: bool) -> Probe:
    # large values make any network sure of itself
    scores = {
        name: _confidence(model, _normalised(images, given))
        for name, given in tried.items()
        if name != "bytes"
    }
    best = max(scores, key=lambda name: scores[name])
    if not clean or scores[best] <= scores[IN_USE] + _MORE_CONFIDENT:
        return Probe("confidence", clean, scores, {}, "unknown")
    return Probe("confidence", clean, scores, {}, "wrong", better=best)


def _like_photographs(kept: Remembered, normalization: MeanStd) -> float:
    """Log-likelihood of what is remembered, if this was the normalisation."""
    mean, std = kept.pixels(normalization)
    return -0.5 * (((mean - _MEAN) / _MEAN_SPREAD) ** 2 + (math.log(std / _STD) / _LOG_STD_SPREAD) ** 2)


def _alike(images: Tensor, mean: float, std: float) -> bool:
    """Whether images have about this mean and standard deviation."""
    own = float(images.std((0, 2, 3)).mean())
    near = abs(float(images.mean()) - mean) <= _MEAN_ALIKE
    return near and own > 0 and abs(math.log(own / std)) <= _LOG_STD_ALIKE


def _shares(likelihoods: dict[str, float]) -> dict[str, float]:
    """Probabilities from log-likelihoods, with a place for what nobody thought of."""
    known = {**likelihoods, ANOTHER: _ANOTHER}
    highest = max(known.values())
    powers = {name: math.exp(value - highest) for name, value in known.items()}
    return {name: power / sum(powers.values()) for name, power in powers.items()}


def _normalised(images: Tensor, normalization: MeanStd) -> Tensor:
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in normalization)
    return (images - mean) / std


def _close(one: MeanStd, other: MeanStd) -> bool:
    flat = [(*mean, *std) for mean, std in (one, other)]
    return len(flat[0]) == len(flat[1]) and all(
        abs(a - b) < _SAME * max(1e-2, flat[1][-1]) for a, b in zip(*flat, strict=True)
    )


def _divergence(model: nn.Module, images: Tensor) -> float:
    """Kullback-Leibler divergence of normal distributions, the median over channels: some may be dead."""
    reached = into_first_norm(model, images[:1])
    assert reached is not None
    norm = reached[0]
    eps = float(getattr(norm, "eps", 1e-5))
    own_mean, own_variance = kept_by(norm)
    mean, variance = moments_at_first_norm(model, images)
    ratio = (variance + eps) / (own_variance + eps)
    shift = (mean - own_mean).square() / (own_variance + eps)
    return float((0.5 * (ratio + shift - 1 - ratio.log())).median())


def _confidence(model: nn.Module, images: Tensor) -> float:
    like = next(model.parameters(), images)
    with torch.no_grad(), in_evaluation(model):
        parts = torch.split(images.to(like.device, like.dtype), _BATCH)
        logits = torch.cat([logits_of(model(part)).float() for part in parts])
    return logits.softmax(1).amax(1).mean().item()


def _percent(share: float) -> str:
    return "more than 99%" if share > 0.99 else f"{share:.0%}"
