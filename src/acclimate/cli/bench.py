"""`acclimate bench`."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import torch
import typer

from acclimate.bench import PRESETS, read_spec, run_grid
from acclimate.bench.estimate import estimated, table_of
from acclimate.bench.grid import GridOutcome, shard_of
from acclimate.bench.presets import narrowed
from acclimate.bench.spec import Cell, checked_cell
from acclimate.cli.job import device_of, joined
from acclimate.cli.options import Debug, Force, Json, Log, LogFolder, Precision, Weights
from acclimate.cli.terminal import (
    DONE,
    IN_PART,
    check_resume,
    errors_as_messages,
    how_to_resume,
    messages,
    named_corruptions,
    progress_bar,
    severities_of,
    split_words,
)
from acclimate.errors import OptionError, counted, masked, shown, unknown
from acclimate.places import is_address
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
        str | None,
        typer.Option(
            metavar="PATH", help="The folder of data and weights, or its address.", show_default=False
        ),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="PATH", help="A folder for the records, or its address: s3://…")
    ] = "results",
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
            min=1, help="Processes; by default as the cores allow, or one for each GPU.", show_default=False
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each process.", show_default="1")] = None,
    device: Annotated[str | None, typer.Option(help="Such as cuda.", show_default="cpu")] = None,
    precision: Precision = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Run the cells on a Ray cluster, or on one made here.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        float, typer.Option("--gpus-per-cell", min=0.01, help="With --ray and --device cuda: may be a part.")
    ] = 1.0,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Only the I-th of N parts: `acclimate merge`.", show_default=False),
    ] = None,
    log: Log = None,
    log_folder: LogFolder = Path("logs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in --out.")] = False,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and run none.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say what it would take, from some images of each kind.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment of the paper, or one of your own, and keep a record of every cell."""
    kept = f": what is finished is in {shown(out)}, and {how_to_resume(force=force)}"
    with errors_as_messages(debug, kept, None if is_address(out) else Path(out)), joined() as job:
        check_resume(resume=resume, force=force)
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
            device=device_of(job, device),
            precision=precision,
            weights=None if weights is None else str(weights.resolve()),
            normalize=normalize,
        )
        if shard is not None:
            cells = shard_of(cells, shard)
        if dry_run:
            if job.rank == 0:
                print("\n".join(cell.label for cell in cells))
                messages.print(counted(len(cells), "cell"))
            raise typer.Exit(DONE)
        if ray and workers and not estimate:
            raise OptionError(
                "--workers is for this machine: with --ray, the cluster decides how many there are"
            )
        if gpus != 1.0 and not ray:
            raise OptionError("--gpus-per-cell is for --ray")
        root = str(data) if is_address(data or "") else str(Path(data or "").resolve())
        workers = workers or (1 if job.size > 1 else _default_workers(cells))
        if estimate:
            _say_estimate(cells, root, workers, as_json=as_json, quiet=job.rank > 0)
            raise typer.Exit(DONE)
        sink = open_sinks(split_words(log or []) if job.rank == 0 else [], log_folder)
        if log:
            messages.print(f"watch it by: {masked(sink.where)}")
        with progress_bar("cells") as progress:
            outcome = run_grid(
                cells,
                root,
                out,
                workers=1 if ray else workers,
                ray=ray,
                gpus=gpus,
                resume=resume,
                force=force,
                on_progress=progress,
                on_failure=lambda label, reason: messages.print(f"failed: {label}: {reason}", style="red"),
                on_record=(lambda record: replay(record, sink)) if log and job.rank == 0 else None,
            )
    if job.rank == 0:
        _say(outcome, out, as_json=as_json)
    raise typer.Exit(IN_PART if outcome.failed else DONE)


def _say(outcome: GridOutcome, out: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**dataclasses.asdict(outcome), "out": shown(out)}))
    else:
        skipped = f", {outcome.skipped} finished before" if outcome.skipped else ""
        failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
        print(f"{outcome.done} cells done{skipped}{failed}; records in {shown(out)}")
        if not outcome.failed:
            print(f"next: acclimate report {shown(out)}")


def _say_estimate(cells: list[Cell], root: str, workers: int, *, as_json: bool, quiet: bool) -> None:
    with progress_bar("kinds of cells") as progress:
        found = estimated(cells, root, workers=workers, on_progress=progress)
    if quiet:
        return
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
        return
    print(table_of(found))


def _cells(what: str, data: str | None) -> list[Cell]:
    if what.endswith((".yaml", ".yml", ".json")):
        return list(read_spec(what).cells())
    is_place = is_address(what) or (what not in PRESETS and Path(what).is_dir())
    if what.endswith((".jsonl", ".jsonl.gz")) or is_place:
        return [checked_cell(cell, what) for cell in read_cells(what)]
    if what not in PRESETS:
        raise OptionError(f"{unknown('preset', what, PRESETS)} (or give a spec, a .yaml file)")
    preset = PRESETS[what]
    if preset.data and data is None:
        raise OptionError(f"{what} needs --data, {preset.data}")
    if data is not None and not is_address(data) and not Path(data).is_dir():
        raise OptionError(f"there is no folder {data}: expected {preset.data or 'a folder'}")
    return list(preset.cells())


def _default_workers(cells: list[Cell]) -> int:
    """A process for each thread that the cores have, or for each GPU."""
    if any(cell.device != "cpu" for cell in cells):
        return max(1, torch.cuda.device_count()) if all(cell.device == "cuda" for cell in cells) else 1
    return max(1, (os.cpu_count() or 1) // max((cell.threads for cell in cells), default=1))


def _whole(word: str) -> int:
    if not word.isdigit():
        raise OptionError(f"a seed must be a whole number, got {word!r}")
    return int(word)
