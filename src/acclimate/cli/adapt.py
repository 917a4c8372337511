"""`acclimate adapt`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from acclimate.adapting import adapt_images, check_export
from acclimate.bench.spec import Cell, Data, Network
from acclimate.cli.job import device_of, joined
from acclimate.cli.options import (
    Classes,
    Corruption,
    Debug,
    Device,
    Force,
    Json,
    Layout,
    Log,
    LogFolder,
    Memory,
    Method,
    Model,
    Normalize,
    Precision,
    Seed,
    Severity,
    Size,
    Split,
    Statistics,
    Weights,
)
from acclimate.cli.terminal import (
    DONE,
    IN_PART,
    check_outputs,
    check_resume,
    check_suffix,
    class_names,
    errors_as_messages,
    how_to_resume,
    messages,
    progress_bar,
    split_words,
)
from acclimate.data import checked_layout
from acclimate.errors import OptionError, masked, shown, unknown
from acclimate.fast.precision import PRECISIONS, checked_precision
from acclimate.gate import GATES, checked_gate
from acclimate.inputs import open_images, opened
from acclimate.labels import OWN, labels_for, notes_on
from acclimate.methods import chosen_setting, parse_method
from acclimate.models.load import load_model
from acclimate.normalization import normalization_of
from acclimate.options import changed_options, checked_memory
from acclimate.outcome import told
from acclimate.ranks import RANKS
from acclimate.records import read_records
from acclimate.report.events import Live
from acclimate.report.sinks import open_sinks

__all__ = ["adapt"]


def adapt(
    model: Model,
    data: Annotated[
        str,
        typer.Option(metavar="SRC", help="A folder, array or address of images: `acclimate list layouts`."),
    ],
    weights: Weights = None,
    normalize: Normalize = None,
    method: Method = "slr",
    input_transform: Annotated[bool, typer.Option("--input-transform", help="As +it in the name.")] = False,
    setting: Annotated[
        str, typer.Option(metavar="NAME", help="Of `acclimate list settings`; auto: by the classes.")
    ] = "auto",
    size: Size = None,
    layout: Layout = "auto",
    corruption: Corruption = None,
    severity: Severity = None,
    split: Split = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times to go through the images.")] = 5,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a batch.")] = 64,
    classes: Classes = None,
    out: Annotated[Path, typer.Option(help="What adapted, to go on or to load it.")] = Path(
        "adapted.safetensors"
    ),
    export: Annotated[
        Path | None,
        typer.Option(help="Weights of the adapted network, in its stock form.", show_default=False),
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="A CSV file of predictions before and after.", show_default=False)
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="What `acclimate report` shows.", show_default="beside --out, .json"),
    ] = None,
    log: Log = None,
    log_folder: LogFolder = Path("logs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from --out.")] = False,
    force: Force = False,
    device: Device = None,
    precision: Precision = None,
    memory: Memory = "auto",
    ranks: Statistics = RANKS[0],
    guard: Annotated[
        bool, typer.Option("--guard/--no-guard", help="Watch every step, and take back what goes wrong.")
    ] = True,
    gate: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="If it seems worse than before: warn, refuse (keep the source's predictions), or off.",
        ),
    ] = GATES[0],
    evaluate: Annotated[
        str | None,
        typer.Option(
            metavar="[FILE]",
            help="Measure accuracy before and after, by labels that decide nothing else: of a CSV file of "
            "file,label, or without a file the data's own (class folders, arrays).",
            show_default=False,
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Find a temperature for the confidences, without labels.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Adapt a network to a folder of unlabelled images, and say what changed."""
    kept = f": what was adapted is in {out}, and {how_to_resume(force=force)}"
    record = record or out.with_suffix(".json")
    files = {"out": out, "export": export, "predictions": predictions, "record": record}
    with errors_as_messages(debug, kept, out), joined() as job:
        check_resume(resume=resume, force=force)
        device = device_of(job, device)
        method = f"{method}+it" if input_transform and "+it" not in method else method
        parse_method(method, chosen_setting(setting, None))  # what is wrong is told before anything is read
        precision, memory = checked_precision(precision or PRECISIONS[0]), checked_memory(memory)
        names = class_names(classes)
        _check_suffixes(files)
        sink = open_sinks(split_words(log or []) if job.rank == 0 else [], log_folder)
        if log:
            messages.print(f"watch it by: {masked(sink.where)}")
        network = load_model(model, weights)
        checked_layout(data, layout)
        # After all that may be mistyped, of which --force would be no help; before images are read.
        labels = None if evaluate in (None, OWN) else evaluate
        inputs = [name for name in (data, weights, classes, labels) if name is not None]
        job.first(lambda: _check_outputs(files, inputs, resume=resume, force=force))
        normalization = normalization_of(network, normalize)
        part: dict[str, Any] = {"corruption": corruption, "severity": severity, "split": split}
        truth = None
        if evaluate is not None:  # before images are read
            there = opened(data, layout, **part)
            truth = labels_for(evaluate, there, path=data, names=names, layout=layout, **part)
        with progress_bar("reading") as progress:
            images, failed = open_images(
                network,
                data,
                size=size,
                layout=layout,
                progress=progress,
                **part,
            )
        asked = Cell(
            network=Network(
                name=model, weights=None if weights is None else str(weights), normalize=normalize
            ),
            data=_named(data, layout=layout, split=split, size=size),
            corruption=corruption,
            severity=severity,
            method=method,
            overrides=changed_options(precision=precision, memory=memory),
            setting=setting,
            seed=seed,
            epochs=epochs,
            batch_size=batch_size,
            device=device or "cpu",
            threads=torch.get_num_threads(),
        )
        with Live(sink, asked) as live:
            outcome = adapt_images(
                network,
                images,
                method=method,
                normalize=normalization,
                epochs=epochs,
                batch_size=batch_size,
                classes=names,
                setting=setting,
                device=device,
                seed=seed,
                precision=precision,
                memory=memory,
                ranks=_checked_ranks(ranks),
                guard=guard,
                gate=checked_gate(gate),
                calibrate=calibrate,
                out=out,
                export=export,
                predictions=predictions,
                record=record,
                asked=asked.model_dump(mode="json"),
                left_out=failed,
                notes=notes_on(images, evaluate),
                truth=truth,
                resume=resume,
                on_step=live,
            )
            if job.rank == 0:
                live.finish(read_records(record)[0])
    code = IN_PART if failed or outcome.refused else DONE
    if job.rank > 0:
        raise typer.Exit(code)
    written = {name: str(path) for name, path in files.items() if path is not None}
    if outcome.refused:
        written.pop("export", None)
    if as_json:
        how = {"epochs": epochs, "seed": seed, "written": written}
        print(json.dumps({**dataclasses.asdict(outcome), "failed": failed, **how}))
    else:
        print(told(outcome, failed).encode(errors="backslashreplace").decode())
        messages.print(f"written: {', '.join(written.values())}")
        messages.print(f"next: acclimate report {record}")
    raise typer.Exit(code)


