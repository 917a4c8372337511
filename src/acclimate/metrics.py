"""Measures of how good images and predictions are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import InputError

__all__ = ["structural_similarity"]


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
        return F.avg_pool2d(F.avg_pool2d(values, (window, 1), stride=1), (1, window), stride=1)

    mean_x, mean_y = local(x), local(y)
    sample = window**2 / (window**2 - 1)
    variances = sample * (local(x * x) - mean_x**2 + local(y * y) - mean_y**2)
    covariance = sample * (local(x * y) - mean_x * mean_y)
    small, smaller = (0.01 * span) ** 2, (0.03 * span) ** 2
    structure = (2 * covariance + smaller) / (variances + smaller)
    luminance = (2 * mean_x * mean_y + small) / (mean_x**2 + mean_y**2 + small)
    return (luminance * structure).mean(dim=(1, 2, 3))
