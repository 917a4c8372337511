"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.fast import MEMORY
from acclimate.fast.precision import PRECISIONS
from acclimate.report.sinks import SINKS

__all__ = [
    "Classes",
    "Corruption",
    "Debug",
    "Device",
    "Force",
    "Json",
    "Layout",
    "Log",
    "LogFolder",
    "Memory",
    "Method",
    "Model",
    "Normalize",
    "Precision",
    "Seed",
    "Severity",
    "Size",
    "Split",
    "Statistics",
    "Weights",
]

Model = Annotated[
    str, typer.Option(metavar="NAME", help="Of `acclimate list models`, or package.module:factory.")
]
Weights = Annotated[
    Path | None, typer.Option(help="A file of weights, instead of the published ones.", show_default=False)
]
Method = Annotated[str, typer.Option(metavar="NAME", help="Of `acclimate list methods`.")]
Normalize = Annotated[
    str | None,
    typer.Option(
        metavar="MEAN/STD",
        help="0.5,0.5,0.5/0.2,0.2,0.2, or imagenet, half, none, bytes; by default what the weights say.",
        show_default=False,
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Side to which image files are cropped; by default what the weights say, or 224; 0 leaves them.",
        show_default=False,
    ),
]
Layout = Annotated[str, typer.Option(metavar="NAME", help="Of `acclimate list layouts`.")]
Split = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of VisDA-C or a data set of the hub.", show_default=False)
]
Classes = Annotated[Path | None, typer.Option(help="Names of the outputs, one a line.", show_default=False)]
Corruption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of ImageNet-C or CIFAR-C data.", show_default=False)
]
Severity = Annotated[
    int | None, typer.Option(min=1, max=5, help="Of ImageNet-C or CIFAR-C data.", show_default=False)
]
Device = Annotated[
    str | None, typer.Option(help="Such as cuda or cpu; by default where the model is.", show_default=False)
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"What the network computes in: {', '.join(PRECISIONS)}; auto: the best that the device has.",
        show_default=PRECISIONS[0],
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"Compute early stages a second time instead of keeping them: {', '.join(MEMORY)}; "
        "auto: if a batch would not fit.",
    ),
]
Statistics = Annotated[
    str,
    typer.Option(
        "--ranks",
        metavar="NAME",
        help="Under torchrun, whose batch statistics: together (of all ranks), local (of each).",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Decides all that is random.")]
Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where in the code an error arose.")]
Log = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help=f"Where to watch it: {', '.join(SINKS)}.", show_default=False),
]
LogFolder = Annotated[Path, typer.Option("--log-dir", help="A folder for the files of --log.")]