def _check_outputs(
    files: dict[str, Path | None], inputs: Sequence[str | Path], *, resume: bool, force: bool
) -> None:
    """Refuse outputs that cannot be written, or that would replace what nobody asked to replace."""
    given = {name: path for name, path in files.items() if path is not None}
    out = given["out"]
    goes_on = resume and out.is_file()  # which makes the other files those of an earlier part of this work
    check_outputs(*given.values(), inputs=inputs, force=force or goes_on, resumable=out)
    if resume and not goes_on:
        messages.print(f"nothing to go on from at {out}: this begins anew")


def _check_suffixes(files: dict[str, Path | None]) -> None:
    """Refuse names that say another format than what is written to them."""
    record = files["record"]
    if record is not None and record.suffix != ".json":
        raise OptionError(f"--record must end in .json, got {record}")
    check_export(files["export"])
    check_suffix("--out", files["out"], ".safetensors")
    check_suffix("--predictions", files["predictions"], ".csv")


def _named(place: str, **options: Any) -> Data:
    """The images as the record names them: whoever gets it has no use for passwords and signatures."""
    path = shown(place)
    return Data(name=Path(path.removesuffix("?***")).name or path, path=path, **options)


def _checked_ranks(word: str) -> str:
    known = [name for name in RANKS if name != "alone"]
    if word not in known:
        raise OptionError(unknown("ranks", word, known))
    return word
