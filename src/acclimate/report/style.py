"""How figures look: sizes of a two-column paper, 8 pt type, fonts that are embedded whole."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure

__all__ = ["COLUMN", "PAGE", "drawable", "legend_columns", "new_figure", "save_figure", "style"]

COLUMN: Final = 3.3
"""Width of a column in inches."""
PAGE: Final = 6.9
"""Width of the text in inches."""
_DPI: Final = 300
_ENTRIES: Final = 1.25  # of a legend, in an inch
_FONTS: Final = ["DejaVu Sans"]  # comes with matplotlib: the same drawing everywhere
_STYLE: Any = {
    "font.family": _FONTS,
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "mathtext.fontset": "dejavusans",
    "text.usetex": False,
    "text.parse_math": False,  # a name with dollars in it is a name
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "ps.fonttype": 42,
    "svg.hashsalt": "acclimate",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "errorbar.capsize": 1.5,
    "figure.constrained_layout.w_pad": 0.04,
    "figure.constrained_layout.h_pad": 0.03,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
}
_DATES: Final = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def style() -> AbstractContextManager[None]:
    """Within it, matplotlib draws as a paper wants it; outside nothing changes."""
    return matplotlib.rc_context(_STYLE)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches whose parts make room for each other; to be filled within `style`."""
    return Figure(figsize=(width, height), layout="constrained")


def legend_columns(entries: int, inches: float) -> int:
    """So many beside each other that the rows of a legend are full."""
    rows = math.ceil(entries / max(1, int(inches * _ENTRIES)))
    return math.ceil(entries / max(1, rows))


def save_figure(figure: Figure, path: Path) -> None:
    """In the format of the name; the same figure gives the same file."""
    with style(), _quiet_fonts():
        figure.savefig(path, dpi=_DPI, metadata=_DATES.get(path.suffix.lower()))


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Fonts that are cut to the letters used complain of their own dates, which are nobody's concern."""
    logger = logging.getLogger("fontTools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def drawable(text: str, limit: int = 200) -> str:
    """One line of text, cut where it is too long; what the font does not have is written by its number.

    >>> drawable("a\\n b" + 30 * "c", limit=8), drawable("水")
    ('a bcccc…', '[U+6C34]')
    """
    line = " ".join(text.split())
    cut = line if len(line) <= limit else line[: limit - 1] + "…"
    return "".join(c if ord(c) in _characters() else f"[U+{ord(c):04X}]" for c in cut)


@cache
def _characters() -> frozenset[int]:
    path = font_manager.findfont(font_manager.FontProperties(family=_FONTS))
    return frozenset(font_manager.get_font(path).get_charmap())
