"""Metrics against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acclimate.errors import InputError
from acclimate.metrics import structural_similarity


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
