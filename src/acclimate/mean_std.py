"""What pixels are normalised with: mean and standard deviation of each channel, named or in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from acclimate.errors import OptionError, listed

__all__ = ["NORMALIZATIONS", "MeanStd", "fitted", "mean_and_std"]

MeanStd = tuple[Sequence[float], Sequence[float]]

NORMALIZATIONS: Final[dict[str, MeanStd]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
    "bytes": ((0.0,) * 3, (1 / 255,) * 3),
}
"""What networks are commonly fed: ImageNet's mean and std, [-1, 1], [0, 1], and 0 to 255."""


def mean_and_std(given: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std from ``(mean, std)``, a name of `NORMALIZATIONS`, or the text ``MEAN/STD``.

    >>> mean_and_std("0.5/0.25")
    ((0.5,), (0.25,))
    """
    text = isinstance(given, str)
    parts = NORMALIZATIONS.get(given) or [part.split(",") for part in given.split("/")] if text else given
    try:
        mean, std = (tuple(float(value) for value in part) for part in parts)
    except (TypeError, ValueError) as error:
        named = f"MEAN/STD, such as 0.5,0.5,0.5/0.2,0.2,0.2, or {listed(NORMALIZATIONS)}"
        expected = named if text else "(mean, std), two sequences of numbers"
        raise OptionError(f"normalize must be {expected}, got {given!r}") from error
    if len(mean) != len(std) or not mean or min(std) <= 0:
        raise OptionError(
            f"normalize must be (mean, std) with one entry per channel and std above 0, got {mean} and {std}"
        )
    return mean, std


def fitted(normalization: MeanStd | None, channels: int) -> MeanStd | None:
    """A normalisation for grey images, where it is given alike for three channels.

    >>> fitted(NORMALIZATIONS["half"], 1)
    ((0.5,), (0.5,))
    """
    if normalization is None or channels != 1 or any(len(set(part)) > 1 for part in normalization):
        return normalization
    mean, std = normalization
    return mean[:1], std[:1]
