"""SHOT's centroid labels: every sample takes the class whose centroid in feature space is nearest.

Two rounds, by the cosine of the angle between centroids and features with a 1 appended:

    1. centroids are means of the features weighted by the confidences (soft)
    2. centroids are means of the features that round 1 gave to the class (hard)

Classes that the network predicts for no sample are left out (`label_set="fixed"`, the published
first form); ``"recomputed"`` also leaves out, in round 2, those that round 1 gave to no sample (the
authors' form since June 2022).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import InputError, OptionError, unknown
from acclimate.ranks import ALONE, Ranks

__all__ = ["centroid_labels"]


def centroid_labels(
    features: Tensor, confidences: Tensor, label_set: str = "fixed", *, ranks: Ranks = ALONE
) -> Tensor:
    """Labels ``(N,)`` from features ``(N, d)`` and confidences ``(N, n)``; centroids are those of all ranks.

    >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> confidences = torch.tensor([[0.8, 0.2, 0.0], [0.4, 0.6, 0.0], [0.1, 0.9, 0.0]])
    >>> centroid_labels(features, confidences)
    tensor([0, 0, 1])
    """
    if label_set not in ("fixed", "recomputed"):
        raise OptionError(unknown("label set", label_set, ("fixed", "recomputed")))
    if features.ndim != 2 or confidences.ndim != 2 or len(features) != len(confidences):
        raise InputError(
            "centroid labels need features (N, d) and confidences (N, n), "
            f"got {tuple(features.shape)} and {tuple(confidences.shape)}"
        )
    ones = features.new_ones(len(features), 1)
    directions = F.normalize(torch.cat([features, ones], dim=1), dim=1)

    occurring = _occurring(confidences.argmax(1), confidences.shape[1], ranks)
    soft = ranks.sum(confidences.to(features.dtype).T @ directions)
    labels = _nearest(directions, soft[occurring], occurring)

    hard = ranks.sum(torch.zeros_like(soft).index_add_(0, labels, directions))
    if label_set == "recomputed":
        occurring = _occurring(labels, confidences.shape[1], ranks)
    return _nearest(directions, hard[occurring], occurring)


def _occurring(labels: Tensor, num_classes: int, ranks: Ranks) -> Tensor:
    """The classes that some image of any rank has."""
    return ranks.any(torch.bincount(labels, minlength=num_classes) > 0).nonzero().flatten()


def _nearest(directions: Tensor, sums: Tensor, classes: Tensor) -> Tensor:
    """The class of the centroid with the largest cosine; a sum points where its mean points.

    A class that lost all its samples has no direction and can be nearest to nothing.
    """
    centroids = F.normalize(sums, dim=1)
    empty = sums.abs().amax(1).eq(0)
    chosen = [
        (part @ centroids.T).masked_fill(empty, -torch.inf).argmax(1)
        for part in torch.split(directions, 4096)
    ]
    return classes[torch.cat(chosen)]
