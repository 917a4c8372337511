"""`acclimate fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.options import Debug
from acclimate.cli.terminal import errors_as_messages, messages, progress_bar
from acclimate.data.fetch import DATASETS
from acclimate.data.fetch import fetch as fetch_dataset

__all__ = ["fetch"]


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(DATASETS)}.")],
    folder: Annotated[Path, typer.Argument(metavar="DST", help="A folder for data sets.")] = Path("data"),
    debug: Debug = False,
) -> None:
    """Download a published data set, checked and resumable, and unpack it.

    Run it again to go on after an interrupt. Archives that are in DST/NAME already are taken from there.
    """
    kept = ": what has come is kept, and the same command goes on"
    with errors_as_messages(debug, kept), progress_bar(name, of_bytes=True) as progress:
        root = fetch_dataset(
            name, folder, datasets=DATASETS, progress=lambda what, done, total: progress(done, total)
        )
    messages.print(f"{root}: {DATASETS[name].summary}")
