"""How right predictions are, held against labels: for whoever measures, never for what adapts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from acclimate.chance import Paired, compare_paired, wilson
from acclimate.errors import InputError, listed
from acclimate.metrics import measure

__all__ = ["Comparison", "Evaluation", "columns_of", "compared", "evaluated"]

_LOWEST = 3  # classes that are named


@dataclass(frozen=True)
class Evaluation:
    """How right a network's predictions are; `print` shows it in a few lines."""

    images: int
    right: int
    accuracy: float
    """The share of images that are right."""
    interval: tuple[float, float]
    """95% interval of the accuracy: Wilson's."""
    per_class: dict[str, float]
    """Accuracy on the images of each class that occurs."""
    images_per_class: dict[str, int]
    confidence: float
    """Mean confidence, which is the accuracy where a network is calibrated."""
    ece: float
    """Expected calibration error, as of `acclimate.metrics.measure`."""
    nll: float
    """Mean negative log likelihood of the true class, in nats."""
    brier: float
    """Mean squared distance between the confidences and the true class, over all classes: 0 to 2."""
    statistics: str
    """Which normalisation statistics it was predicted with, in words."""
    labels: str = "the labels"
    """Where they come from, and how an output of the network was found for each."""

    def __str__(self) -> str:
        lowest = sorted(self.per_class, key=lambda name: self.per_class[name])[:_LOWEST]
        told = ", ".join(
            f"{name} {100 * self.per_class[name]:.1f}% of {self.images_per_class[name]:,}" for name in lowest
        )
        accuracy = _percent(self.accuracy, self.interval)
        return "\n".join(
            [
                f"accuracy {accuracy}, {self.right:,} of {self.images:,} images",
                f"mean confidence {self.confidence:.3f}, expected calibration error {self.ece:.3f}, "
                f"negative log likelihood {self.nll:.3f}, Brier score {self.brier:.3f}",
                f"lowest of {len(self.per_class)} classes: {told}",
                f"predicted with {self.statistics}; measured by {self.labels}",
            ]
        )


@dataclass(frozen=True)
class Comparison:
    """Accuracy before and after adapting, on the same images: labels decided nothing but this."""

    before: Evaluation
    after: Evaluation
    paired: Paired

    def __str__(self) -> str:
        sides = [
            f"accuracy {when} adapting: {_percent(side.accuracy, side.interval)}, with {side.statistics}"
            for when, side in (("before", self.before), ("after", self.after))
        ]
        paired = self.paired
        low, high = (100 * end for end in paired.interval)
        chance = ", within chance" if paired.within_chance else ""
        return "\n".join(
            [
                *sides,
                f"difference: {100 * paired.difference:+.2f} points (95% interval {low:+.2f} to {high:+.2f}) "
                f"on {paired.images:,} labelled images; {paired.won:,} won, {paired.lost:,} lost, "
                f"McNemar's exact p = {paired.p:.2g}{chance}",
                f"measured by {self.after.labels}",
            ]
        )


def evaluated(
    logits: Tensor,
    labels: Tensor,
    *,
    statistics: str,
    classes: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    origin: str = "the labels",
) -> Evaluation:
    """Measure logits against labels, which are outputs of the network.

    Args:
        statistics: which ones the network predicted with, in words.
        classes: the outputs that the columns of the logits stand for, if these are not all.
        names: of all outputs.
        origin: where the labels come from, in words.

    >>> import torch
    >>> found = evaluated(torch.eye(3)[[0, 1, 1]], torch.tensor([0, 1, 2]), statistics="its own statistics")
    >>> found.right, found.per_class
    (2, {'0': 1.0, '1': 1.0, '2': 0.0})
    """
    columns = columns_of(labels, classes)
    logits = logits.detach().float().cpu()
    quality = measure(logits, columns)
    counts = columns.bincount(minlength=logits.shape[1]).tolist()
    outputs = range(logits.shape[1]) if classes is None else classes
    named = [str(output) if names is None else names[output] for output in outputs]
    occurring = [
        (name, share, n) for name, share, n in zip(named, quality.per_class, counts, strict=True) if n
    ]
    right = round(quality.accuracy * len(labels))
    return Evaluation(
        images=len(labels),
        right=right,
        accuracy=quality.accuracy,
        interval=wilson(quality.accuracy, len(labels)),
        per_class={name: share for name, share, _ in occurring if share is not None},
        images_per_class={name: n for name, _, n in occurring},
        confidence=sum(n * sure for n, sure, _ in quality.bins) / len(labels),
        ece=quality.ece,
        nll=quality.nll,
        brier=quality.brier,
        statistics=statistics,
        labels=origin,
    )


def compared(
    before: Tensor,
    after: Tensor,
    labels: Tensor,
    *,
    statistics: tuple[str, str],
    classes: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    origin: str = "the labels",
) -> Comparison:
    """Measure logits before and after against the same labels; the rest as for `evaluated`."""
    columns = columns_of(labels, classes)
    sides = [
        evaluated(logits, labels, statistics=how, classes=classes, names=names, origin=origin)
        for logits, how in zip((before, after), statistics, strict=True)
    ]
    first, second = (logits.argmax(1).cpu().eq(columns) for logits in (before, after))
    return Comparison(sides[0], sides[1], compare_paired(first, second))


def columns_of(labels: Tensor, classes: Sequence[int] | None) -> Tensor:
    """Labels, which are outputs of the network, as columns of its logits.

    >>> import torch
    >>> columns_of(torch.tensor([7, 3, 7]), [3, 7]).tolist()
    [1, 0, 1]
    """
    if classes is None:
        return labels
    column = {output: number for number, output in enumerate(classes)}
    strange = sorted(set(labels.tolist()) - column.keys())
    if strange:
        raise InputError(
            f"labels must be among the outputs of classes=, {listed(classes, 5)}, got {listed(strange, 5)}"
        )
    return labels.new_tensor([column[label] for label in labels.tolist()])


def _percent(share: float, interval: tuple[float, float]) -> str:
    low, high = (100 * end for end in interval)
    return f"{100 * share:.2f}% (95% interval {low:.2f} to {high:.2f})"
