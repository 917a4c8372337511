"""Parts of a data set, drawn from a seed: adapt on one, evaluate on all."""

from __future__ import annotations

import zlib

import torch

from acclimate.data.image_set import ImageSet
from acclimate.errors import InputError, OptionError

__all__ = ["first", "fraction_of_classes", "fraction_of_samples"]


def first(images: ImageSet, count: int) -> ImageSet:
    """The first images in the order of the data."""
    if count < 1:
        raise OptionError(f"the number of images must be at least 1, got {count}")
    return images.subset(range(min(count, len(images))))


def fraction_of_classes(images: ImageSet, fraction: float, *, seed: int = 0) -> ImageSet:
    """All images of some classes: that share of the classes that occur, rounded, at least one."""
    labels = _labels(images)
    kept = _drawn(torch.tensor(sorted(set(labels.tolist()))), fraction, seed)
    return images.subset(torch.isin(labels, kept).nonzero().flatten().tolist())


def fraction_of_samples(images: ImageSet, fraction: float, *, seed: int = 0) -> ImageSet:
    """Some images of every class: that share of each, rounded, at least one."""
    labels = _labels(images)
    kept = []
    for label in sorted(set(labels.tolist())):
        own = (labels == label).nonzero().flatten()
        kept.append(_drawn(own, fraction, zlib.crc32(f"{seed} {label}".encode())))
    return images.subset(torch.cat(kept).sort().values.tolist())


def _labels(images: ImageSet) -> torch.Tensor:
    if images.labels is None:
        raise InputError("a fraction of classes, or of each class, needs labels, which these images have not")
    return images.labels


def _drawn(values: torch.Tensor, fraction: float, seed: int) -> torch.Tensor:
    if not 0 < fraction <= 1:
        raise OptionError(f"a fraction must be above 0 and at most 1, got {fraction}")
    count = max(1, round(fraction * len(values)))
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    return values[order[:count]]
