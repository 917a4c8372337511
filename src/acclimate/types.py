"""The values that travel through acclimate. No logic here."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Alarm", "Batch", "History", "ModelInfo", "Verdict"]


@dataclass(frozen=True)
class Batch:
    """Images and, where it is known, each image's position in the data set. Never labels."""

    images: Tensor
    index: Tensor | None = None


@dataclass(frozen=True)
class ModelInfo:
    """What a network's weights say of the input they were trained on."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: int | None = None
    """Side of the images in pixels."""
    resize: int | None = None
    """Shorter side before the crop."""
    interpolation: str | None = None
    squash: bool = False
    """Whether images become squares by a change of their proportions, not by a crop."""
    assumed: bool = False
    """Whether this is said of the published weights, while others are in use."""
    origin: str = "the weights' metadata"


@dataclass(frozen=True)
class Alarm:
    """What the guard saw, and what it did."""

    step: int
    """Steps that were made until then."""
    signal: str
    """What was out of bounds: a row of `acclimate.guard.SIGNALS`."""
    value: float
    limit: float
    action: str
    message: str
    """All of it in a sentence."""


@dataclass
class History:
    """One entry per update step."""

    loss: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    """Mean confidence of the predicted class, before the update."""
    class_entropy: list[float] = field(default_factory=list)
    """Entropy of the running class distribution, in nats; log(number of classes) where it is uniform."""
    lr: list[float] = field(default_factory=list)
    epoch: list[int] = field(default_factory=list)
    """Epoch of the step, from 1; 0 for online steps."""
    alarms: list[Alarm] = field(default_factory=list)
    """Of the guard: not one per step, but as they came."""

    def per_step(self) -> dict[str, list[float]]:
        """What has one entry per step, by name."""
        return {name: values for name, values in vars(self).items() if name != "alarms"}


@dataclass(frozen=True)
class Verdict:
    """Whether an adapted network seems to do no harm, by `acclimate.gate`."""

    accepted: bool
    reason: str
    figures: dict[str, float | None]
    """By which it was judged."""
