"""Metrics against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acclimate.errors import InputError
from acclimate.metrics import measure, structural_similarity


def windowed(first: np.ndarray, second: np.ndarray, span: float) -> float:
    """SSIM window by window, from its definition."""
    values = []
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    for channel in range(first.shape[0]):
        for row in range(first.shape[1] - 6):
            for column in range(first.shape[2] - 6):
                x, y = (image[channel, row : row + 7, column : column + 7] for image in (first, second))
                cov = np.cov(x.ravel(), y.ravel())
                luminance = (2 * x.mean() * y.mean() + c1) / (x.mean() ** 2 + y.mean() ** 2 + c1)
                values.append(luminance * (2 * cov[0, 1] + c2) / (cov[0, 0] + cov[1, 1] + c2))
    return float(np.mean(values))


@pytest.mark.parametrize("span", [1.0, 255.0])
def test_ssim_is_its_definition(span: float) -> None:
    rng = np.random.default_rng(0)
    first = rng.random((2, 3, 14, 11)) * span
    second = np.clip(first + rng.normal(0, 0.2 * span, first.shape), 0, span)
    made = structural_similarity(torch.from_numpy(first), torch.from_numpy(second), span=span)
    assert made.tolist() == pytest.approx([windowed(a, b, span) for a, b in zip(first, second, strict=True)])


def test_ssim_of_an_image_with_its_negative_is_negative() -> None:
    image = torch.rand(1, 1, 20, 20)
    assert structural_similarity(image, 1 - image).item() < 0


@pytest.mark.parametrize("shape", [(1, 3, 6, 9), (3, 9, 9)])
def test_ssim_needs_whole_windows(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="at least 7 pixels a side"):
        structural_similarity(torch.zeros(shape), torch.zeros(shape))


def test_quality_is_what_it_says_it_is() -> None:
    """Image by image, in float64."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 7, generator=generator)
    labels = torch.randint(0, 6, (200,), generator=generator)  # class 6 has no image
    found = measure(logits, labels)
    p = np.exp(logits.double().numpy())
    p /= p.sum(1, keepdims=True)
    truth, sure, top = labels.numpy(), p.max(1), p.argmax(1)
    right = top == truth
    assert found.accuracy == pytest.approx(right.mean())
    assert found.nll == pytest.approx(np.mean([-np.log(p[i, truth[i]]) for i in range(200)]))
    assert found.brier == pytest.approx(
        np.mean([((p[i] - np.eye(7)[truth[i]]) ** 2).sum() for i in range(200)])
    )
    ece = 0.0
    for low in range(15):
        inside = (sure > low / 15) & (sure <= (low + 1) / 15)
        if inside.any():
            ece += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    assert found.ece == pytest.approx(ece)
    assert found.per_class[:6] == pytest.approx([right[truth == c].mean() for c in range(6)])
    assert found.per_class[6] is None
    assert found.histogram == tuple(np.bincount(top, minlength=7).tolist())
    assert sum(count for count, _, _ in found.bins) == 200
    assert found.logit_norm == pytest.approx(np.linalg.norm(logits.double().numpy(), axis=1).mean())


def test_certainty_is_in_the_last_bin() -> None:
    found = measure(torch.tensor([[100.0, 0.0], [0.0, 100.0]]), torch.tensor([0, 0]))
    assert found.bins[-1] == (2, 1.0, 0.5)
    assert found.ece == pytest.approx(0.5)
    assert found.brier == pytest.approx(1.0)


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0], [0]])
def test_labels_that_do_not_fit(labels: list[int]) -> None:
    with pytest.raises(InputError, match="labels"):
        measure(torch.zeros(2, 3), torch.tensor(labels))


def test_what_is_no_number_is_not_measured() -> None:
    with pytest.raises(InputError, match="not finite"):
        measure(torch.tensor([[float("nan"), 0.0]]), torch.tensor([0]))
