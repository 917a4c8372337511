"""One bit per element: masks of the size of an activation, eight elements to the byte."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

__all__ = ["pack", "unpack"]

# Eight bytes that are 0 or 1, read as one number and multiplied by _GATHER, have their bits in the
# topmost byte; such a byte multiplied by _SPREAD and masked by _SELECT has one of its bits in each byte.
_GATHER: Final = 0x0102040810204080
_SPREAD: Final = 0x0101010101010101
_SELECT: Final = 0x8040201008040201 - (1 << 64)


def pack(mask: Tensor) -> Tensor:
    """A flat mask as bytes of eight bits each.

    >>> pack(torch.tensor([True, False, False, False, False, False, False, False, True])).tolist()
    [1, 1]
    """
    if mask.device.type == "cpu":
        return torch.from_numpy(np.packbits(mask.numpy(), bitorder="little"))
    return _pack(mask)


def unpack(bits: Tensor, length: int) -> Tensor:
    """The inverse, as bytes that are 0 or not."""
    if bits.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(bits.numpy(), count=length, bitorder="little"))
    return _unpack(bits, length)


def _pack(mask: Tensor) -> Tensor:
    """The same by torch, on any device."""
    padded = torch.nn.functional.pad(mask.view(torch.uint8), (0, -len(mask) % 8))
    return (padded.view(torch.int64) * _GATHER).bitwise_right_shift_(56).to(torch.uint8)


def _unpack(bits: Tensor, length: int) -> Tensor:
    spread = bits.to(torch.int64).mul_(_SPREAD).bitwise_and_(_SELECT)
    return spread.view(torch.uint8)[:length].ne(0).view(torch.uint8)
