"""`acclimate report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from acclimate.cli.options import Debug, Force
from acclimate.cli.terminal import check_outputs, errors_as_messages, messages
from acclimate.errors import OptionError, counted, unknown
from acclimate.files import whole_file
from acclimate.records import read_records
from acclimate.report.document import METRICS, document, epoch_of
from acclimate.report.formats import FORMATS
from acclimate.report.page import build_page
from acclimate.report.reading import slim

__all__ = ["report"]

_SUFFIXES: Final = {
    ".html": "html", ".htm": "html", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json",
}  # fmt: skip


def report(
    results: Annotated[
        list[str], typer.Argument(metavar="RESULTS", help="Folders, files or addresses of records.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write it.", show_default="report.html; tables to the terminal"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"html, {', '.join(FORMATS)}.",
            show_default="as --out ends, or html",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of tables: accuracy or error.", show_default="accuracy"),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of tables: after-epoch, after-epoch-N or online.",
            show_default="after-epoch",
        ),
    ] = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Show records of a grid or of an adaptation: a page to look at, or tables for a paper."""
    with errors_as_messages(debug):
        chosen = _format(kind, out)
        if chosen == "html" and (metric or protocol):
            raise OptionError("--metric and --protocol are for tables: the page has switches for both")
        epoch = epoch_of(protocol or "after-epoch")
        if metric is not None and metric not in METRICS:
            raise OptionError(unknown("metric", metric, METRICS))
        if out is None and chosen == "html":
            out = Path("report.html")
        records = read_records(*results, keep=slim)
        if (
            out is not None
        ):  # after what is wrong with the records: a name that is mistyped is no reason to force
            check_outputs(out, inputs=results, force=force)
        if chosen == "html":
            text = build_page(records)
        else:
            text = document(records, chosen, epoch=epoch, error=metric == "error")
        if out is None:
            print(text.encode(errors="backslashreplace").decode(), end="")
            return
        with whole_file(out) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
    size = out.stat().st_size / 2**20 if out.is_file() else 0
    about = f", {size:.1f} MiB: open it in a browser" if chosen == "html" else ""
    messages.print(f"{out}: {counted(len(records), 'record')}{about}")


def _format(kind: str | None, out: Path | None) -> str:
    """As the option says, or as the name of the file ends; both must not say different things."""
    known = ("html", *FORMATS)
    if kind is not None and kind not in known:
        raise OptionError(unknown("format", kind, known))
    said = None if out is None else _SUFFIXES.get(out.suffix.lower())
    if kind is None and out is not None and said is None:
        raise OptionError(f"{out} does not say what it is to be: end it in .html, .md, .tex, .csv or .json")
    if kind is not None and said is not None and kind != said:
        raise OptionError(f"--format says {kind}, and {out} says {said}: give one of them")
    return kind or said or "html"
