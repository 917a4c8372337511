"""Images in any container a user has, seen as planes or as 8-bit images, and given back in kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from acclimate.corruptions.arrays import CUT, Bytes, Floats
from acclimate.errors import InputError

__all__ = ["Images", "Pixels", "opened"]

Images = TypeVar("Images", Image.Image, "np.ndarray[Any, Any]", torch.Tensor)

_SMALLEST = 8  # pixels: on less, most corruptions mean nothing
_FLOATS = (np.float16, np.float32, np.float64)


class Pixels:
    """A batch of images as uint8 or float32, and room for as many corrupted ones.

    Args:
        values: (n, channels, height, width) if ``planar``, otherwise (n, height, width, channels).
        returned: makes the user's kind of images from values of the same shape.
    """

    def __init__(self, values: np.ndarray[Any, Any], planar: bool, returned: Callable[..., Any]) -> None:
        self._given, self._planar, self._returned = values, planar, returned
        self._made = np.empty(values.shape, dtype=values.dtype)
        self._whole = values.dtype == np.uint8
        axes = (1, 2, 3) if planar else (3, 1, 2)
        self.channels, self.height, self.width = (values.shape[axis] for axis in axes)

    def __len__(self) -> int:
        return len(self._given)

    def planes(self, part: slice) -> Floats:
        """Planes (n, channels, height, width) in [0, 1], the caller's own."""
        given = self._given[part]
        planes = np.array(given if self._planar else given.transpose(0, 3, 1, 2), np.float32, order="C")
        if self._whole:
            planes /= np.float32(255)
        return planes

    def put_planes(self, part: slice, planes: Floats) -> None:
        """Keep corrupted planes, clipped to [0, 1]; where 8 bits are wanted, fractions are cut off."""
        np.clip(planes, 0, 1, out=planes)
        if self._whole:
            planes *= np.float32(255)
            planes += CUT
        channels_first = self._made[part] if self._planar else self._made[part].transpose(0, 3, 1, 2)
        for channel in range(self.channels):  # three times faster than all at once
            channels_first[:, channel] = planes[:, channel]

    def bytes(self, part: slice) -> Bytes:
        """8-bit images (n, height, width, channels); floats are rounded."""
        given = self._given[part] if self._whole else np.rint(self._given[part] * 255).astype(np.uint8)
        return np.ascontiguousarray(given.transpose(0, 2, 3, 1) if self._planar else given)

    def put_bytes(self, part: slice, images: Iterable[Bytes]) -> None:
        """Keep corrupted 8-bit images, one after the other."""
        for made, image in zip(self._made[part], images, strict=True):
            layout = image.reshape(self.height, self.width, self.channels)
            made[...] = layout.transpose(2, 0, 1) if self._planar else layout
            if not self._whole:
                made /= np.float32(255)

    def result(self) -> Any:
        return self._returned(self._made)


def opened(images: Any) -> Pixels:
    """Check what the user gave and see it as a batch."""
    if isinstance(images, Image.Image):
        if images.mode not in ("L", "RGB"):
            raise InputError(
                f"expected a PIL image of mode L or RGB, got {images.mode}: {_advice(images.mode)}"
            )
        return _batch(np.asarray(images), False, Image.fromarray)
    if isinstance(images, torch.Tensor):
        values = images.detach().cpu()
        if values.dtype == torch.bfloat16:
            values = values.float()
        return _batch(
            values.numpy(), True, lambda made: torch.from_numpy(made).to(images.device, images.dtype)
        )
    if isinstance(images, np.ndarray):
        return _batch(images, False, lambda made: made.astype(images.dtype, copy=False))
    raise InputError(f"expected a PIL image, an array or a tensor, got {type(images).__name__}")


def _advice(mode: str) -> str:
    if mode.startswith("I"):
        return "for 16 bits, give numpy.asarray(image) / 65535 as an array instead"
    if mode == "F":
        return "give numpy.asarray(image), brought to [0, 1], as an array instead"
    return 'convert it first, image.convert("RGB")'


def _batch(values: np.ndarray[Any, Any], planar: bool, returned: Callable[..., Any]) -> Pixels:
    shape = values.shape
    _check_shape(shape, planar)
    if values.dtype != np.uint8:
        values = _checked_floats(values)
    if len(shape) == 2:
        values = values[np.newaxis] if planar else values[..., np.newaxis]
    if len(shape) < 4:
        values = values[np.newaxis]
    return Pixels(values, planar, lambda made: returned(made.reshape(shape)))


def _check_shape(shape: tuple[int, ...], planar: bool) -> None:
    layouts = ("(H, W), (C, H, W) or (N, C, H, W)", "(H, W), (H, W, C) or (N, H, W, C)")[not planar]
    if len(shape) not in (2, 3, 4):
        raise InputError(f"expected images of shape {layouts}, got {shape}")
    if len(shape) > 2:
        channels = shape[-3] if planar else shape[-1]
        if channels not in (1, 3):
            raise InputError(
                f"expected 1 or 3 channels in images of shape {layouts}, got {channels} in {shape}: "
                f"{_channel_advice(shape, planar, channels)}"
            )
    sides = shape[-2:] if planar or len(shape) == 2 else shape[-3:-1]
    if min(sides) < _SMALLEST:
        raise InputError(f"expected images of at least {_SMALLEST} by {_SMALLEST} pixels, got {shape}")


def _channel_advice(shape: tuple[int, ...], planar: bool, channels: int) -> str:
    if not planar and shape[-3] in (1, 3):
        return "in arrays channels come last, so transpose it"
    if planar and shape[-1] in (1, 3):
        return "in tensors channels come first, so permute it"
    if channels in (2, 4):
        return "drop the alpha channel"
    return "a batch of grey images needs a channel axis of 1"


def _checked_floats(values: np.ndarray[Any, Any]) -> Floats:
    if values.dtype not in _FLOATS:
        wide = "divide 16 bits by 65535" if values.dtype == np.uint16 else "convert 0 to 255 to uint8"
        raise InputError(f"expected uint8, or floats in [0, 1], got {values.dtype}: {wide}")
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # also for NaN
        if not np.isfinite(values).all():
            raise InputError("expected floats in [0, 1], got NaN or infinity")
        raise InputError(
            f"expected floats in [0, 1], got values from {float(values.min())} to {float(values.max())}: "
            "divide 0 to 255 by 255, clip what rounding has put outside, and corrupt before normalising"
        )
    return values.astype(np.float32, copy=False)
