"""How the elements of a tensor lie in memory."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["empty", "group_norm", "is_dense", "layout_of"]

_PIXEL_BY_PIXEL: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def layout_of(x: Tensor) -> torch.memory_format:
    """Pixel by pixel, or else plane by plane."""
    form = _PIXEL_BY_PIXEL.get(x.ndim)
    last = form is not None and x.is_contiguous(memory_format=form)
    return form if form is not None and last else torch.contiguous_format


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
    return F.group_norm(x.contiguous(), num_groups, weight, bias, eps)
