"""Frozen weights packed as oneDNN's kernels read them: torch's own calls pack them anew in every pass.

A convolution goes through its weight once for each image, and once more to pack it: with single images that
is half of the work of a late layer. The gradient of its input is a transposed convolution, whose weight can
be packed as well. Both are what torch would compute by the same kernels; linear layers, which torch gives
to another library (MKL) in float32, move by rounding where oneDNN takes them. Packed for one shape of the
input, a convolution's weight may be slow with another: then it is packed again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Geometry",
    "can_pack",
    "convolved",
    "multiplied",
    "pack",
    "pack_linear",
    "pack_transposed",
    "pays_for_products",
    "transposed",
]


class _Operations(NamedTuple):
    """Of oneDNN, by way of torch: the compiler's, which no public function calls."""

    convolution: Callable[..., Tensor]
    transposed_convolution: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    pack: Callable[..., Tensor]
    pack_transposed: Callable[..., Tensor]
    pack_linear: Callable[..., Tensor]


def _found() -> _Operations | None:
    """None, where this torch has them not."""
    own = torch.ops.mkldnn
    try:
        return _Operations(
            own._convolution_pointwise.default,
            own._convolution_transpose_pointwise.default,
            own._linear_pointwise.default,
            torch._C._nn.mkldnn_reorder_conv2d_weight,
            own._reorder_convolution_transpose_weight.default,
            own._reorder_linear_weight.default,
        )
    except AttributeError:
        return None


_ONEDNN: Final = _found()
_NOTHING_MORE: Final[tuple[str, list[float], str]] = ("none", [], "")
"""What is done behind a product in the same pass."""


class Geometry(NamedTuple):
    """How a convolution goes over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def can_pack(x: Tensor) -> bool:
    """Whether there are kernels that take packed weights for such an activation."""
    return x.is_cpu and _has_kernels(x.dtype) and torch._C._get_mkldnn_enabled()


@functools.cache
def _has_kernels(dtype: torch.dtype) -> bool:
    if _ONEDNN is None or dtype not in (torch.float32, torch.bfloat16):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def pays_for_products(dtype: torch.dtype) -> bool:
    """Whether linear layers are better off with oneDNN than with torch's own library, in float32 mostly MKL.

    MKL leaves the wide registers of some processors idle, those of AVX-512; without such there is little to
    gain and, with the transposed weight of a backward pass, something to lose.
    """
    return dtype != torch.float32 or torch.backends.cpu.get_cpu_capability() == "AVX512"


def pack(weight: Tensor, geometry: Geometry, shape: Sequence[int]) -> Tensor:
    """A convolution's weight, for inputs of this shape."""
    stride, padding, dilation, groups = geometry
    assert _ONEDNN is not None
    return _ONEDNN.pack(weight.to_mkldnn(), padding, stride, dilation, groups, shape)


def convolved(x: Tensor, packed: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """``torch.convolution``."""
    stride, padding, dilation, groups = geometry
    assert _ONEDNN is not None
    return _ONEDNN.convolution(x, packed, bias, padding, stride, dilation, groups, *_NOTHING_MORE)


def pack_transposed(weight: Tensor, geometry: Geometry, shape: Sequence[int], size: Sequence[int]) -> Tensor:
    """The same for the gradient of the input, which has this size, from gradients of this shape."""
    stride, padding, dilation, groups = geometry
    more = _left_over(geometry, weight.shape[2:], shape[2:], size)
    assert _ONEDNN is not None
    return _ONEDNN.pack_transposed(weight, padding, more, stride, dilation, groups, shape)


def transposed(
    gradient: Tensor, packed: Tensor, geometry: Geometry, kernel: Sequence[int], size: Sequence[int]
) -> Tensor:
    """The gradient of a convolution's input."""
    stride, padding, dilation, groups = geometry
    more = _left_over(geometry, kernel, gradient.shape[2:], size)
    assert _ONEDNN is not None
    return _ONEDNN.transposed_convolution(
        gradient, packed, None, padding, more, stride, dilation, groups, *_NOTHING_MORE
    )


def pack_linear(weight: Tensor) -> Tensor:
    """A linear layer's weight, for any number of rows."""
    assert _ONEDNN is not None
    return _ONEDNN.pack_linear(weight)


def multiplied(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``."""
    assert _ONEDNN is not None
    return _ONEDNN.linear(x, packed, bias, *_NOTHING_MORE)


def _left_over(
    geometry: Geometry, kernel: Sequence[int], made: Sequence[int], size: Sequence[int]
) -> Sequence[int]:
    """Pixels at the end that the last stride did not reach."""
    if max(geometry.stride) == 1:
        return [0] * len(size)
    sides = zip(geometry.stride, geometry.padding, geometry.dilation, kernel, made, size, strict=True)
    return [whole - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for s, p, d, k, n, whole in sides]
