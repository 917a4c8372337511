"""`acclimate compare`."""

from __future__ import annotations

import dataclasses
import json
import statistics
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from acclimate.bench.compare import Difference, against_published, judge
from acclimate.cli.options import Debug, Json
from acclimate.cli.terminal import errors_as_messages
from acclimate.records import read_records

__all__ = ["compare"]

_WIDTH = 200  # of what goes to a file


def compare(
    results: Annotated[
        list[str], typer.Argument(metavar="RESULTS", help="Folders, files or addresses of records.")
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Hold records against the paper: figure by figure, and claim by claim."""
    with errors_as_messages(debug):
        records = read_records(*results)
        differences, verdicts = against_published(records), judge(records)
    if as_json:
        found = {
            "published": [dataclasses.asdict(difference) for difference in differences],
            "claims": [{**dataclasses.asdict(verdict), "verdict": verdict.word} for verdict in verdicts],
        }
        print(json.dumps(found))
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    failed = sum("error" in record for record in records)
    console.print(f"{len(records) - failed} records" + (f", and {failed} that failed" if failed else ""))
    if differences:
        for name in dict.fromkeys(difference.table for difference in differences):
            console.print(_against(name, [item for item in differences if item.table == name]))
    else:
        console.print(
            "No published figure was measured: they are for ResNet-50 on ImageNet-C, severity 5, and VisDA-C."
        )
    table = Table("claim of the paper", "holds", "accuracy in %, means over corruptions and seeds")
    for verdict in verdicts:
        table.add_row(verdict.claim, verdict.word, verdict.figures)
    console.print(table)


def _against(name: str, differences: list[Difference]) -> Table:
    """Measured, and that minus published: a row for each corruption, a column for each method and epoch."""
    shown = Table("", title=f"{name}: measured (minus published)")
    columns = list(dict.fromkeys((item.method, item.epoch) for item in differences))
    for method, epoch in columns:
        shown.add_column(f"{method}\nepoch {epoch}" if epoch else method, justify="right")
    found = {(item.corruption, (item.method, item.epoch)): item for item in differences}
    for corruption in dict.fromkeys(item.corruption for item in differences):
        own = [found.get((corruption, column)) for column in columns]
        shown.add_row(corruption or "all", *(_cell([item]) if item else "" for item in own))
    shown.add_section()
    shown.add_row("mean", *(_cell([d for d in differences if (d.method, d.epoch) == c]) for c in columns))
    return shown


def _cell(differences: list[Difference]) -> str:
    measured = statistics.fmean(item.measured for item in differences)
    published = statistics.fmean(item.published for item in differences)
    digits = 3 if published < 1 else 2
    return f"{measured:.{digits}f} ({measured - published:+.{digits}f})"
