"""`python -m acclimate.demo`: a network fails on corrupted images and recovers without a label."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import Tensor

from acclimate.adapter import Adapter
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m acclimate.demo", description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="500 images and two epochs")
    args = parser.parse_args()
    images, labels = (part[: 500 if args.quick else 1000] for part in bundled_images())
    args.epochs = 2 if args.quick else args.epochs
    model, normalize = bundled_model(), (MEAN, STD)
    console = Console()
    clean = accuracy(Adapter(model, "source", normalize=normalize).predict(images), labels)
    console.print(f"Fashion-MNIST, {len(images):,} test images, accuracy {clean:.1f}% on clean ones.")
    shifts = corruptions(images)
    table = Table(title=f"accuracy % after {args.epochs} epochs on corrupted images, without a label")
    table.add_column("method")
    for column in (*shifts, "gain over source", "seconds"):
        table.add_column(column, justify="right")
    source: list[float] = []
    # in a terminal the table grows row by row; in a file it comes as a whole, after a line per method
    with Live(table, console=console, refresh_per_second=4) if console.is_terminal else nullcontext():
        for method in METHODS:
            started = time.perf_counter()
            scores = []
            for shifted in shifts.values():
                adapter = Adapter(model, method, normalize=normalize)
                adapter.fit(shifted, args.epochs, progress=False)
                scores.append(accuracy(adapter.predict(shifted, batch_size=64), labels))
            source = source or scores
            gain = sum(scores) / len(scores) - sum(source) / len(source)
            seconds = time.perf_counter() - started
            if not console.is_terminal:
                console.print(f"{method}: {seconds:.0f} s")
            table.add_row(method, *(f"{score:.1f}" for score in scores), f"{gain:+.1f}", f"{seconds:.1f}")
    if not console.is_terminal:
        console.print(table)
    console.print(f"\n{SNIPPET}")


if __name__ == "__main__":
    main()
