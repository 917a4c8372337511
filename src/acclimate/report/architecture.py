"""The paper's Figure A1: the adaptable model g = f ∘ d, and what of it adapts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from acclimate.methods import METHODS
from acclimate.report.style import PAGE, style

__all__ = ["architecture_figure"]

_HEIGHT: Final = 3.05  # inches, as all that follows
_ADAPTS, _FROZEN, _FIXED = "#fbe3cf", "#e6e6e6", "#ffffff"
_EDGE: Final = "#333333"
_ACCENT: Final = "#d55e00"
_TOP: Final = 2.28  # middle of the upper row
_LOW: Final = 0.72  # middle of the lower row
_Point = tuple[float, float]


@dataclass(frozen=True)
class _Box:
    """By its middle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> _Point:
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> _Point:
        return self.x + self.width / 2, self.y


def architecture_figure() -> Figure:
    """Above the whole from image to loss, below what the input transformation consists of."""
    with style():
        figure = Figure(figsize=(PAGE, _HEIGHT))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, PAGE), ylim=(0, _HEIGHT))
        axes.set_axis_off()
        transformation = _whole(axes)
        _inside(axes, transformation)
        _key(axes)
    return figure


def _whole(axes: Axes) -> _Box:
    _text(axes, 0.2, _TOP, "$x$", size=10)
    first = _box(axes, 0.98, _TOP, 0.86, 0.62, "input trans-\nformation\n$d(x)$", _ADAPTS)
    second = _box(axes, 1.98, _TOP, 0.72, 0.62, "normalise\n$(\\cdot-\\mu)/\\sigma$", _FIXED)
    below = _network(axes)
    logits = _box(axes, 5.36, _TOP, 0.5, 0.62, "logits\n$o$", _FIXED)
    loss = _box(axes, 6.31, _TOP, 0.98, 0.62, "$L=L_\\mathrm{div}$\n$+\\ \\delta\\,L_\\mathrm{conf}$", _FIXED)
    _arrow(axes, (0.28, _TOP), first.left)
    _arrow(axes, first.right, second.left)
    _arrow(axes, second.right, below.left)
    _arrow(axes, below.right, logits.left)
    _arrow(axes, logits.right, loss.left)
    _gradient(axes, loss, {first.x: _TOP + 0.31, 3.17: _TOP + 0.49})
    return first


def _network(axes: Axes) -> _Box:
    """f: normalisation layers adapt below, the top is frozen but for their statistics."""
    whole = _box(axes, 3.72, _TOP, 2.36, 0.98, "", _FIXED, dashed=True)
    _text(axes, whole.x, _TOP - 0.39, "pretrained network $f$")
    below, top = ("conv", "norm", "conv", "norm"), ("conv", "norm", "linear")
    for place, kind in enumerate(below):
        face = _ADAPTS if kind == "norm" else _FROZEN
        _box(axes, 2.74 + 0.29 * place, _TOP + 0.02, 0.22, 0.56, kind, face, turned=True)
    _text(axes, 3.83, _TOP + 0.02, "…", size=8)
    for place, kind in enumerate(top):
        x, edge = 4.07 + 0.29 * place, _ACCENT if kind == "norm" else _EDGE
        _box(axes, x, _TOP + 0.02, 0.22, 0.56, kind, _FROZEN, turned=True, edge=edge)
    _text(axes, 3.17, _TOP + 0.4, "adapting layers", size=6.5)
    _text(axes, 4.36, _TOP + 0.4, "frozen top", size=6.5)
    return whole


def _inside(axes: Axes, whole: _Box) -> None:
    """d: the image and r of it, mixed by tau, then scaled and shifted in each channel."""
    frame = _box(axes, 2.98, _LOW, 5.1, 1.2, "", _FIXED, dashed=True)
    for x, end in ((whole.left[0], frame.left[0]), (whole.right[0], frame.right[0])):
        _line(axes, (x, end), (_TOP - 0.31, _LOW + 0.6), color="#999999", linestyle=":", zorder=0)
    high, low, middle = _LOW + 0.38, _LOW - 0.16, _LOW + 0.11
    fork, mixed = 0.6, 4.32
    _text(axes, 0.2, middle, "$x$", size=10)
    _line(axes, (0.28, fork), (middle, middle))
    _line(axes, (fork, fork), (low, high))
    last = _layers(axes, fork, low)
    mix = _circle(axes, mixed, middle, "+")
    _line(axes, (fork, mixed), (high, high))
    _line(axes, (last, mixed), (low, low))
    _arrow(axes, (mixed, high), (mixed, middle + 0.1))
    _arrow(axes, (mixed, low), (mixed, middle - 0.1))
    _text(axes, mixed + 0.1, (high + middle) / 2 + 0.06, "$\\tau$", color=_ACCENT)
    _text(axes, mixed + 0.2, (low + middle) / 2 - 0.06, "$1-\\tau$", color=_ACCENT)
    affine = _box(axes, 5.02, middle, 0.7, 0.32, "$\\gamma\\cdot[\\ ]+\\beta$", _ADAPTS)
    _arrow(axes, mix.right, affine.left)
    _arrow(axes, affine.right, (5.76, middle))
    _text(axes, 5.94, middle, "$d(x)$", size=9)
    _text(axes, 4.4, _LOW - 0.46, "$d(x)=\\gamma\\cdot[\\tau x+(1-\\tau)\\,r_\\psi(x)]+\\beta$")


