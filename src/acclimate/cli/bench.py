"""`acclimate bench`."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from acclimate.bench import PRESETS, read_spec, run_grid
from acclimate.bench.presets import narrowed
from acclimate.bench.spec import Cell, checked_cell
from acclimate.cli.options import Debug, Force, Json, Log, LogFolder, Precision, Weights
from acclimate.cli.terminal import (
    DONE,
    IN_PART,
    errors_as_messages,
    messages,
    named_corruptions,
    progress_bar,
    severities_of,
    split_words,
)
from acclimate.errors import OptionError, unknown
from acclimate.records import read_cells
from acclimate.report.events import replay
from acclimate.report.sinks import open_sinks

__all__ = ["bench"]


def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PRESET",
            help="Of `acclimate list presets`, a spec in a .yaml file, or records to run again.",
        ),
    ],
    data: Annotated[
        Path | None, typer.Option(help="The folder of data and weights.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="A folder for the records.")] = Path("results"),
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only these networks, by commas, or others instead.", show_default=False
        ),
    ] = None,
    weights: Weights = None,
    normalize: Annotated[
        str | None, typer.Option(metavar="MEAN/STD", help="As for `adapt`.", show_default=False)
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these, by commas.", show_default=False)
    ] = None,
    corruptions: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these, or all, test, validation.", show_default=False),
    ] = None,
    severities: Annotated[
        list[str] | None, typer.Option(metavar="1-5", help="Only these.", show_default=False)
    ] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(metavar="N", help="Only these, or others instead.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=2, help="At most so many images.", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Instead of the preset's.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes; by default as the cores allow, on a GPU one.", show_default=False
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each process.", show_default="1")] = None,
    device: Annotated[str | None, typer.Option(help="Such as cuda.", show_default="cpu")] = None,
    precision: Precision = None,
    log: Log = None,
    log_folder: LogFolder = Path("logs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in --out.")] = False,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and run none.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment of the paper, or one of your own, and keep a record of every cell."""
    kept = f": what is finished is in {out}, and the same command with --resume goes on"
    with errors_as_messages(debug, kept, out):
        cells = narrowed(
            _cells(what, data),
            networks=split_words(models or []),
            methods=split_words(methods or []),
            corruptions=named_corruptions(corruptions) if corruptions else (),
            severities=severities_of(severities) if severities else (),
            seeds=[_whole(word) for word in split_words(seeds or [])],
            limit=limit,
            epochs=epochs,
            threads=threads,
            device=device,
            precision=precision,
            weights=None if weights is None else str(weights.resolve()),
            normalize=normalize,
        )
        if dry_run:
            print("\n".join(cell.label for cell in cells))
            messages.print(f"{len(cells)} cells")
            raise typer.Exit(DONE)
        sink = open_sinks(split_words(log or []), log_folder)
        if log:
            messages.print(f"watch it by: {sink.where}")
        with progress_bar("cells") as progress:
            outcome = run_grid(
                cells,
                (data or Path()).resolve(),
                out,
                workers=workers or _default_workers(cells),
                resume=resume,
                force=force,
                on_progress=progress,
                on_failure=lambda label, reason: messages.print(f"failed: {label}: {reason}", style="red"),
                on_record=(lambda record: replay(record, sink)) if log else None,
            )
    if as_json:
        print(json.dumps({**dataclasses.asdict(outcome), "out": str(out)}))
    else:
        skipped = f", {outcome.skipped} finished before" if outcome.skipped else ""
        failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
        print(f"{outcome.done} cells done{skipped}{failed}; records in {out}")
        if not outcome.failed:
            print(f"next: acclimate report {out}")
    raise typer.Exit(IN_PART if outcome.failed else DONE)


def _cells(what: str, data: Path | None) -> list[Cell]:
    if what.endswith((".yaml", ".yml", ".json")):
        return list(read_spec(what).cells())
    if what.endswith((".jsonl", ".jsonl.gz")) or (what not in PRESETS and Path(what).is_dir()):
        return [checked_cell(cell, what) for cell in read_cells(what)]
    if what not in PRESETS:
        raise OptionError(f"{unknown('preset', what, PRESETS)} (or give a spec, a .yaml file)")
    preset = PRESETS[what]
    if preset.data and data is None:
        raise OptionError(f"{what} needs --data, {preset.data}")
    if data is not None and not data.is_dir():
        raise OptionError(f"there is no folder {data}: expected {preset.data or 'a folder'}")
    return list(preset.cells())


def _default_workers(cells: list[Cell]) -> int:
    """A process for each thread that the cores have; one for a GPU."""
    if any(cell.device != "cpu" for cell in cells):
        return 1
    return max(1, (os.cpu_count() or 1) // max((cell.threads for cell in cells), default=1))


def _whole(word: str) -> int:
    if not word.isdigit():
        raise OptionError(f"a seed must be a whole number, got {word!r}")
    return int(word)
