"""`acclimate adapt`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from acclimate.adapting import adapt_images, open_images, told
from acclimate.cli.options import Debug, Device, Force, Json, Method, Model, Normalize, Seed, Weights
from acclimate.cli.terminal import DONE, IN_PART, errors_as_messages, lines_of
from acclimate.errors import OptionError
from acclimate.files import check_writable
from acclimate.models.load import load_model
from acclimate.normalization import normalization_of

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
        str, typer.Option(metavar="NAME", help="Of `acclimate list presets`; auto: by the classes.")
    ] = "auto",
    size: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Crop a folder's images to this; by default what the weights say, or 224; 0: do not.",
            show_default=False,
        ),
    ] = None,
    layout: Annotated[str, typer.Option(metavar="NAME", help="Of `acclimate list layouts`.")] = "auto",
    corruption: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of ImageNet-C or CIFAR-C data.", show_default=False)
    ] = None,
    severity: Annotated[
        int | None, typer.Option(min=1, max=5, help="Of ImageNet-C or CIFAR-C data.", show_default=False)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of VisDA-C or a data set of the hub.", show_default=False),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times to go through the images.")] = 5,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a batch.")] = 64,
    classes: Annotated[
        Path | None, typer.Option(help="Names of the outputs, one a line.", show_default=False)
    ] = None,
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
    resume: Annotated[bool, typer.Option("--resume", help="Go on from --out.")] = False,
    force: Force = False,
    device: Device = None,
    seed: Seed = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Adapt a network to a folder of unlabelled images, and say what changed."""
    kept = f": what was adapted is in {out}, and the same command with --resume goes on"
    with errors_as_messages(debug, kept):
        check_writable(out, export, predictions)
        if out.exists() and not (resume or force):
            raise OptionError(
                f"{out} is there: --resume goes on from it, --force begins anew and replaces it"
            )
        network = load_model(model, weights)
        images, failed = open_images(
            network,
            data,
            size=size,
            layout=layout,
            corruption=corruption,
            severity=severity,
            split=split,
        )
        outcome = adapt_images(
            network,
            images,
            method=f"{method}+it" if input_transform and "+it" not in method else method,
            normalize=normalization_of(network, normalize),
            epochs=epochs,
            batch_size=batch_size,
            classes=None if classes is None else lines_of(classes),
            setting=setting,
            device=device,
            seed=seed,
            out=out,
            export=export,
            predictions=predictions,
            resume=resume,
        )
    if as_json:
        print(json.dumps({**dataclasses.asdict(outcome), "failed": failed}))
    else:
        print(told(outcome, failed))
    raise typer.Exit(IN_PART if failed else DONE)
