"""The demo in a terminal: a table that grows method by method."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from acclimate.demo.measure import METHODS, SEVERITY, Cell, measure
from acclimate.errors import counted

__all__ = ["COUNT", "EPOCHS", "demo_table", "show_demo"]

COUNT, EPOCHS = 400, 3
_QUICK_COUNT, _QUICK_EPOCHS = 256, 1

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
        f"It adapts to them over {counted(chosen, 'epoch')}. Labels only measure the accuracy, in %."
    )
    cells: list[Cell] = []
    steps = [f"{method} on {corruption}" for corruption in corruptions for method in METHODS]
    with Live(console=console, refresh_per_second=4) as live:
        for number, step in enumerate(steps):
            live.update(Group(demo_table(cells, corruptions), f"{number + 1} of {len(steps)}: {step} …"))
            if not cells:
                running = measure(corruptions, count=count, epochs=chosen, seed=seed)
            cells.append(next(running))
        live.update(demo_table(cells, corruptions))
    found = {(cell.corruption, cell.method): round(cell.accuracy, 1) for cell in cells}
    if all(found[corruption, "tent"] == found[corruption, "bn"] for corruption in corruptions):
        console.print("\nSo few steps are too few for TENT's learning rate: it stays at bn.")
    console.print(SNIPPET)
    return cells


def demo_table(cells: Sequence[Cell], corruptions: Sequence[str]) -> Table:
    """A row for each corruption, a column for each method; the gain is over the unadapted network."""
    found = {(cell.corruption, cell.method): cell for cell in cells}
    table = Table()
    table.add_column("accuracy %")
    for method in METHODS:
        table.add_column(method, justify="right")
    for corruption in corruptions:
        own = [found.get((corruption, method)) for method in METHODS]
        best = max((cell.accuracy for cell in own if cell), default=0.0)
        table.add_row(corruption, *(_shown(cell, best) for cell in own))
    if len(cells) == len(corruptions) * len(METHODS):
        columns = [[found[corruption, method] for corruption in corruptions] for method in METHODS]
        means = [sum(cell.accuracy for cell in column) / len(column) for column in columns]
        seconds = [sum(cell.seconds for cell in column) for column in columns]
        table.add_section()
        table.add_row("mean", *(f"{mean:.1f}" for mean in means))
        table.add_row("gain over source", *(f"{mean - means[0]:+.1f}" for mean in means))
        table.add_row("seconds to adapt", *(f"{value:.1f}" for value in seconds))
    return table


def _shown(cell: Cell | None, best: float) -> Text:
    if cell is None:
        return Text("…")
    return Text(f"{cell.accuracy:.1f}", style="bold" if cell.accuracy == best else "")
