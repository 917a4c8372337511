"""The kinds of arrays that corruptions work on."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["CUT", "Bytes", "Doubles", "Floats", "Ints", "luma", "whole"]

Floats: TypeAlias = NDArray[np.float32]  # planes (n, channels, height, width) in [0, 1]
Bytes: TypeAlias = NDArray[np.uint8]  # images (n, height, width, channels)
Doubles: TypeAlias = NDArray[np.float64]  # kernels and positions
Ints: TypeAlias = NDArray[Any]  # indices

# Published generators cut grey levels, they do not round. ImageMagick gives half of a level of its 16
# bits before; single precision needs less than that so as not to cut 6.9999995 to 6.
CUT = np.float32(1 / 514)


def luma(x: Floats) -> Floats:
    """Planes of one or three channels as one channel of grey.

    >>> luma(np.ones((1, 3, 1, 2), dtype=np.float32)).round(6).tolist()
    [[[[1.0, 1.0]]]]
    """
    if x.shape[1] == 1:
        return x
    red, green, blue = np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return red * x[:, 0:1] + green * x[:, 1:2] + blue * x[:, 2:3]


def whole(x: Floats) -> Floats:
    """Values in [0, 1] as whole grey levels of 255, cut.

    >>> whole(np.array([0.5, 7 / 255, 1], dtype=np.float32)).tolist()
    [127.0, 7.0, 255.0]
    """
    return np.floor(x * np.float32(255) + CUT)
