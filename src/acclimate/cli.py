"""The command line: each command parses, makes one library call and says how it went.

Exit codes: 0 done, 1 done in part (and what failed), 2 bad input, 130 interrupted with the state saved.
"""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image
from rich.console import Console

import acclimate
from acclimate.adapting import adapt_images, normalization_of, told
from acclimate.corruptions import CORRUPTIONS, frost_source
from acclimate.corruptions.generate import FORMATS, Outcome, corrupt_dataset
from acclimate.corruptions.sources import read_image
from acclimate.demo.measure import CORRUPTIONS as DEMO_CORRUPTIONS
from acclimate.demo.show import show_demo
from acclimate.demo.summary import summary_figure
from acclimate.doctor import diagnose, diagnosis_tree
from acclimate.methods import METHODS
from acclimate.models.load import load_model
from acclimate.report.contact_sheet import contact_sheet
from acclimate.report.losses import losses_figure
from acclimate.terminal import (
    DONE,
    IN_PART,
    errors_as_messages,
    format_name,
    lines_of,
    messages,
    named_corruptions,
    progress_bar,
    severities_of,
    split_words,
    written,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="acclimate",
    help="Adapt a pretrained image classifier to unlabelled data from a shifted distribution.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
figures = typer.Typer(help="Draw figures.", no_args_is_help=True)
app.add_typer(figures, name="figures")

Debug = Annotated[bool, typer.Option("--debug", help="Show where in the code an error arose.")]
Seed = Annotated[int, typer.Option(min=0, help="Decides all that is random.")]


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    if version:
        print(acclimate.__version__)
        raise typer.Exit(DONE)


@app.command()
def demo(
    corruption: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Names, or all for the fifteen; repeat it, or set commas."),
    ] = [*DEMO_CORRUPTIONS],  # noqa: B006 - typer copies it
    epochs: Annotated[int | None, typer.Option(min=1, help="Times to go through the images.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and one epoch: fifteen seconds.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where to draw the summary.")] = Path("acclimate-demo.png"),
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the accuracies as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """See a network fail on corrupted images, and recover without a label."""
    with errors_as_messages(debug):
        words = ["test" if word == "all" else word for word in split_words(corruption)]
        cells = show_demo(named_corruptions(words), quick=quick, epochs=epochs, seed=seed, console=messages)
        with written(out):
            summary_figure(cells).savefig(out, dpi=110)
    if as_json:
        rows = [
            {"method": c.method, "corruption": c.corruption, "accuracy": c.over_epochs, "seconds": c.seconds}
            for c in cells
        ]
        print(json.dumps(rows))
    messages.print(f"What it looks like: {out}")


@app.command()
def adapt(
    model: Annotated[
        str,
        typer.Option(metavar="NAME", help="demo, torchvision's or timm's name, or package.module:factory."),
    ],
    data: Annotated[
        Path, typer.Option(metavar="SRC", help="A folder of images, or a .npy or .npz file of them.")
    ],
    weights: Annotated[Path | None, typer.Option(help="A file, instead of published weights.")] = None,
    normalize: Annotated[
        str | None,
        typer.Option(metavar="MEAN/STD", help="Such as 0.5,0.5,0.5/0.2,0.2,0.2, imagenet or none."),
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="Of `acclimate list methods`.")] = "slr",
    input_transform: Annotated[bool, typer.Option("--input-transform", help="As +it in the name.")] = False,
    size: Annotated[
        int, typer.Option(min=0, help="Resize and crop a folder's images to this; 0: do not.")
    ] = 224,
    epochs: Annotated[int, typer.Option(min=1, help="Times to go through the images.")] = 5,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a batch.")] = 64,
    classes: Annotated[Path | None, typer.Option(help="Names of the outputs, one a line.")] = None,
    out: Annotated[Path, typer.Option(help="What adapted, to go on or to load it.")] = Path(
        "adapted.safetensors"
    ),
    export: Annotated[
        Path | None, typer.Option(help="Weights of the adapted network, in its stock form.")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="A CSV file of predictions before and after.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from --out.")] = False,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Adapt a network to a folder of unlabelled images, and say what changed."""
    kept = f": what was adapted is in {out}, and the same command with --resume goes on"
    with errors_as_messages(debug, kept):
        network = load_model(model, weights)
        outcome = adapt_images(
            network,
            data,
            method=f"{method}+it" if input_transform and "+it" not in method else method,
            normalize=normalization_of(network, normalize),
            size=size or None,
            epochs=epochs,
            batch_size=batch_size,
            classes=None if classes is None else lines_of(classes),
            seed=seed,
            out=out,
            export=export,
            predictions=predictions,
            resume=resume,
        )
    if as_json:
        print(json.dumps(dataclasses.asdict(outcome)))
    else:
        print(told(outcome))
    raise typer.Exit(IN_PART if outcome.failed else DONE)


@app.command()
def doctor(
    model: Annotated[
        str,
        typer.Option(metavar="NAME", help="demo, torchvision's or timm's name, or package.module:factory."),
    ],
    weights: Annotated[Path | None, typer.Option(help="A file, instead of published weights.")] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="Of `acclimate list methods`.")] = "slr",
    size: Annotated[int, typer.Option(min=8, help="Side of the images in pixels.")] = 224,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Look a network over: what adapts, what is frozen, what a step costs."""
    with errors_as_messages(debug):
        diagnosis = diagnose(load_model(model, weights), method, size=size)
    if as_json:
        print(json.dumps(dataclasses.asdict(diagnosis)))
    else:
        Console(highlight=False, markup=False).print(diagnosis_tree(diagnosis))


