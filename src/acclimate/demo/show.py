"""The demo in a terminal: a table that grows method by method."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from acclimate.demo.measure import METHODS, SEVERITY, Cell, measure

__all__ = ["COUNT", "EPOCHS", "demo_table", "show_demo"]

COUNT, EPOCHS = 600, 2
_QUICK_COUNT, _QUICK_EPOCHS = 300, 1

SNIPPET = """
The same for a model and images of your own:

    adapter = acclimate.Adapter(model, method="slr", normalize=(mean, std))
    adapter.fit(images, epochs=5)           # no labels
    logits = adapter.predict(images)
"""


def show_demo(
    corruptions: Sequence[str], *, quick: bool, epochs: int | None, seed: int, console: Console
) -> list[Cell]:
    """Measure, and show what is known as soon as it is."""
    count, chosen = (_QUICK_COUNT, _QUICK_EPOCHS) if quick else (COUNT, EPOCHS)
    chosen = epochs or chosen
    console.print(
        f"A network trained on Fashion-MNIST meets {count:,} test images, corrupted at severity {SEVERITY}.\n"
        f"It adapts to them over {chosen} epoch{'s' * (chosen > 1)}. Labels only measure the accuracy, in %."
    )
    cells: list[Cell] = []
    with Live(demo_table(cells, corruptions), console=console, refresh_per_second=4) as live:
        for cell in measure(corruptions, count=count, epochs=chosen, seed=seed):
            cells.append(cell)
            live.update(demo_table(cells, corruptions))
    console.print(SNIPPET)
    return cells


def demo_table(cells: Sequence[Cell], corruptions: Sequence[str]) -> Table:
    """A row for each method; the gain is over the unadapted network, on average."""
    wide = len(corruptions) <= 6
    table = Table()
    table.add_column("method")
    for name in corruptions if wide else ():
        table.add_column(name.replace("_", "\n"), justify="right")
    for name in ("mean", "gain", "seconds"):
        table.add_column(name, justify="right")
    means: dict[str, float] = {}
    for method in METHODS:
        own = {cell.corruption: cell for cell in cells if cell.method == method}
        if not own:
            continue
        shown = [f"{own[name].accuracy:.1f}" if name in own else "…" for name in corruptions]
        rest = ["", "", ""]
        if len(own) == len(corruptions):
            means[method] = sum(cell.accuracy for cell in own.values()) / len(own)
            gain = means[method] - means["source"]
            rest = [f"{means[method]:.1f}", f"{gain:+.1f}", f"{sum(c.seconds for c in own.values()):.1f}"]
        table.add_row(method, *(shown if wide else ()), *rest)
    return table
