"""A table as a drawing: rules as booktabs has them, as wide as the text at most."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextToPath

from acclimate.report.style import PAGE, drawable, style
from acclimate.report.tables import Cell, Entry, Row, Table

__all__ = ["draw_table"]

_SIZE: Final = 8.0  # points, before the table is made to fit
_LINE: Final = 1.45  # height of a line in sizes of its type
_GAP: Final = 1.1  # between columns, in sizes
_MARGIN: Final = 0.04  # inches
_NARROWEST: Final = 2.4  # inches: titles need some room
_INK, _DIM, _NOTE = "#000000", "#888888", "#444444"
_MOST: Final = 600  # characters of a title or note
_LONGEST: Final = 32  # characters of a label or head
_HEAVY, _LIGHT = 0.9, 0.5  # points


def draw_table(table: Table) -> Figure:
    """With its title above and its note below."""
    with style():
        widths = _widths(table)
        inches = sum(widths) / 72 + 2 * _MARGIN
        scale = min(1.0, PAGE / inches)
        across = max(inches * scale, _NARROWEST)
        figure = Figure(figsize=(across, 1))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        pen = _Pen(axes, [width * scale for width in widths], _SIZE * scale)
        pen.paragraph(_wrapped(table.title, across), _INK)
        _draw(pen, table)
        pen.down += 0.1 * _SIZE
        pen.paragraph(_wrapped(table.note, across), _NOTE)
        left, below = -_MARGIN * 72, -pen.down - _MARGIN * 72
        axes.set(xlim=(left, left + across * 72), ylim=(below, _MARGIN * 72))
        figure.set_size_inches(across, _MARGIN - below / 72)
    return figure


@dataclass
class _Pen:
    """Writes from the top down, in points; the first column to the left, the others to the right."""

    axes: Axes
    widths: list[float]
    size: float
    down: float = 0.0

    @property
    def ends(self) -> list[float]:
        return [sum(self.widths[: i + 1]) for i in range(len(self.widths))]

    def paragraph(self, lines: list[str], color: str) -> None:
        for line in lines:
            self.down += _SIZE * _LINE
            self.text(0, line, color, size=_SIZE)
        self.down += 0.35 * _SIZE if lines else 0

    def text(
        self, x: float, text: str, color: str, *, bold: bool = False, to: str = "left", size: float = 0
    ) -> None:
        weight = "bold" if bold else "normal"
        size = size or self.size
        self.axes.text(
            x, -self.down + 0.4 * size, text, color=color, weight=weight, ha=to, va="baseline", fontsize=size
        )

    def rule(self, weight: float, start: float = 0, end: float | None = None) -> None:
        stop = self.ends[-1] if end is None else end
        self.down += 0.1 * self.size
        line = Line2D((start, stop), (-self.down, -self.down), color=_INK, linewidth=weight)
        line.set_solid_capstyle("butt")
        self.axes.add_line(line)
        self.down += 0.1 * self.size

    def line(self) -> None:
        self.down += _LINE * self.size


def _draw(pen: _Pen, table: Table) -> None:
    pen.rule(_HEAVY)
    if table.groups:
        _group_heads(pen, table)
    pen.line()
    for place, head in enumerate(table.heads):
        name = drawable(head, _LONGEST)
        pen.text(pen.ends[place] if place else 0, name, _INK, to="right" if place else "left")
    pen.rule(_LIGHT)
    section = ""
    for number, row in enumerate(table.rows):
        if row.section != section or row.rule:
            section = row.section
            if number:
                pen.rule(_LIGHT)
            if section:
                pen.line()
                pen.text(pen.ends[-1] / 2, drawable(section), _INK, to="center")
                pen.rule(_LIGHT)
        _row(pen, row)
    pen.rule(_HEAVY)


def _group_heads(pen: _Pen, table: Table) -> None:
    pen.line()
    start, level = 0, pen.down
    for text, span in table.groups:
        if text:
            left = pen.ends[start - 1] + _GAP * pen.size if start else 0.0
            right = pen.ends[start + span - 1]
            pen.text((left + right) / 2, drawable(text, 60), _INK, to="center")
            pen.rule(_LIGHT, left, right)
            pen.down = level
        start += span
    pen.down = level + 0.2 * pen.size


def _row(pen: _Pen, row: Row) -> None:
    pen.line()
    color = _DIM if row.dim else _INK
    pen.text(0, drawable(row.label, _LONGEST), color)
    for end, cell in zip(pen.ends[1:], row.cells, strict=True):
        figure, spread = _pieces(cell)
        best = isinstance(cell, Entry) and cell.best
        pen.text(end - _width(spread) * pen.size, figure, color, bold=best, to="right")
        pen.text(end, spread, color, to="right")


def _pieces(cell: Cell) -> tuple[str, str]:
    """The figure, and its spread, which is never bold."""
    if not isinstance(cell, Entry):
        return drawable(cell or "", _LONGEST), ""
    spread = "" if cell.spread is None else f"±{cell.spread:.{cell.digits}f}"
    return cell.plain.replace("-", "−"), spread


def _widths(table: Table) -> list[float]:
    """Of the columns in points; texts above several columns must fit as well."""
    labels = [table.heads[0], *(row.label for row in table.rows)]
    widths = [max(_width(drawable(label, _LONGEST)) for label in labels)]
    for place, head in enumerate(table.heads[1:]):
        pairs = [_pieces(row.cells[place]) for row in table.rows]
        cells = [_width(figure, bold=True) + _width(spread) for figure, spread in pairs]
        widths.append(_GAP + max([_width(drawable(head, _LONGEST)), *cells]))
    start = 0
    for text, span in table.groups:
        lack = (_width(drawable(text, 60)) + _GAP - sum(widths[start : start + span])) / span
        if text and lack > 0:
            widths[start : start + span] = [width + lack for width in widths[start : start + span]]
        start += span
    return [_SIZE * width for width in widths]


@cache
def _width(text: str, *, bold: bool = False) -> float:
    """In sizes of its type."""
    with style():
        font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=100)
    return float(TextToPath().get_text_width_height_descent(text, font, ismath=False)[0]) / 100 if text else 0


def _wrapped(text: str, inches: float) -> list[str]:
    """In lines of the title's type; a word that is wider than a line is cut."""
    room = (inches - 2 * _MARGIN) * 72 / _SIZE
    lines: list[str] = []
    for word in drawable(text, _MOST).split():
        if lines and _width(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
            continue
        while _width(word) > room:
            fits = next(n for n in range(len(word), 0, -1) if n == 1 or _width(word[:n]) <= room)
            lines.append(word[:fits])
            word = word[fits:]
        lines.append(word)
    return lines
