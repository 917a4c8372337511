"""imagecorruptions as it is, put right only where it no longer runs on current releases."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import numpy as np
import scipy.ndimage
import skimage.filters

_gaussian = skimage.filters.gaussian


def _gaussian_of_old(image: Any, sigma: Any = 1, *, multichannel: bool = False, **options: Any) -> Any:
    """`multichannel` has become `channel_axis`."""
    return _gaussian(image, sigma=sigma, channel_axis=-1 if multichannel else None, **options)


# numpy.float_ and scipy.ndimage.interpolation are gone
np.float_ = np.float64  # type: ignore[attr-defined]
_interpolation: Any = types.ModuleType("scipy.ndimage.interpolation")
_interpolation.map_coordinates = scipy.ndimage.map_coordinates
sys.modules["scipy.ndimage.interpolation"] = _interpolation
skimage.filters.gaussian = _gaussian_of_old

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pkg_resources is deprecated
    import imagecorruptions


def peer_corrupt(image: np.ndarray, name: str, severity: int) -> np.ndarray:
    made: np.ndarray = imagecorruptions.corrupt(image, severity=severity, corruption_name=name)
    return made
