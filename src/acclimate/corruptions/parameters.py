"""The published parameters of every corruption, and the rule for other sizes.

The five severities as published with ImageNet-C (224 pixels), Tiny-ImageNet-C (64) and CIFAR-10-C (32).

An image of another size takes the parameters of the nearest published size, by the ratio of its shorter
side. So that it then looks as the published one does when both are shown equally large, parameters that
are lengths are multiplied by that ratio, and what depends on a length otherwise by its power: noise that
is then smoothed over a length by the first, a displacement smoothed so by the second. Noise of single
pixels, zoom factors, colours and JPEG's quality stay as they are.
"""

from __future__ import annotations

__all__ = ["PARAMETERS", "SIZES", "parameters", "published_size"]

SIZES = (32, 64, 224)


def _steps(step: float, count: int) -> tuple[float, ...]:
    # As numpy's arange rounds: half a pixel depends on whether 1.25 is 1.25 or 1.2500000000000002.
    return tuple(1 + i * ((1 + step) - 1) for i in range(count))


PARAMETERS: dict[str, dict[int, tuple[tuple[float, ...], ...]]] = {
    "gaussian_noise": {
        224: ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
        64: ((0.04,), (0.08,), (0.12,), (0.15,), (0.18,)),
        32: ((0.04,), (0.06,), (0.08,), (0.09,), (0.1,)),
    },
    "shot_noise": {
        224: ((60,), (25,), (12,), (5,), (3,)),
        64: ((250,), (100,), (50,), (30,), (15,)),
        32: ((500,), (250,), (100,), (75,), (50,)),
    },
    "impulse_noise": {
        224: ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
        64: ((0.01,), (0.02,), (0.05,), (0.08,), (0.14,)),
        32: ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    },
    "defocus_blur": {
        224: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        64: ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    },
    "glass_blur": {
        224: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        64: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    },
    "motion_blur": {
        224: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        64: ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        32: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    },
    "zoom_blur": {
        224: (_steps(0.01, 12), _steps(0.01, 16), _steps(0.02, 11), _steps(0.02, 13), _steps(0.03, 11)),
        64: (_steps(0.01, 7), _steps(0.01, 12), _steps(0.01, 16), _steps(0.01, 21), _steps(0.01, 26)),
        32: (_steps(0.01, 7), _steps(0.01, 12), _steps(0.01, 16), _steps(0.01, 21), _steps(0.01, 26)),
    },
    "snow": {
        224: (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        64: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        32: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    },
    "frost": {
        224: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        64: ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    },
    "fog": {
        224: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        64: ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        32: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    },
    "brightness": {
        224: ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
        64: ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
        32: ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    },
    "contrast": {
        224: ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
        64: ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
        32: ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    },
    "elastic_transform": {
        224: (
            (488, 170.8, 24.4),
            (488, 19.52, 48.8),
            (12.2, 2.44, 4.88),
            (17.08, 2.44, 4.88),
            (29.28, 2.44, 4.88),
        ),
        64: ((0, 0, 5.12), (3.2, 19.2, 3.84), (6.4, 5.12, 3.84), (6.4, 1.92, 1.92), (10.24, 1.92, 1.28)),
        32: ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    },
    "pixelate": {
        224: ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
        64: ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
        32: ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    },
    "jpeg_compression": {
        224: ((25,), (18,), (15,), (10,), (7,)),
        64: ((65,), (58,), (50,), (40,), (25,)),
        32: ((80,), (65,), (58,), (50,), (40,)),
    },
    "speckle_noise": {
        224: ((0.15,), (0.2,), (0.35,), (0.45,), (0.6,)),
        64: ((0.15,), (0.2,), (0.25,), (0.3,), (0.35,)),
        32: ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    },
    "gaussian_blur": {
        224: ((1,), (2,), (3,), (4,), (6,)),
        64: ((0.5,), (0.75,), (1,), (1.25,), (1.5,)),
        32: ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    },
    "spatter": {
        224: (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
        64: (
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
        32: (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    },
    "saturate": {
        224: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        64: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        32: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    },
}

# The power of (side / published side) by which each parameter grows; those not named do not.
_POWERS: dict[str, tuple[int, ...]] = {
    "defocus_blur": (1, 0),
    "glass_blur": (1, 1, 0),
    "motion_blur": (1, 1),
    "gaussian_blur": (1,),
    "snow": (0, 0, 1, 0, 1, 1, 0),
    "elastic_transform": (2, 1, 1),
    "pixelate": (-1,),
    "spatter": (0, 1, 1, 0, 0, 0),
}
_POWERS_OF_MUD = (0, 1, 1, 0, 1, 0)  # there the fifth is a blur, for water it is a strength


def published_size(height: int, width: int) -> int:
    """The published size nearest to the shorter side, by their ratio.

    >>> [published_size(side, side) for side in (28, 45, 46, 119, 120, 512)]
    [32, 32, 64, 64, 224, 224]
    """
    side = min(height, width)
    return min(SIZES, key=lambda size: max(side / size, size / side))


def parameters(name: str, severity: int, height: int, width: int) -> tuple[float, ...]:
    """The parameters of a corruption for images of a size.

    >>> parameters("defocus_blur", 5, 224, 224), parameters("defocus_blur", 5, 600, 448)
    ((10, 0.5), (20.0, 0.5))
    """
    size = published_size(height, width)
    published = PARAMETERS[name][size][severity - 1]
    ratio = min(height, width) / size
    powers = _POWERS_OF_MUD if name == "spatter" and published[-1] else _POWERS.get(name, ())
    if ratio == 1 or not powers:
        return published
    return tuple(value * ratio**power for value, power in zip(published, powers, strict=True))
