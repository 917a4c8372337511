"""Methods and corruptions as the paper names them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from acclimate.report.reading import spoken

__all__ = ["corruption_name", "method_name"]

_METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {"source": "No Adaptation", "bn": "BN statistics", "oracle": "Groundtruth"}
)
_CORRUPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gaussian_noise": "Gauss",
        "shot_noise": "Shot",
        "impulse_noise": "Impulse",
        "defocus_blur": "Defocus",
        "glass_blur": "Glass",
        "motion_blur": "Motion",
        "zoom_blur": "Zoom",
        "brightness": "Bright",
        "elastic_transform": "Elastic",
        "pixelate": "Pixel",
        "jpeg_compression": "JPEG",
        "speckle_noise": "Speckle",
        "gaussian_blur": "Gauss blur",
    }
)


def method_name(method: str) -> str:
    """For people.

    >>> method_name("source"), method_name("tent+"), method_name("slr+it")
    ('No Adaptation', 'TENT+', 'SLR+IT')
    """
    return _METHODS.get(method, method.upper())


def corruption_name(corruption: str) -> str:
    """The paper's short name.

    >>> corruption_name("gaussian_noise"), corruption_name("fog")
    ('Gauss', 'Fog')
    """
    return _CORRUPTIONS.get(corruption, spoken(corruption).capitalize())
