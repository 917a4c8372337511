"""A convolution and the gradient of its input by torch's own kernels, without a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from acclimate.fast.layout import empty
from acclimate.fast.packing import Geometry

__all__ = ["convolved_by_torch", "transposed_by_torch"]


def convolved_by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """``torch.conv2d``, or that of another dimension."""
    stride, padding, dilation, groups = geometry
    zeros = [0] * len(stride)
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups)


def transposed_by_torch(
    gradient: Tensor, shape: torch.Size, form: torch.memory_format, weight: Tensor, geometry: Geometry
) -> Tensor:
    """The gradient of an input of this shape and layout."""
    stride, padding, dilation, groups = geometry
    like, zeros = empty(shape, form, gradient), [0] * len(stride)
    made: Tensor = torch.ops.aten.convolution_backward(
        gradient, like, weight, None, stride, padding, dilation, False, zeros, groups, (True, False, False)
    )[0]
    return made
