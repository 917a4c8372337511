"""Images out of what loaders give, and the checks that every batch passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from acclimate.errors import InputError

__all__ = ["checked_images", "images_of"]

_HINTS: Final = {
    "ndarray": ": torch.from_numpy makes a tensor of it",
    "list": ": give the images alone, the first entry of what a loader gives",
    "tuple": ": give the images alone, the first entry of what a loader gives",
}

IMAGE_KEYS: Final = ("images", "image", "pixel_values", "img", "inputs", "input", "x")


def images_of(part: Any) -> Tensor:
    """The images in what a loader gives: a tensor, the first of a tuple, or a dict's image entry."""
    if isinstance(part, Mapping):
        key = next((key for key in IMAGE_KEYS if key in part), None)
        if key is None:
            raise InputError(f"a batch that is a dict needs one of the keys {IMAGE_KEYS}, got {list(part)}")
        part = part[key]
    elif isinstance(part, (tuple, list)) and part:
        part = part[0]
    if isinstance(part, Tensor) and part.ndim >= 2:
        return part
    if isinstance(part, Tensor):
        shape = tuple(part.shape)
        got = f"the shape {shape}: labels, if these are, go with their images in a TensorDataset"
    else:
        got = f"{type(part).__name__}{_HINTS.get(type(part).__name__, '')}"
    raise InputError(f"a batch must be a tensor of images, a tuple that begins with one or a dict, got {got}")


def checked_images(
    images: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    *,
    single: Callable[[], str | None] | None = None,
    index: Tensor | None = None,
) -> Tensor:
    """Images on a device that can take part in a backward pass, or a clear error; not in inference mode.

    ``single`` is asked why the network cannot take a batch of one image, if it cannot; ``index`` says where
    the images stand in the data, if that is known.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = str(images.dtype) if isinstance(images, Tensor) else type(images).__name__
        hint = ": bytes become pixels in [0, 1] by images.float() / 255" if isinstance(images, Tensor) else ""
        raise InputError(
            f"images must be a tensor of floating-point numbers, got {got}{hint or _HINTS.get(got, '')}"
        )
    shape = tuple(images.shape)
    if len(shape) < 2 or shape[0] == 0:
        raise InputError(f"images must be a batch (N, C, H, W) of at least one, got the shape {shape}")
    if shape[0] == 1 and single is not None and (why := single()) is not None:
        raise InputError(f"a batch of one image has no batch statistics: {why}")
    images = images.clone() if images.is_inference() else images.detach()
    if images.device != device or images.dtype != dtype:
        images = images.to(device, dtype)
    # a sum is not finite if one pixel is not, and takes no memory
    total = images.sum(dtype=torch.float32) if dtype.itemsize < 4 else images.sum()
    if not math.isfinite(total.item()):
        bad = (~torch.isfinite(images.flatten(1)).all(1)).nonzero().flatten().tolist()
        if bad:
            where = f"{bad} of the batch" if index is None else f"{index[bad].tolist()} of the data"
            raise InputError(f"the images at positions {where} hold NaN or infinite pixels: leave them out")
    return images
