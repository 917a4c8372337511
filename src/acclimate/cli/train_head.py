"""`acclimate train-head`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.options import Debug, Device, Force, Layout, Model, Normalize, Seed, Size, Split, Weights
from acclimate.cli.terminal import (
    check_outputs,
    check_resume,
    check_suffix,
    errors_as_messages,
    how_to_resume,
    messages,
    progress_bar,
)
from acclimate.data import Crop, checked_layout, open_data
from acclimate.errors import InputError, OptionError
from acclimate.inputs import trained_crop
from acclimate.models.heads import BOTTLENECK, attach_head
from acclimate.models.load import load_model
from acclimate.normalization import normalization_of
from acclimate.training import Recipe, kept_beside, train

__all__ = ["train_head"]


def train_head(
    model: Model,
    data: Annotated[
        str, typer.Option(metavar="SRC", help="Labelled source images: `acclimate list layouts`.")
    ],
    weights: Weights = None,
    normalize: Normalize = None,
    layout: Layout = "auto",
    split: Split = None,
    size: Size = None,
    out: Annotated[Path, typer.Option(help="Weights of the trained network.")] = Path("head.safetensors"),
    bottleneck: Annotated[int, typer.Option(min=2, help="Width of the bottleneck.")] = BOTTLENECK,
    epochs: Annotated[int, typer.Option(min=1, help="Times to go through the images.")] = 10,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a batch.")] = 64,
    lr: Annotated[float, typer.Option(min=0, help="Learning rate of the head; the rest has a tenth.")] = 1e-2,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was stopped.")] = False,
    force: Force = False,
    device: Device = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Put SHOT's head on a network, and fine-tune it on labelled source images with smooth labels.

    The weights load by the same --model with --weights.
    """
    kept = f": what was trained is in {kept_beside(out)}, and {how_to_resume(force=force)}"
    with errors_as_messages(debug, kept):
        check_resume(resume=resume, force=force)
        check_suffix("--out", out, ".safetensors")
        network = load_model(model, weights)
        checked_layout(data, layout)
        begun = kept_beside(out)
        inputs = [name for name in (data, weights) if name is not None]
        check_outputs(out, inputs=inputs, force=force or (resume and begun.exists()))
        if begun.exists() and not (resume or force):
            raise OptionError(
                f"{begun} is of a training that has not ended: --resume goes on, --force begins anew"
            )
        if resume and not begun.exists():
            messages.print(f"nothing to go on from at {begun}: this begins anew")
        crop = trained_crop(network) if not size else Crop(size)
        larger = crop.resize or int(crop.size * 256 / 224)
        images = open_data(
            data, layout, crop=Crop(larger, larger, crop.interpolation), split=split, training=True
        )
        if images.labels is None:
            raise InputError(f"{data} has no labels: give class folders, or an array with labels")
        for note in images.notes():
            messages.print(f"note: {note}")
        recipe = Recipe(epochs=epochs, batch_size=batch_size, lr=lr, size=crop.size, seed=seed)
        normalization = normalization_of(network, normalize)
        attach_head(network, int(images.labels.max()) + 1, bottleneck, seed=seed)
        with progress_bar("training") as progress:
            train(
                network,
                images,
                out,
                recipe,
                normalize=normalization,
                device=device,
                resume=resume,
                progress=lambda step, total, loss: progress(step, total),
            )
    messages.print(
        f"{out}: {type(network).__name__} with SHOT's head, {int(images.labels.max()) + 1} classes"
    )
