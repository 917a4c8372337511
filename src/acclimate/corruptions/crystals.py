"""Frosted panes drawn from crystals, for where there are no photographs.

Ferns of ice, each a stem with branches on both sides, grow over the pane in all directions; the glass
behind them is unevenly fogged. Tone and contrast of the five panes are those of the published look.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from acclimate.corruptions.arrays import Floats
from acclimate.corruptions.filters import gaussian
from acclimate.corruptions.plasma import plasma

__all__ = ["drawn_panes"]

_HEIGHT, _WIDTH = 480, 640
_BRANCH = math.radians(55)  # between a stem and its branches

# Mean colour, contrast (both in grey levels), number of ferns, their length in pixels.
_PANES = (
    ((78, 149, 166), 18, 500, 40),
    ((201, 206, 215), 22, 420, 90),
    ((198, 204, 215), 22, 700, 60),
    ((138, 153, 165), 29, 900, 35),
    ((112, 123, 135), 43, 600, 70),
)


@lru_cache(maxsize=1)
def drawn_panes() -> tuple[Floats, ...]:
    """Five panes (3, rows, columns) in [0, 1], always the same."""
    return tuple(_pane(number, *row) for number, row in enumerate(_PANES))


def _pane(number: int, colour: tuple[int, int, int], contrast: float, ferns: int, length: float) -> Floats:
    rng = np.random.Generator(np.random.SFC64(number))
    ice = _standard(gaussian(_ferns(rng, ferns, length)[np.newaxis, np.newaxis], 0.5)[0, 0])
    size = 1024
    fog = _standard(plasma(rng.random((1, size * size), dtype=np.float32), size, 1.8)[0, :_HEIGHT, :_WIDTH])
    relief = _standard(ice + 0.5 * fog)
    tone = np.array(colour, dtype=np.float32).reshape(3, 1, 1)
    return np.clip((tone + np.float32(contrast) * relief) / np.float32(255), 0, 1)


def _ferns(rng: np.random.Generator, count: int, length: float) -> Floats:
    canvas = Image.new("L", (_WIDTH, _HEIGHT), 90)
    pen = ImageDraw.Draw(canvas)
    for _ in range(count):
        x, y = rng.uniform(0, _WIDTH), rng.uniform(0, _HEIGHT)
        _fern(pen, rng, x, y, rng.uniform(0, 2 * math.pi), length * rng.uniform(0.4, 1.4))
    return np.asarray(canvas, dtype=np.float32)


def _fern(
    pen: ImageDraw.ImageDraw, rng: np.random.Generator, x: float, y: float, angle: float, length: float
) -> None:
    """A stem, and branches that grow shorter towards its tip."""
    bright = rng.uniform(120, 255)
    _line(pen, x, y, angle, length, bright)
    for at in np.arange(0, length, 3):
        for side in (-_BRANCH, _BRANCH):
            reach = 0.4 * (length - at) * rng.uniform(0.6, 1)
            shade = bright * rng.uniform(0.4, 1)
            _line(pen, x + at * math.cos(angle), y + at * math.sin(angle), angle + side, reach, shade)


def _line(
    pen: ImageDraw.ImageDraw, x: float, y: float, angle: float, length: float, brightness: float
) -> None:
    end = (x + length * math.cos(angle), y + length * math.sin(angle))
    pen.line(((x, y), end), fill=int(brightness))


def _standard(field: Floats) -> Floats:
    return (field - field.mean()) / field.std()
