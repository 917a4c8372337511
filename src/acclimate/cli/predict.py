"""`acclimate predict`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from acclimate.adapter import PREDICTS_BY
from acclimate.cli.options import (
    Classes,
    Corruption,
    Debug,
    Device,
    Force,
    Json,
    Layout,
    Model,
    Normalize,
    Severity,
    Size,
    Split,
    Weights,
)
from acclimate.cli.terminal import (
    DONE,
    IN_PART,
    check_outputs,
    check_suffix,
    class_names,
    errors_as_messages,
    messages,
    progress_bar,
)
from acclimate.data import checked_layout
from acclimate.errors import OptionError, unknown
from acclimate.inputs import open_images
from acclimate.predicting import format_outcome, load_adapted, predict_images

__all__ = ["predict"]


def predict(
    model: Model,
    data: Annotated[
        str,
        typer.Option(metavar="SRC", help="A folder, array or address of images: `acclimate list layouts`."),
    ],
    adapted: Annotated[
        Path, typer.Option(help="What `acclimate adapt` wrote to --out, or to --export.")
    ] = Path("adapted.safetensors"),
    weights: Weights = None,
    statistics: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="target: those that are exported, for any image the same; batch: of the images in a batch.",
        ),
    ] = "target",
    normalize: Normalize = None,
    size: Size = None,
    layout: Layout = "auto",
    corruption: Corruption = None,
    severity: Severity = None,
    split: Split = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 64,
    classes: Classes = None,
    predictions: Annotated[Path, typer.Option(help="A CSV file of the predictions.")] = Path(
        "predictions.csv"
    ),
    force: Force = False,
    device: Device = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict new images with a network that adapted, without adapting it further."""
    with errors_as_messages(debug):
        if statistics not in PREDICTS_BY:
            raise OptionError(unknown("statistics of predictions", statistics, PREDICTS_BY))
        check_suffix("--predictions", predictions, ".csv")
        names = class_names(classes)
        checked_layout(data, layout)
        network = load_adapted(adapted, model, weights, device=device)
        inputs = [name for name in (adapted, data, weights, classes) if name is not None]
        check_outputs(predictions, inputs=inputs, force=force)
        with progress_bar("reading") as progress:
            images, failed = open_images(
                network.network,
                data,
                size=size,
                layout=layout,
                corruption=corruption,
                severity=severity,
                split=split,
                progress=progress,
            )
        outcome = predict_images(
            network,
            images,
            statistics=statistics,
            normalize=normalize,
            batch_size=batch_size,
            classes=names,
            predictions=predictions,
        )
    if as_json:
        written = {"predictions": str(predictions)}
        print(json.dumps({**dataclasses.asdict(outcome), "failed": failed, "written": written}))
    else:
        print(format_outcome(outcome, failed).encode(errors="backslashreplace").decode())
        messages.print(f"written: {predictions}")
    raise typer.Exit(IN_PART if failed else DONE)
