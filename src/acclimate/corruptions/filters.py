"""Filters that several corruptions share, on planes (n, channels, height, width).

A result does not depend on the batch that an image comes in: sums of shifted planes are added in one fixed
order, and matrix products and Fourier transforms are made for each image by itself. Those are computed in
double precision and rounded to single, so that another number of threads, which may add in another order,
does not show in 8-bit images and could at most change the last bit of a float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from acclimate.corruptions.arrays import Doubles, Floats, Ints

__all__ = ["box_sum", "correlate", "gaussian", "gaussian_weights", "motion", "motion_taps", "smooth", "zoom"]

_FEW_TAPS = 24  # up to here shifted sums are faster than a Fourier transform
_LARGEST_MATRIX = 512  # pixels: larger ones cost more than they save
_SHORT = 4  # radius up to which shifted sums are faster than a matrix product


def gaussian(x: Floats, sigma: float) -> Floats:
    """Gaussian blur with repeated edges, cut at four sigma, as scikit-image's."""
    radius = int(4 * sigma + 0.5)
    if radius == 0:
        return x
    if radius > _SHORT and max(x.shape[-2:]) <= _LARGEST_MATRIX:
        return _products(x, sigma, radius)
    half = gaussian_weights(sigma, radius)[radius:]
    return _symmetric(_symmetric(x, half, -2), half, -1)


def smooth(x: Floats, sigma: float) -> Floats:
    """Gaussian blur with mirrored edges, cut at three sigma; sigma may be larger than the image.

    Mirrored again and again, an image of n pixels repeats after 2n: what its Fourier transform assumes.
    """
    radius = int(3 * sigma + 0.5)
    out = np.empty_like(x)
    for i, image in enumerate(x):
        planes = torch.from_numpy(image).double()
        for axis in (-1, -2):
            size = planes.shape[axis]
            spectrum = _mirrored_spectrum(size, sigma, radius).reshape((-1, 1) if axis == -2 else (-1,))
            periodic = torch.cat((planes, planes.flip(axis)), axis)
            planes = torch.fft.irfft(torch.fft.rfft(periodic, dim=axis) * spectrum, 2 * size, dim=axis)
            planes = planes.narrow(axis, 0, size)
        out[i] = planes.numpy()
    return out


@lru_cache(maxsize=16)
def _mirrored_spectrum(size: int, sigma: float, radius: int) -> torch.Tensor:
    kernel = np.zeros(2 * size)
    np.add.at(kernel, np.arange(-radius, radius + 1) % (2 * size), gaussian_weights(sigma, radius))
    return torch.fft.rfft(torch.from_numpy(kernel)).real


def correlate(x: Floats, kernel: Doubles) -> Floats:
    """Correlation with an odd square kernel, edges mirrored without repeating the edge."""
    radius = len(kernel) // 2
    taps = np.argwhere(kernel) - radius
    reach = int(np.abs(taps).max())
    padded = _padded(x, reach, "reflect")
    if len(taps) <= _FEW_TAPS:
        offsets = [(int(row), int(column)) for row, column in taps]
        return _shifted_sum(padded, reach, offsets, kernel[kernel != 0], x.shape[-2:])
    inner = slice(radius - reach, radius + reach + 1)
    return _fourier(padded, kernel[inner, inner], x.shape[-2:])


def motion(x: Floats, radius: float, sigma: float, angles: Sequence[float]) -> Floats:
    """ImageMagick's motion blur, an angle (degrees) for each image."""
    out = np.empty_like(x)
    for i, angle in enumerate(angles):
        offsets, weights = motion_taps(radius, sigma, angle)
        reach = max(max(abs(row), abs(column)) for row, column in offsets)
        padded = _padded(x[i : i + 1], reach, "edge")
        out[i : i + 1] = _shifted_sum(padded, reach, offsets, weights, x.shape[-2:])
    return out


def motion_taps(radius: float, sigma: float, angle: float) -> tuple[list[tuple[int, int]], Doubles]:
    """Where ImageMagick's motion blur looks (row, column), and the weight of what it finds there.

    One half of a Gaussian along the direction of the motion, rounded to whole pixels.

    >>> offsets, weights = motion_taps(2, 1.0, angle=90)
    >>> offsets
    [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    >>> weights.round(2).tolist()
    [0.57, 0.35, 0.08, 0.01, 0.0]
    """
    width = 2 * math.ceil(radius) + 1
    weights = np.exp(-(np.arange(width) ** 2) / (2 * sigma**2))
    down, right = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    offsets = [(math.ceil(i * down - 0.5), math.ceil(i * right - 0.5)) for i in range(width)]
    return offsets, weights / weights.sum()


def zoom(x: Floats, factor: float) -> Floats:
    """The middle of the image enlarged to the whole, linearly, as scipy's zoom of a centre crop."""
    for axis in (-2, -1):
        low, high, low_weight, high_weight = _zoom_taps(x.shape[axis], factor)
        across = (-1, 1) if axis == -2 else (-1,)
        near, far = x.take(low, axis), x.take(high, axis)
        near *= low_weight.reshape(across)
        far *= high_weight.reshape(across)
        near += far
        x = near
    return x


