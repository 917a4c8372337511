"""How the elements of a tensor lie in memory."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["empty", "group_norm", "in_planes", "is_by_pixel", "is_dense", "layout_of", "pixel_by_pixel"]

_PIXEL_BY_PIXEL: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def layout_of(x: Tensor) -> torch.memory_format:
    """Pixel by pixel, or else plane by plane."""
    form = _PIXEL_BY_PIXEL.get(x.ndim)
    if form is None or not x.is_contiguous(memory_format=form):
        return torch.contiguous_format
    return form if x.shape[1] > 1 or x.ndim != 4 or is_by_pixel(x) else torch.contiguous_format


def is_by_pixel(x: Tensor) -> bool:
    """Whether torch takes images to lie so: those of one channel lie in both ways, and their strides tell."""
    if x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    return not x.is_contiguous() or (x.shape[1] == x.stride(1) == 1 < x.shape[2:].numel())


def pixel_by_pixel(images: Tensor) -> Tensor:
    """Images that torch takes to lie so."""
    if images.shape[1] != 1:
        return images.contiguous(memory_format=torch.channels_last)
    count, _, height, width = images.shape
    return images.contiguous().view(count, height, width, 1).permute(0, 3, 1, 2)


def in_planes(images: Tensor) -> Tensor:
    """Images that torch takes to lie plane by plane."""
    if images.is_contiguous() and not is_by_pixel(images):
        return images
    return images.clone(memory_format=torch.contiguous_format)


def is_dense(x: Tensor) -> bool:
    """Whether the elements lie there without gaps and repeats."""
    return x.is_contiguous() or layout_of(x) != torch.contiguous_format


def empty(shape: torch.Size, form: torch.memory_format, like: Tensor) -> Tensor:
    """Memory without anything in it yet; or what stands for an input, of which shape and layout are read."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=form)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    """``F.group_norm`` of images that lie pixel by pixel and need no gradient: there torch's own crashes."""
    if x.requires_grad or x.device.type != "cpu" or layout_of(x) == torch.contiguous_format:
        return NotImplemented
    return F.group_norm(in_planes(x), num_groups, weight, bias, eps)