def _layers(axes: Axes, start: float, y: float) -> float:
    """r of the image, from left to right; returns where it ends."""
    end = (start, y)
    for name, x in (("conv 3×3", 1.16), ("group norm", 1.88), ("ReLU", 2.6), ("conv 3×3", 3.44)):
        face = _FIXED if name == "ReLU" else _ADAPTS
        layer = _box(axes, x, y, 0.6, 0.3, name, face, size=6.5)
        _arrow(axes, end, layer.left)
        end = layer.right
    _bracket(axes, 0.82, 2.94, y - 0.25, f"× {METHODS['slr'].depth}")
    _text(axes, 3.99, y + 0.1, "$r_\\psi(x)$")
    return end[0]


def _gradient(axes: Axes, loss: _Box, targets: Mapping[float, float]) -> None:
    """From the loss back to all that adapts."""
    high = _TOP + 0.66
    _line(axes, (loss.x, loss.x), (_TOP + 0.31, high), color=_ACCENT, linestyle="--")
    _line(axes, (min(targets), loss.x), (high, high), color=_ACCENT, linestyle="--")
    for x, end in targets.items():
        _arrow(axes, (x, high), (x, end), color=_ACCENT)
    _text(
        axes,
        4.75,
        high,
        "updates of $\\phi=(\\beta,\\gamma,\\tau,\\psi,\\theta')$",
        color=_ACCENT,
        paper=True,
    )


def _key(axes: Axes) -> None:
    rows = (
        (_ADAPTS, _EDGE, "adapts"),
        (_FROZEN, _EDGE, "frozen"),
        (_FROZEN, _ACCENT, "its statistics adapt"),
    )
    for row, (face, edge, words) in enumerate(rows):
        y = 0.46 - 0.16 * row
        axes.add_patch(Rectangle((5.68, y - 0.05), 0.16, 0.1, facecolor=face, edgecolor=edge, linewidth=0.7))
        axes.text(5.9, y, words, fontsize=6.5, va="center")


def _box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    words: str,
    face: str,
    *,
    dashed: bool = False,
    turned: bool = False,
    size: float = 7,
    edge: str = _EDGE,
) -> _Box:
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.04",
        facecolor=face,
        edgecolor="#888888" if dashed else edge,
        linewidth=0.7,
        linestyle="--" if dashed else "-",
        zorder=1 if dashed else 2,
    )
    axes.add_patch(shape)
    _text(axes, x, y, words, size=size, rotation=90 if turned else 0)
    return _Box(x, y, width, height)


def _circle(axes: Axes, x: float, y: float, word: str) -> _Box:
    axes.add_patch(Circle((x, y), 0.1, facecolor="white", edgecolor=_EDGE, linewidth=0.7, zorder=2))
    _text(axes, x, y, word, size=8)
    return _Box(x, y, 0.2, 0.2)


def _bracket(axes: Axes, left: float, right: float, y: float, words: str) -> None:
    _line(axes, (left, left, right, right), (y + 0.05, y, y, y + 0.05))
    _text(axes, (left + right) / 2, y, words, size=6.5, paper=True)


def _line(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    *,
    color: str = _EDGE,
    linestyle: str = "-",
    zorder: float = 2,
) -> None:
    axes.plot(x, y, color=color, linewidth=0.8, linestyle=linestyle, zorder=zorder)


def _arrow(axes: Axes, start: _Point, end: _Point, color: str = _EDGE) -> None:
    shape = FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=6, shrinkA=0, shrinkB=0, color=color, linewidth=0.8
    )
    axes.add_patch(shape)


def _text(
    axes: Axes,
    x: float,
    y: float,
    words: str,
    *,
    size: float = 7,
    color: str = "black",
    rotation: float = 0,
    paper: bool = False,
) -> None:
    """In the middle of a place; on a piece of paper where a line runs below it."""
    text = axes.text(
        x, y, words, fontsize=size, color=color, rotation=rotation, ha="center", va="center", zorder=3
    )
    text.set_parse_math(True)
    if paper:
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.5})
