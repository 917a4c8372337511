"""Measures of how good images and predictions are."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import InputError

__all__ = ["BINS", "Observation", "Quality", "measure", "observe", "structural_similarity"]

BINS = 15  # of confidence, for the calibration error


@dataclass(frozen=True)
class Quality:
    """How good predictions are: shares and means over images."""

    accuracy: float
    per_class: tuple[float | None, ...]
    """Accuracy on the images of each class; None where there are none."""
    nll: float
    """Mean negative log likelihood of the true class, in nats."""
    brier: float
    """Mean squared distance between the confidences and the true class, over all classes: 0 to 2."""
    ece: float
    """Expected calibration error: mean distance of confidence and accuracy over bins of confidence."""
    bins: tuple[tuple[int, float, float], ...]
    """Images, mean confidence and accuracy of each bin of confidence."""
    histogram: tuple[int, ...]
    """How often each class was predicted."""
    logit_norm: float
    """Mean length of the vector of logits, which grows where confidence is all that is asked for."""


@dataclass(frozen=True)
class Observation:
    """What can be said of predictions without labels: as `Quality`, where the names are the same."""

    confidence: float
    """Mean over images."""
    bins: tuple[tuple[int, float, None], ...]
    """Images and mean confidence of each bin of confidence; how many are right is not known."""
    histogram: tuple[int, ...]
    logit_norm: float


def observe(logits: Tensor) -> Observation:
    """Look at predictions ``(N, classes)``, in float64.

    >>> import torch
    >>> observe(torch.tensor([[4.0, 0.0], [4.0, 0.0]])).histogram
    (2, 0)
    """
    wide = logits.double()
    sure, predicted = wide.log_softmax(1).exp().max(1)
    return Observation(
        confidence=sure.mean().item(),
        bins=tuple((count, mean, None) for count, mean, _ in _bins(sure, predicted.eq(predicted))),
        histogram=tuple(predicted.bincount(minlength=logits.shape[1]).tolist()),
        logit_norm=wide.norm(dim=1).mean().item(),
    )


def measure(logits: Tensor, labels: Tensor) -> Quality:
    """Measure predictions ``(N, classes)`` against labels ``(N,)``, in float64.

    >>> import torch
    >>> found = measure(torch.tensor([[4.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 1]))
    >>> found.accuracy, found.per_class, found.histogram
    (0.5, (1.0, 0.0), (2, 0))
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise InputError(
            f"expected logits (N, classes) and as many labels, got {tuple(logits.shape)} and "
            f"{tuple(labels.shape)}"
        )
    count = logits.shape[1]
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        raise InputError(
            f"labels must be from 0 to {count - 1}, as there are {count} logits, got {int(labels.min())} to "
            f"{int(labels.max())}"
        )
    if not logits.isfinite().all():
        raise InputError("some logits are not finite: there is nothing to measure")
    wide = logits.double()
    logs = wide.log_softmax(1)
    confidences = logs.exp()
    sure, predicted = confidences.max(1)
    right = predicted.eq(labels)
    seen = labels.bincount(minlength=count)
    hits = labels[right].bincount(minlength=count)
    true = F.one_hot(labels, count).double()
    bins = _bins(sure, right)
    return Quality(
        accuracy=right.double().mean().item(),
        per_class=tuple(h / n if n else None for h, n in zip(hits.tolist(), seen.tolist(), strict=True)),
        nll=-logs.gather(1, labels[:, None]).mean().item(),
        brier=(confidences - true).square().sum(1).mean().item(),
        ece=sum(n * abs(sureness - accuracy) for n, sureness, accuracy in bins) / len(labels),
        bins=bins,
        histogram=tuple(predicted.bincount(minlength=count).tolist()),
        logit_norm=wide.norm(dim=1).mean().item(),
    )


def _bins(sure: Tensor, right: Tensor) -> tuple[tuple[int, float, float], ...]:
    """Bins of equal width, each with its upper end."""
    places = (sure * BINS).ceil().long().clamp(1, BINS) - 1
    counts = places.bincount(minlength=BINS)
    sums = [places.bincount(weights=values.double(), minlength=BINS) for values in (sure, right)]
    means = [(total / counts.clamp(min=1)).tolist() for total in sums]
    return tuple(zip(counts.tolist(), *means, strict=True))


def structural_similarity(first: Tensor, second: Tensor, *, window: int = 7, span: float = 1.0) -> Tensor:
    """SSIM of images (N, C, H, W), a value for each: the mean over channels and whole windows.

    Windows weigh evenly and variances are those of samples, as in scikit-image's default. ``span`` is the
    distance between the smallest and the largest possible value: 1 for [0, 1], 255 for bytes.

    >>> import torch
    >>> images = torch.rand(2, 3, 16, 16)
    >>> structural_similarity(images, images).tolist()
    [1.0, 1.0]
    """
    if first.shape != second.shape or first.ndim != 4 or min(first.shape[2:]) < window:
        raise InputError(
            f"expected two batches of images (N, C, H, W) of one shape and at least {window} pixels a side, "
            f"got {tuple(first.shape)} and {tuple(second.shape)}"
        )
    x, y = first.double(), second.double()

    def local(values: Tensor) -> Tensor:
        return values.unfold(2, window, 1).mean(-1).unfold(3, window, 1).mean(-1)

    mean_x, mean_y = local(x), local(y)
    sample = window**2 / (window**2 - 1)
    variances = sample * (local(x * x) - mean_x**2 + local(y * y) - mean_y**2)
    covariance = sample * (local(x * y) - mean_x * mean_y)
    small, smaller = (0.01 * span) ** 2, (0.03 * span) ** 2
    structure = (2 * covariance + smaller) / (variances + smaller)
    luminance = (2 * mean_x * mean_y + small) / (mean_x**2 + mean_y**2 + small)
    return (luminance * structure).mean(dim=(1, 2, 3))
