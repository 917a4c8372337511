"""The command line, one file a command: each parses, makes one library call and says how it went.

Exit codes: 0 done, 1 done in part (and what failed), 2 bad input, 130 interrupted with the state saved.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated, Final

import typer

import acclimate
from acclimate.bench.on_ray import OWN_CLUSTER
from acclimate.cli import (
    adapt,
    bench,
    compare,
    corrupt,
    demo,
    doctor,
    fetch,
    figures,
    lists,
    merge,
    predict,
    report,
    train_head,
)
from acclimate.cli.terminal import BAD_INPUT, DONE, messages
from acclimate.errors import masked
from acclimate.labels import OWN

__all__ = ["app", "main", "with_values"]

_RAY_ADDRESS: Final = rf"{OWN_CLUSTER}|local|ray://\S+|[\w.-]+:\d+"

app = typer.Typer(
    name="acclimate",
    help="Adapt a pretrained image classifier to unlabelled data from a shifted distribution.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    demo.demo,
    adapt.adapt,
    predict.predict,
    doctor.doctor,
    corrupt.corrupt,
    fetch.fetch,
    bench.bench,
    compare.compare,
    merge.merge,
    report.report,
):
    app.command()(command)
app.command("figures", help=figures.HELP, no_args_is_help=True)(figures.figures)
app.command("train-head")(train_head.train_head)
app.command("list")(lists.list_)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    if version:
        print(acclimate.__version__)
        raise typer.Exit(DONE)


def with_values(words: list[str]) -> list[str]:
    """``--ray`` and ``--evaluate`` may stand alone, which options of typer cannot.

    >>> with_values(["bench", "--ray", "demo"])
    ['bench', '--ray', 'auto', 'demo']
    >>> with_values(["adapt", "--evaluate", "--json"])
    ['adapt', '--evaluate', 'auto', '--json']
    """
    made = []
    for number, word in enumerate(words, start=1):
        made.append(word)
        following = words[number] if number < len(words) else ""
        if word == "--ray" and not re.fullmatch(_RAY_ADDRESS, following):
            made.append(OWN_CLUSTER)
        if word == "--evaluate" and (not following or following.startswith("-")):
            made.append(OWN)
    return made


def main() -> None:
    """Run the command line; what is wrong with its words is told in one line, as all errors are."""
    try:
        code = app(with_values(sys.argv[1:]), standalone_mode=False)
    except Exception as error:
        say = getattr(error, "format_message", None)  # typer's usage errors, whose class has no public name
        if say is None:
            raise
        if said := say():  # nothing where the help has just been shown
            messages.print(f"error: {masked(said).rstrip('.')} (--help shows what there is)", style="red")
        code = BAD_INPUT
    sys.exit(code or DONE)
