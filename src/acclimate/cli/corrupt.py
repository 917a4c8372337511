"""`acclimate corrupt`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.options import Debug, Json, Seed
from acclimate.cli.terminal import (
    DONE,
    IN_PART,
    errors_as_messages,
    format_name,
    messages,
    named_corruptions,
    progress_bar,
    severities_of,
)
from acclimate.corruptions.generate import FORMATS, Outcome, corrupt_dataset
from acclimate.errors import counted

__all__ = ["corrupt"]


def corrupt(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A folder of images, or a .npy or .npz file of images.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A folder for the corrupted images.")],
    corruption: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="all, test, validation, or names separated by commas."),
    ] = ["all"],  # noqa: B006 - typer copies it
    severity: Annotated[
        list[str],
        typer.Option(metavar="SEVERITY", help="1 to 5, or ranges such as 2-4, separated by commas."),
    ] = ["1-5"],  # noqa: B006
    size: Annotated[
        int,
        typer.Option(min=0, help="Resize and crop a folder's images to this, as ImageNet's; 0: do not."),
    ] = 224,
    format: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option(
            help=f"{', '.join(FORMATS)}; by default jpeg for a folder, npy for an array.", show_default=False
        ),
    ] = None,
    seed: Seed = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one per processor.", show_default=False)
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Remove what is there of it, and make it anew.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Corrupt a folder of images (to an ImageNet-C tree) or an array of images (to CIFAR-C arrays).

    Run it again to go on after an interrupt: what is there is not made again.
    """
    kept = ": what was done is kept, and the same command (without --force) goes on with the rest"
    with errors_as_messages(debug, kept), progress_bar("corrupting") as progress:
        outcome = corrupt_dataset(
            source,
            target,
            names=named_corruptions(corruption),
            severities=severities_of(severity),
            size=size or None,
            format=None if format is None else format_name(format),
            seed=seed,
            workers=workers,
            force=force,
            progress=progress,
        )
    _tell(outcome, target, as_json)
    raise typer.Exit(IN_PART if outcome.failed else DONE)


def _tell(outcome: Outcome, target: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**dataclasses.asdict(outcome), "target": str(target)}))
    messages.print(
        f"{target}: {counted(outcome.made, 'corrupted image')} made, {outcome.present:,} were there, "
        f"{counted(len(outcome.failed), 'image')} left out"
    )
    if outcome.ignored:
        messages.print(f"ignored: files with {', '.join(outcome.ignored)}, which are not taken for images")
    for name, reason in sorted(outcome.failed.items()):
        told = reason if name in reason else f"{name}: {reason}"
        printable = told.encode(errors="backslashreplace").decode()
        messages.print(f"left out: {printable}", style="red")
