"""`acclimate figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from acclimate.cli.options import Debug, Seed
from acclimate.cli.terminal import errors_as_messages, messages, written
from acclimate.corruptions import frost_source
from acclimate.data.pictures import read_image
from acclimate.report.contact_sheet import contact_sheet
from acclimate.report.losses import losses_figure

__all__ = ["app"]

app = typer.Typer(help="Draw figures.", no_args_is_help=True)


@app.command("corruptions")
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
        with written(out) as part:
            sheet.save(part)
    messages.print(f"{out}: {sheet.width} by {sheet.height} pixels, frost from {frost_source()}")


@app.command("losses")
def figures_losses(
    out: Annotated[Path, typer.Option(help="Where to draw it: .png, .pdf or .svg.")] = Path("losses.png"),
    debug: Debug = False,
) -> None:
    """Draw the four losses and their gradients against confidence, for two classes."""
    with errors_as_messages(debug), written(out) as part:
        losses_figure().savefig(part, dpi=150)
    messages.print(f"{out}")
