"""`acclimate merge`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from acclimate.bench.merge import check_apart
from acclimate.bench.merge import merge as merge_records
from acclimate.cli.options import Debug, Json
from acclimate.cli.terminal import DONE, IN_PART, errors_as_messages, messages
from acclimate.errors import counted, shown

__all__ = ["merge"]


def merge(
    sources: Annotated[
        list[str], typer.Argument(metavar="RECORDS...", help="Folders, .jsonl files or addresses.")
    ],
    out: Annotated[str, typer.Option(metavar="PATH", help="A folder for all of them, or its address.")],
    force: Annotated[
        bool, typer.Option("--force", help="Of two different results, take that of the place named last.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring records of several places together: of the shards of a grid, or of several machines."""
    with errors_as_messages(debug):
        check_apart(sources, out)
        outcome = merge_records(sources, out, force=force)
    if as_json:
        print(json.dumps({**dataclasses.asdict(outcome), "out": shown(out)}))
    else:
        twice = f", {outcome.twice} of them found more than once" if outcome.twice else ""
        print(f"{counted(outcome.written, 'record')} in {shown(out)}{twice}")
        for label in outcome.failed:
            messages.print(f"no result anywhere: {label}", style="red")
        print(f"next: acclimate report {shown(out)}")
    raise typer.Exit(IN_PART if outcome.failed else DONE)
