"""`acclimate list`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from acclimate.bench import PRESETS
from acclimate.cli.options import Debug, Json
from acclimate.cli.terminal import errors_as_messages
from acclimate.corruptions import CORRUPTIONS
from acclimate.data import LAYOUTS
from acclimate.errors import OptionError, unknown
from acclimate.methods import METHODS, SETTINGS
from acclimate.models.load import model_names

__all__ = ["list_"]


def _methods() -> dict[str, str]:
    return {name: row.summary for name, row in METHODS.items()}


def _corruptions() -> dict[str, str]:
    return {
        name: f"{'validation' if row.validation else 'test'}, {row.kind}: {row.summary}"
        for name, row in CORRUPTIONS.items()
    }


def _presets() -> dict[str, str]:
    return {name: row.summary for name, row in PRESETS.items()}


def _settings() -> dict[str, str]:
    return {name: row.summary for name, row in SETTINGS.items()}


def _layouts() -> dict[str, str]:
    return {name: row.summary for name, row in LAYOUTS.items()}


LISTS: Mapping[str, Callable[[], dict[str, str]]] = {
    "methods": _methods,
    "models": model_names,
    "corruptions": _corruptions,
    "presets": _presets,
    "settings": _settings,
    "layouts": _layouts,
}


def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{', '.join(LISTS)}.")],
    containing: Annotated[
        str, typer.Argument(metavar="TEXT", help="Only names that contain this.", show_default=False)
    ] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what there is by name; +it, +shot and -div can be added to methods."""
    with errors_as_messages(debug):
        if what not in LISTS:
            raise OptionError(unknown("list", what, LISTS))
        rows = {name: summary for name, summary in LISTS[what]().items() if containing in name}
        if not rows:
            raise OptionError(f"none of the {what} contains {containing!r}")
    if as_json:
        print(json.dumps(rows))
        return
    width = max(map(len, rows))
    for name, summary in rows.items():
        print(f"{name:{width}}  {summary}")