def box_sum(x: Floats) -> Floats:
    """Sum over the 3 by 3 neighbours, edges mirrored without repeating the edge."""
    padded = _padded(x, 1, "reflect")
    rows = padded[..., :-2, :] + padded[..., 1:-1, :] + padded[..., 2:, :]
    return rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]


def _padded(x: Floats, reach: int, mode: str) -> Floats:
    widths = [(0, 0)] * (x.ndim - 2) + [(reach, reach)] * 2
    return np.pad(x, widths, mode=mode) if reach else x  # type: ignore[call-overload]


def _shifted_sum(
    padded: Floats, reach: int, offsets: list[tuple[int, int]], weights: Doubles, size: tuple[int, ...]
) -> Floats:
    height, width = size
    total = np.zeros((*padded.shape[:-2], height, width), dtype=np.float32)
    part = np.empty_like(total)
    for (row, column), weight in zip(offsets, weights.astype(np.float32), strict=True):
        top, left = reach + row, reach + column
        np.multiply(padded[..., top : top + height, left : left + width], weight, out=part)
        total += part
    return total


def _symmetric(x: Floats, half: Doubles, axis: int) -> Floats:
    """Correlation along one axis with weights that are the same to both sides, edges repeated."""
    radius, size = len(half) - 1, x.shape[axis]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (radius, radius)
    padded = np.moveaxis(np.pad(x, widths, mode="edge"), axis, -2)
    centre, *outer = half.astype(np.float32)
    total = padded[..., radius : radius + size, :] * centre
    pair = np.empty_like(total)
    for i, weight in enumerate(outer, start=1):
        before, after = radius - i, radius + i
        np.add(padded[..., before : before + size, :], padded[..., after : after + size, :], out=pair)
        pair *= weight
        total += pair
    return np.moveaxis(total, -2, axis)


def _products(x: Floats, sigma: float, radius: int) -> Floats:
    rows, columns = (_gaussian_matrix(size, sigma, radius) for size in x.shape[-2:])
    out = np.empty_like(x)
    for i, image in enumerate(x):
        out[i] = (rows @ torch.from_numpy(image).double() @ columns.T).numpy()
    return out


def gaussian_weights(sigma: float, radius: int) -> Doubles:
    """Weights at whole distances from -radius to radius, their sum one."""
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / weights.sum()


@lru_cache(maxsize=16)
def _gaussian_matrix(size: int, sigma: float, radius: int) -> torch.Tensor:
    """The blur along one axis as a matrix, the repeated edges folded in."""
    matrix = np.zeros((size, size))
    rows = np.arange(size)
    for offset, weight in enumerate(gaussian_weights(sigma, radius), start=-radius):
        matrix[rows, np.clip(rows + offset, 0, size - 1)] += weight
    return torch.from_numpy(matrix)


@lru_cache(maxsize=256)
def _zoom_taps(size: int, factor: float) -> tuple[Ints, Ints, Floats, Floats]:
    crop = math.ceil(size / factor)
    enlarged = max(2, round(crop * factor))
    position = (np.arange(size) + (enlarged - size) // 2) * ((crop - 1) / (enlarged - 1))
    # scipy takes a position that rounding puts beyond the last pixel to be outside, which is black
    inside = position <= crop - 1
    low = np.minimum(position.astype(np.int64), crop - 1)
    weight = position - low
    start = (size - crop) // 2
    high = np.minimum(low + 1, crop - 1)
    return (
        start + low,
        start + high,
        ((1 - weight) * inside).astype(np.float32),
        (weight * inside).astype(np.float32),
    )


def _fourier(padded: Floats, kernel: Doubles, size: tuple[int, ...]) -> Floats:
    """Correlation as a product of spectra; one image at a time, so that a batch changes nothing."""
    height, width = size
    shape = (_fast_length(padded.shape[-2]), _fast_length(padded.shape[-1]))
    spectrum = _spectrum(kernel.tobytes(), len(kernel), *shape)
    out = np.empty((*padded.shape[:-2], height, width), dtype=np.float32)
    for i, image in enumerate(padded):
        planes = torch.fft.rfft2(torch.from_numpy(image).double(), s=shape)
        planes *= spectrum
        out[i] = torch.fft.irfft2(planes, s=shape)[..., :height, :width].numpy()
    return out


@lru_cache(maxsize=16)
def _spectrum(kernel: bytes, side: int, height: int, width: int) -> torch.Tensor:
    values = torch.from_numpy(np.frombuffer(kernel).reshape(side, side).copy())
    return torch.fft.rfft2(values, s=(height, width)).conj().resolve_conj()


@lru_cache(maxsize=64)
def _fast_length(length: int) -> int:
    """The next multiple of 16 without prime factors above 5: Fourier transforms of it are fast.

    >>> [_fast_length(length) for length in (32, 240, 244)]
    [32, 240, 256]
    """
    length = 16 * math.ceil(length / 16)
    while 30**20 % length:
        length += 16
    return length
