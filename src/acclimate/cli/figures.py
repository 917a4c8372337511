"""`acclimate figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from acclimate.cli.options import Debug, Force
from acclimate.cli.terminal import errors_as_messages, messages, written
from acclimate.corruptions import frost_source
from acclimate.errors import OptionError
from acclimate.report.choose import Choice
from acclimate.report.figures import FIGURES, Request, kind_of, save

__all__ = ["HELP", "figures"]

HELP = "Draw a figure or table of the paper from your own records.\n\n" + "\n\n".join(
    f"{name}: {kind.summary}." for name, kind in FIGURES.items()
)


def figures(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of those above.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RESULTS",
            help="Folders or files of records; an image for corruptions.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to: .pdf, .png or .svg, a table also .tex, .md, .csv or .json.",
            show_default="NAME.pdf",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The network, of several.")] = None,
    data: Annotated[str | None, typer.Option(metavar="NAME", help="The data set, of several.")] = None,
    severity: Annotated[int | None, typer.Option(min=1, max=5, help="The severity, of several.")] = None,
    size: Annotated[
        int | None, typer.Option(min=8, help="Crop the image to this, as ImageNet's.", show_default="224")
    ] = None,
    tile: Annotated[int | None, typer.Option(min=8, help="Width at which each image is shown.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the corruptions.", show_default="0")] = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Draw a figure or table; what there is stands in HELP."""
    paths = tuple(sources or ())
    asked = {"model": model, "data": data, "severity": severity, "size": size, "tile": tile, "seed": seed}
    with errors_as_messages(debug):
        kind = kind_of(name)
        for option in (word for word, value in asked.items() if value is not None):
            if option not in kind.options:
                raise OptionError(f"{name} has no --{option}")
        kind.check(name, paths)
        target = out or Path(f"{name}{kind.suffixes[0]}")
        request = Request(
            paths,
            Choice(model, data, severity),
            size=224 if size is None else size,
            tile=tile,
            seed=seed or 0,
        )
        with written(target, kind.suffixes, inputs=paths, force=force) as part:
            made = kind.make(request)
            save(made, part)
    told = ""
    if isinstance(made, Image.Image):
        told = f": {made.width} by {made.height} pixels, frost from {frost_source()}"
    messages.print(f"{target}{told}")
