"""`acclimate doctor`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console

from acclimate.cli.options import (
    Corruption,
    Debug,
    Device,
    Json,
    Layout,
    Method,
    Model,
    Normalize,
    Severity,
    Size,
    Weights,
)
from acclimate.cli.terminal import errors_as_messages
from acclimate.doctor import diagnose, diagnosis_tree
from acclimate.inputs import open_images
from acclimate.models.load import load_model
from acclimate.normalization import normalization_of

__all__ = ["doctor"]


def doctor(
    model: Model,
    weights: Weights = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SRC", help="Images, to see whether they fit the network.", show_default=False),
    ] = None,
    layout: Layout = "auto",
    corruption: Corruption = None,
    severity: Severity = None,
    normalize: Normalize = None,
    method: Method = "slr",
    size: Size = None,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="The images are uncorrupted, and like those of the network's training."),
    ] = False,
    device: Device = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Look a network over: what adapts, what is frozen, whether the input fits, what a step costs."""
    with errors_as_messages(debug):
        network = load_model(model, weights)
        images = None
        if data is not None:
            found = open_images(
                network, data, size=size, layout=layout, corruption=corruption, severity=severity
            )
            images = found[0].sample()
        diagnosis = diagnose(
            network,
            method,
            size=size,
            normalize=None if normalize is None else normalization_of(network, normalize),
            images=images,
            clean=clean,
            device=device,
        )
    if as_json:
        print(json.dumps(dataclasses.asdict(diagnosis)))
    else:
        Console(highlight=False, markup=False, soft_wrap=False).print(diagnosis_tree(diagnosis))
