"""What a network's input is normalised with: as the user says, as its weights do, and as it seems to be.

The probe needs no labels. A batch normalisation remembers the mean and variance of what it saw in training.
Those of the network's first one say what normalised pixels looked like, so the normalisation under which some
images come closest to them is likely the right one, also for corrupted images: most corruptions move them far
less than a wrong normalisation does. A network that remembers nothing is judged by its confidence, which is a
weaker sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from acclimate.errors import OptionError, listed
from acclimate.half import in_float32
from acclimate.mean_std import NORMALIZATIONS, MeanStd, mean_and_std
from acclimate.norms import find_norms
from acclimate.outputs import logits_of
from acclimate.prepare import model_info, normalization_mismatch

__all__ = ["Probe", "may_be_normalised_otherwise", "normalization_of", "probe_normalization"]

_BATCH = 32
# A wrong normalisation is told of if another is closer by this factor and it is this far away. Chosen on the
# validation corruptions.
_FACTOR, _FAR = 3.0, 0.1
_MORE_CONFIDENT = 0.1
_SHIFTS = 0.05  # of mean and std: less is not another normalisation


@dataclass(frozen=True)
class Probe:
    """How well some images fit a network, under the normalisation in use and under common ones."""

    by: str
    """``statistics`` of the first batch normalisation, or ``confidence``."""
    scores: dict[str, float]
    """For each normalisation, the divergence from the remembered statistics (0 is a perfect fit), or the
    mean confidence."""

    @property
    def best(self) -> str:
        """The name under which the images fit best; ``in use`` if nothing fits better."""
        pick = min if self.by == "statistics" else max
        return pick(self.scores, key=lambda name: self.scores[name])

    @property
    def caution(self) -> str | None:
        """One sentence if another normalisation fits far better."""
        given, best = self.scores["in use"], self.scores[self.best]
        if self.by == "statistics":
            wrong = given > _FAR and given > _FACTOR * best
            found = f"divergence from what its first norm remembers: {best:.2f} against {given:.2f}"
        else:
            wrong = best > given + _MORE_CONFIDENT
            found = f"mean confidence {best:.2f} against {given:.2f}"
        if not wrong:
            return None
        return (
            f"the network seems to expect the normalisation {self.best!r}, not the one in use ({found}): "
            "check what it was trained with"
        )


def normalization_of(model: nn.Module, given: str | MeanStd | None) -> MeanStd:
    """As the user says, otherwise as the network's weights do; an error if the two differ.

    >>> normalization_of(nn.Identity(), "0.5/0.25")
    ((0.5,), (0.25,))
    """
    info = model_info(model)
    if given is None:
        if info is None or info.mean is None or info.std is None:
            raise OptionError(
                "the network does not say what its input was normalised with: give normalize (--normalize), "
                f"MEAN/STD such as 0.5,0.5,0.5/0.2,0.2,0.2, or {listed(NORMALIZATIONS)}"
            )
        return info.mean, info.std
    mean, std = mean_and_std(given)
    mismatch = normalization_mismatch(info, mean, std)
    if mismatch is not None and info is not None and not info.assumed:
        raise OptionError(mismatch)
    return mean, std


def may_be_normalised_otherwise(model: nn.Module) -> bool:
    """Whether the weights leave open what their input was normalised with."""
    info = model_info(model)
    return info is None or info.mean is None or info.assumed


def probe_normalization(model: nn.Module, images: Tensor, normalize: MeanStd | None) -> Probe:
    """Compare normalisations by feeding a few images; pixels in [0, 1], a network in evaluation mode.

    >>> from acclimate.demo.bundle import bundled_images, bundled_model
    >>> probe_normalization(bundled_model(), bundled_images()[0][:32], None).best
    'half'
    """
    model, channels = in_float32(model), images.shape[1]
    tried = {"in use": normalize or NORMALIZATIONS["none"]}
    for name, (mean, std) in NORMALIZATIONS.items():
        common = (mean[:channels], std[:channels])
        if not _close(common, tried["in use"]) and len(common[0]) == channels:
            tried[name] = common
    found = {name: _fit(model, images, normalization) for name, normalization in tried.items()}
    by = found["in use"][0]
    if by == "confidence":
        found.pop("bytes", None)  # large values make any network sure of itself
    return Probe(by, {name: score for name, (_, score) in found.items()})


def _close(one: MeanStd, other: MeanStd) -> bool:
    flat = [(*mean, *std) for mean, std in (one, other)]
    return len(flat[0]) == len(flat[1]) and all(
        abs(a - b) < _SHIFTS * max(1e-2, flat[1][-1]) for a, b in zip(*flat, strict=True)
    )


class _Seen(Exception):  # noqa: N818 - not an error: the rest of the network is not needed
    """The first norm was reached."""


def _fit(model: nn.Module, images: Tensor, normalization: MeanStd) -> tuple[str, float]:
    """Divergence from the statistics that the first norm remembers, if it does, or mean confidence."""
    like = next(model.parameters(), images)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in normalization)
    pixels = ((images - mean) / std).to(like.device, like.dtype)
    logits: list[Tensor] = []
    reached: list[tuple[nn.Module, Tensor]] = []
    for part in torch.split(pixels, _BATCH):
        with torch.no_grad(), _stopped_at_first_norm(model, reached), suppress(_Seen):
            logits.append(logits_of(model(part)).float())
    if not reached:
        return "confidence", torch.cat(logits).softmax(1).amax(1).mean().item()
    values = torch.cat([x.transpose(0, 1).flatten(1) for _, x in reached], dim=1).double()
    return "statistics", _divergence(reached[0][0], values.mean(1), values.var(1, correction=0))


def _divergence(norm: nn.Module, mean: Tensor, variance: Tensor) -> float:
    """Kullback-Leibler divergence of normal distributions, the median over channels: some may be dead."""
    eps = float(getattr(norm, "eps", 1e-5))
    own_mean, own_variance = (getattr(norm, name).double() for name in ("running_mean", "running_var"))
    ratio = (variance + eps) / (own_variance + eps)
    shift = (mean - own_mean).square() / (own_variance + eps)
    return float((0.5 * (ratio + shift - 1 - ratio.log())).median())


def _remembers(norm: nn.Module) -> bool:
    """Whether a norm keeps statistics, and has ever seen anything."""
    mean, variance = (getattr(norm, name, None) for name in ("running_mean", "running_var"))
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return False
    return bool(mean.any()) or not bool(variance.eq(1).all())


@contextmanager
def _stopped_at_first_norm(model: nn.Module, reached: list[tuple[nn.Module, Tensor]]) -> Iterator[None]:
    """Keep what enters the norm that is reached first, and go no further, if it remembers statistics."""
    passed = False

    def hook(norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        nonlocal passed
        if not passed and _remembers(norm):
            reached.append((norm, arguments[0]))
            raise _Seen
        passed = True

    handles = [norm.register_forward_pre_hook(hook) for norm in find_norms(model).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
