"""What a network's first batch normalisation remembers of its training images: their mean and contrast.

Before that norm there is nearly always a convolution, or nothing. What such a start makes of images is
linear: by its answer to constant images, the mean that the norm remembers says what mean normalised
images had, and by its answer to images of contrast 1, the remembered variance says what contrast. No
corrupted image takes part in that. Images of contrast 1 have to be as sharp as those of training, since
the weights look at edges: the user's, if they are clean, or `natural_fields`, random ones with the
spectrum of photographs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from acclimate.mean_std import MeanStd
from acclimate.norms import find_norms

__all__ = [
    "Remembered",
    "in_evaluation",
    "into_first_norm",
    "kept_by",
    "moments_at_first_norm",
    "natural_fields",
    "remembered",
]

_BATCH: Final = 16
_FIELDS: Final = 8
_POWER: Final = 2.5
"""The spectrum falls with this power of the frequency; of 1 to 3 the one under which the channels of
first layers agree best on the contrast."""
_COLOURS: Final = 0.9
"""Correlation of two colours of a pixel."""
_LINEAR: Final = 1e-2
"""Relative error up to which a start counts as linear, also in half precision."""
_ALIVE: Final = 1e-3
"""Channels with less than this share of the median variance are dead."""


@dataclass(frozen=True)
class Remembered:
    """Training images after their normalisation, as a norm remembers them."""

    mean: tuple[float, ...]
    """Mean of each channel."""
    std: float
    """Standard deviation over all pixels, one number for all channels."""

    def pixels(self, normalization: MeanStd) -> tuple[float, float]:
        """Mean and standard deviation that the training images had, if this was their normalisation.

        >>> Remembered((0.0, 0.0, 0.0), 1.0).pixels(((0.5,) * 3, (0.25,) * 3))
        (0.5, 0.25)
        """
        means, stds = normalization
        channels = len(self.mean)
        mean = sum(m + s * own for m, s, own in zip(means, stds, self.mean, strict=True)) / channels
        return mean, self.std * sum(stds) / channels


def remembered(model: nn.Module, patterns: Tensor) -> Remembered | None:
    """Mean and contrast of a network's normalised training images; None where they cannot be read off.

    Args:
        patterns: sharp images (N, C, H, W) of mean 0 and standard deviation 1.
    """
    channels = patterns.shape[1]
    nothing = torch.zeros_like(patterns[:1])
    tried = torch.cat([nothing, _one_channel_each(patterns), patterns[:1], -2 * patterns[:1]])
    reached = into_first_norm(model, tried)
    if reached is None or reached[1].ndim != 4:
        return None
    norm, answers = reached[0], reached[1].double().cpu()
    gains, (pattern, double) = (part - answers[:1] for part in (answers[1:-2], answers[-2:]))
    if not bool((double + 2 * pattern).norm() <= _LINEAR * double.norm()):
        return None
    own_mean, own_variance = kept_by(norm)
    variance = moments_at_first_norm(model, patterns)[1]
    alive = (own_variance > _ALIVE * own_variance.median()) & (variance > _ALIVE * variance.median())
    if int(alive.sum()) < channels:
        return None
    std = (own_variance / variance)[alive].log().median().div(2).exp()
    weight = own_variance[alive].rsqrt()
    wanted = (own_mean - answers[0].mean((1, 2)))[alive] * weight
    # colours that no channel tells apart share what there is
    mean = torch.linalg.pinv(gains.mean((2, 3)).T[alive] * weight[:, None], rtol=_LINEAR) @ wanted
    return Remembered(tuple(mean.tolist()), float(std))


def natural_fields(channels: int, height: int, width: int, count: int = _FIELDS) -> Tensor:
    """Random images with the spectrum of photographs, of mean 0 and standard deviation 1; always the same.

    They are cut from fields twice as large, so that they differ in brightness, as photographs do.
    """
    random = torch.Generator().manual_seed(0)
    shape = (2 * height, 2 * width)
    noise = torch.randn(count, channels, *shape, generator=random)
    shared = torch.randn(count, 1, *shape, generator=random)
    noise = (1 - _COLOURS) ** 0.5 * noise + _COLOURS**0.5 * shared
    frequency = torch.hypot(torch.fft.fftfreq(shape[0])[:, None], torch.fft.rfftfreq(shape[1])[None])
    frequency[0, 0] = 1 / max(shape)
    spectrum = torch.fft.rfft2(noise) * frequency ** (-_POWER / 2)
    field = torch.fft.irfft2(spectrum, s=shape)[..., :height, :width]
    standard: Tensor = (field - field.mean()) / field.std()
    return standard


def into_first_norm(model: nn.Module, images: Tensor) -> tuple[nn.Module, Tensor] | None:
    """The norm that is reached first and what enters it; None if that one remembers no statistics."""
    like = next(model.parameters(), images)
    reached: list[tuple[nn.Module, Tensor]] = []
    with torch.no_grad(), in_evaluation(model), _stopped_at_first_norm(model, reached), suppress(_Reached):
        model(images.to(like.device, like.dtype))
    return reached[0] if reached else None


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Within, the user's own network is in evaluation mode; then every layer is in the mode that it was in.

    The flags are set one by one: a network's own `eval` and `train` may do more than that.
    """
    flags = [(module, module.training) for module in model.modules()]
    for module, _ in flags:
        module.training = False
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def moments_at_first_norm(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel that enters the first norm, which must remember statistics."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for part in torch.split(images, _BATCH):
        reached = into_first_norm(model, part)
        assert reached is not None
        values = reached[1].transpose(0, 1).flatten(1).double().cpu()
        count, total = count + values.shape[1], total + values.sum(1)
        squares = squares + values.square().sum(1)
    mean = total / count
    return mean, (squares / count - mean.square()).clamp_min(0)


def kept_by(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean and variance that a norm remembers."""
    mean, variance = (getattr(norm, name).double().cpu() for name in ("running_mean", "running_var"))
    return mean, variance


def _one_channel_each(patterns: Tensor) -> Tensor:
    """For each channel an image that is 1 there and 0 elsewhere."""
    channels, *size = patterns.shape[1:]
    return torch.eye(channels)[..., None, None].expand(channels, channels, *size).to(patterns)


class _Reached(Exception):  # noqa: N818 - not an error: the rest of the network is not needed
    """The first norm was reached."""


def _remembers(norm: nn.Module) -> bool:
    """Whether a norm keeps statistics, and has ever seen anything."""
    mean, variance = (getattr(norm, name, None) for name in ("running_mean", "running_var"))
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return False
    return bool(mean.any()) or not bool(variance.eq(1).all())


@contextmanager
def _stopped_at_first_norm(model: nn.Module, reached: list[tuple[nn.Module, Tensor]]) -> Iterator[None]:
    """Go no further than the norm that is reached first; keep what enters it, if it remembers statistics."""

    def hook(norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if _remembers(norm):
            reached.append((norm, arguments[0]))
        raise _Reached

    handles = [norm.register_forward_pre_hook(hook) for norm in find_norms(model).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
