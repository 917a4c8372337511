"""`acclimate demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.options import Debug, Force, Json, Seed
from acclimate.cli.terminal import errors_as_messages, messages, named_corruptions, split_words, written
from acclimate.demo.measure import CORRUPTIONS, QUICK_CORRUPTIONS
from acclimate.demo.show import show_demo

__all__ = ["demo"]


def demo(
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Names with commas, or all for the fifteen; by default {', '.join(CORRUPTIONS)}.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Times to go through the images.", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and corruptions, one epoch: fifteen seconds.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where to draw the summary: .png, .pdf or .svg.")] = Path(
        "acclimate-demo.png"
    ),
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """See a network fail on corrupted images, and recover without a label."""
    with errors_as_messages(debug):
        default = QUICK_CORRUPTIONS if quick else CORRUPTIONS
        given = [*default] if corruption is None else split_words(corruption)
        words = ["test" if word == "all" else word for word in given]
        names = named_corruptions(words)
        with written(out, force=force) as part:
            from acclimate.demo.summary import summary_figure  # here: other commands need no matplotlib

            cells = show_demo(names, quick=quick, epochs=epochs, seed=seed, console=messages)
            summary_figure(cells).savefig(part, dpi=110)
    if as_json:
        rows = [
            {"method": c.method, "corruption": c.corruption, "accuracy": c.over_epochs, "seconds": c.seconds}
            for c in cells
        ]
        print(json.dumps(rows))
    messages.print(f"What it looks like: {out}")