@app.command()
def corrupt(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A folder of images, or a .npy or .npz file of images.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A folder for the corrupted images.")],
    corruption: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="all, test, validation, or names separated by commas."),
    ] = ["all"],  # noqa: B006 - typer copies it
    severity: Annotated[
        list[str],
        typer.Option(metavar="SEVERITY", help="1 to 5, or ranges such as 2-4, separated by commas."),
    ] = ["1-5"],  # noqa: B006
    size: Annotated[
        int,
        typer.Option(min=0, help="Resize and crop a folder's images to this, as ImageNet's; 0: do not."),
    ] = 224,
    format: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option(help=f"{', '.join(FORMATS)}; by default jpeg for a folder, npy for an array."),
    ] = None,
    seed: Seed = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one per processor.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Remove what is there of it, and make it anew.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Corrupt a folder of images (to an ImageNet-C tree) or an array of images (to CIFAR-C arrays).

    Run it again to go on after an interrupt: what is there is not made again.
    """
    kept = ": what was done is kept, and the same command (without --force) goes on with the rest"
    with errors_as_messages(debug, kept), progress_bar("corrupting") as progress:
        outcome = corrupt_dataset(
            source,
            target,
            names=named_corruptions(corruption),
            severities=severities_of(severity),
            size=size or None,
            format=None if format is None else format_name(format),
            seed=seed,
            workers=workers,
            force=force,
            progress=progress,
        )
    _tell(outcome, target, as_json)
    raise typer.Exit(IN_PART if outcome.failed else DONE)


@figures.command("corruptions")
def figures_corruptions(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image.")],
    out: Annotated[Path, typer.Option(help="Where to draw it.")] = Path("corruptions.png"),
    size: Annotated[int, typer.Option(min=8, help="Crop the image to this, as ImageNet's.")] = 224,
    tile: Annotated[int | None, typer.Option(min=8, help="Width at which each image is shown.")] = None,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Draw a contact sheet: nineteen corruptions, five severities."""
    with errors_as_messages(debug):
        sheet = contact_sheet(Image.fromarray(read_image(image, size)), seed=seed, tile=tile)
        with written(out):
            sheet.save(out)
    messages.print(f"{out}: {sheet.width} by {sheet.height} pixels, frost from {frost_source()}")


@figures.command("losses")
def figures_losses(
    out: Annotated[Path, typer.Option(help="Where to draw it: .png, .pdf or .svg.")] = Path("losses.png"),
    debug: Debug = False,
) -> None:
    """Draw the four losses and their gradients against confidence, for two classes."""
    with errors_as_messages(debug), written(out):
        losses_figure().savefig(out, dpi=150)
    messages.print(f"{out}")


class Listed(str, Enum):
    """What can be listed."""

    methods = "methods"
    corruptions = "corruptions"


@app.command("list")
def list_(
    what: Annotated[Listed, typer.Argument(metavar="WHAT", help="methods or corruptions.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List methods (to which +it, +shot and -div can be added) or corruptions, with what each is."""
    if what == Listed.methods:
        rows = {name: row.summary for name, row in METHODS.items()}
    else:
        rows = {
            name: f"{'validation' if row.validation else 'test'}, {row.kind}: {row.summary}"
            for name, row in CORRUPTIONS.items()
        }
    if as_json:
        print(json.dumps(rows))
        return
    width = max(map(len, rows))
    for name, summary in rows.items():
        print(f"{name:{width}}  {summary}")


def main() -> None:
    """Run the command line."""
    app()


def _tell(outcome: Outcome, target: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**dataclasses.asdict(outcome), "target": str(target)}))
    messages.print(
        f"{target}: {outcome.made:,} corrupted images made, {outcome.present:,} were there, "
        f"{len(outcome.failed):,} images left out"
    )
    if outcome.ignored:
        messages.print(f"ignored: files with {', '.join(outcome.ignored)}, which are not taken for images")
    for name, reason in sorted(outcome.failed.items()):
        told = reason if name in reason else f"{name}: {reason}"
        printable = told.encode(errors="backslashreplace").decode()
        messages.print(f"left out: {printable}", style="red")
