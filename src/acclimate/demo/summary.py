"""The demo's picture: accuracy over epochs, predicted classes, images before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acclimate.demo.bundle import CLASSES
from acclimate.demo.measure import Cell

__all__ = ["summary_figure"]


def summary_figure(cells: Sequence[Cell]) -> Figure:
    """One row for each corruption: how accuracy grows, what is predicted, what the transformation does."""
    corruptions = list(dict.fromkeys(cell.corruption for cell in cells))
    figure = Figure(figsize=(13, 2.9 * len(corruptions)), layout="constrained")
    grid = figure.subplots(len(corruptions), 3, squeeze=False, width_ratios=(1.1, 1, 1.3))
    for row, corruption in zip(grid, corruptions, strict=True):
        own = [cell for cell in cells if cell.corruption == corruption]
        _accuracy(row[0], own)
        _histogram(row[1], own)
        _gallery(row[2], own[-1])
    grid[0][0].legend(frameon=False, fontsize=7, ncols=2, loc="lower right")
    grid[0][1].legend(frameon=False, fontsize=7, loc="upper right")
    return figure


def _accuracy(axes: Axes, cells: Sequence[Cell]) -> None:
    source, epochs = cells[0].accuracy, max(len(cell.over_epochs) for cell in cells)
    for cell in cells:
        if cell.method in ("source", "bn"):  # nothing is trained
            axes.plot((0, epochs), (cell.accuracy,) * 2, ls=":", label=cell.method)
        else:
            over = (source, *cell.over_epochs)
            # tent and tent+ often lie on one another
            style: dict[str, Any] = {"ls": "--", "zorder": 3} if cell.method == "tent" else {}
            axes.plot(range(epochs + 1), over, marker="o", ms=3, label=cell.method, **style)
    axes.set(title=f"{cells[0].corruption}: accuracy %", xlabel="epoch, without a label")
    axes.set_ylim(10 * (min(cell.accuracy for cell in cells) // 10), 100)
    axes.set_xticks(range(epochs + 1))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _histogram(axes: Axes, cells: Sequence[Cell]) -> None:
    shown = [cell for cell in cells if cell.method in ("source", cells[-1].method)]
    for offset, cell in enumerate(shown):
        share = 100 * np.array(cell.histogram) / sum(cell.histogram)
        axes.bar(np.arange(len(share)) + 0.4 * offset, share, width=0.4, align="edge", label=cell.method)
    axes.axhline(100 / len(CLASSES), color="black", lw=0.8, ls=":")
    axes.set_title("predicted classes, % (dotted: as they are)", fontsize=10)
    axes.set_xticks(np.arange(len(CLASSES)) + 0.4, CLASSES, rotation=45, ha="right", fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _gallery(axes: Axes, cell: Cell) -> None:
    rows = [np.concatenate(list(images.permute(0, 2, 3, 1).numpy()), axis=1) for images in cell.gallery]
    axes.imshow(np.clip(np.concatenate(rows, axis=0), 0, 1), interpolation="nearest")
    axes.set_title(f"clean, corrupted, and as {cell.method} sees it", fontsize=10)
    axes.axis("off")
