"""`acclimate compare`."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from acclimate.bench.compare import Difference, against_published, judge
from acclimate.bench.records import read_records
from acclimate.cli.options import Debug, Json
from acclimate.cli.terminal import errors_as_messages

__all__ = ["compare"]


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS", help="Folders or files of records.")],
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
    """Measured minus published, a row for each method and epoch, a column for each corruption."""
    shown = Table(title=f"{name}: measured (difference to published)")
    corruptions = list(dict.fromkeys(difference.corruption for difference in differences))
    for column in ("method", "epoch", *(word or "all" for word in corruptions), "mean"):
        shown.add_column(column, justify="left" if column == "method" else "right")
    for method, epoch in dict.fromkeys((item.method, item.epoch) for item in differences):
        own = {d.corruption: d for d in differences if (d.method, d.epoch) == (method, epoch)}
        mean = Difference(
            name, method, epoch, "mean",
            statistics.fmean(d.published for d in own.values()),
            statistics.fmean(d.measured for d in own.values()),
        )  # fmt: skip
        cells = [own.get(corruption) for corruption in corruptions]
        shown.add_row(method, str(epoch), *(_cell(item) for item in (*cells, mean)))
    return shown


def _cell(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return f"{difference.measured:.2f} ({difference.measured - difference.published:+.2f})"
