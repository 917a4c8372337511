"""`python -m acclimate.demo`: a network fails on corrupted images and recovers without a label."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import Tensor

from acclimate.adapter import Adapter
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

COUNT, EPOCHS = 1000, 4
METHODS = ("source", "bn", "tent", "tent+", "hlr", "slr", "slr+it")

SNIPPET = """[bold]The same for a model and images of your own:[/bold]

    import acclimate
    adapter = acclimate.Adapter(model, method="slr", normalize=(mean, std))
    adapter.fit(images, epochs=5)           # no labels
    logits = adapter.predict(images)
"""


def corruptions(images: Tensor) -> dict[str, Tensor]:
    """A noise, and a contrast so low that the noise of the camera shows."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(images.shape, generator=generator)
    mean = images.mean(dim=(2, 3), keepdim=True)
    return {
        "noise": (images + 0.3 * noise).clamp(0, 1),
        "low contrast": (mean + 0.1 * (images - mean) + 0.02 * noise).clamp(0, 1),
    }


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return 100 * logits.argmax(1).eq(labels).float().mean().item()


def measure(count: int, epochs: int) -> Iterator[dict[str, str | float]]:
    """Accuracy of every method on ``count`` images under every corruption, one row after the other."""
    images, labels = (part[:count] for part in bundled_images())
    shifts = corruptions(images)
    source: float | None = None
    for method in METHODS:
        started = time.perf_counter()
        row: dict[str, str | float] = {"method": method}
        scores = []
        for name, shifted in shifts.items():
            adapter = Adapter(bundled_model(), method, normalize=(MEAN, STD))
            adapter.fit(shifted, epochs, progress=False)
            scores.append(accuracy(adapter.predict(shifted, batch_size=64), labels))
            row[name] = round(scores[-1], 1)
        mean = sum(scores) / len(scores)
        source = mean if source is None else source
        row["gain over source"] = round(mean - source, 1)
        row["seconds"] = round(time.perf_counter() - started, 1)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m acclimate.demo", description=__doc__)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--quick", action="store_true", help="500 images and two epochs")
    args = parser.parse_args()
    count, epochs = (500, 2) if args.quick else (COUNT, args.epochs)
    console = Console()
    console.print(f"Fashion-MNIST, {count:,} test images, a network trained on clean ones.")
    table = Table(title=f"accuracy % after {epochs} epochs on corrupted images, without a label")
    # in a terminal the table grows row by row; in a file it comes as a whole, after a line per method
    with Live(table, console=console, refresh_per_second=4) if console.is_terminal else nullcontext():
        for row in measure(count, epochs):
            if not table.columns:
                for name in row:
                    table.add_column(name, justify="left" if name == "method" else "right")
            table.add_row(*(value if isinstance(value, str) else f"{value:.1f}" for value in row.values()))
            if not console.is_terminal:
                console.print(f"{row['method']}: {row['seconds']:.0f} s")
    if not console.is_terminal:
        console.print(table)
    console.print(f"\n{SNIPPET}")


if __name__ == "__main__":
    main()
