"""Centroid labels against the published procedure, written out with numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from acclimate.errors import InputError, OptionError
from acclimate.pseudo_labels import centroid_labels


def published(features: np.ndarray, confidences: np.ndarray, *, recompute: bool) -> np.ndarray:
    """Two rounds of centroids, soft then hard, by scipy's cosine distance."""
    n = confidences.shape[1]
    extended = np.hstack([features, np.ones((len(features), 1))])
    extended /= np.linalg.norm(extended, axis=1, keepdims=True)
    weights, labels = confidences, confidences.argmax(1)
    allowed = np.unique(labels)
    for round_number in range(2):
        if recompute and round_number:
            allowed = np.unique(labels)
        counts = weights.sum(0)[:, None]
        centroids = weights.T @ extended / np.where(counts > 0, counts, 1)
        alive = np.array([c for c in allowed if counts[c] > 0])
        labels = alive[cdist(extended, centroids[alive], "cosine").argmin(1)]
        weights = np.eye(n)[labels]
    return labels


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("label_set", ["fixed", "recomputed"])
def test_equals_the_published_procedure(seed: int, label_set: str) -> None:
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(7, 12))
    truth = rng.integers(0, 7, 300)
    features = means[truth] + rng.normal(size=(300, 12))
    logits = 1.5 * np.eye(9)[truth] + rng.normal(size=(300, 9))  # classes 7 and 8 do occur, rarely
    confidences = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = centroid_labels(torch.from_numpy(features), torch.from_numpy(confidences), label_set)
    assert np.array_equal(
        found.numpy(), published(features, confidences, recompute=label_set == "recomputed")
    )
    assert not np.array_equal(found.numpy(), confidences.argmax(1))


def test_classes_that_are_never_predicted_are_left_out() -> None:
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    confidences = torch.full((50, 3), 0.3)
    confidences[:25, 0], confidences[25:, 2] = 0.4, 0.4
    assert set(centroid_labels(features, confidences).tolist()) <= {0, 2}


def test_a_class_that_lost_all_its_samples_attracts_none() -> None:
    # class 2 is predicted once, but its centroid is far from its only sample's weight in the others
    features = torch.tensor([[1.0, 0], [1, 0.01], [0, 1], [0.01, 1], [1, 0.02]])
    confidences = torch.tensor([[0.9, 0.1, 0], [0.9, 0.1, 0], [0.1, 0.9, 0], [0.1, 0.9, 0], [0.3, 0.3, 0.4]])
    confidences[2:4, 2] = 0.05  # pulls the soft centroid of class 2 to the middle
    for label_set in ("fixed", "recomputed"):
        assert centroid_labels(features, confidences, label_set).tolist() == [0, 0, 1, 1, 0]


def test_the_length_of_a_feature_counts() -> None:
    # the appended 1 makes the norm of a feature count
    near, far = torch.tensor([[0.1, 0.0]]), torch.tensor([[10.0, 0.0]])
    features = torch.cat([near, near, far, far])
    confidences = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    assert centroid_labels(features, confidences).tolist() == [0, 0, 1, 1]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown label set 'fixd'"):
        centroid_labels(torch.rand(3, 2), torch.rand(3, 2), "fixd")
    with pytest.raises(InputError, match=r"\(N, d\)"):
        centroid_labels(torch.rand(3, 2), torch.rand(4, 2))
