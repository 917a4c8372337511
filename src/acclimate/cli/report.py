"""`acclimate report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from acclimate.cli.options import Debug
from acclimate.cli.terminal import errors_as_messages, messages
from acclimate.errors import OptionError, unknown
from acclimate.files import check_writable, whole_file
from acclimate.records import read_records
from acclimate.report.document import METRICS, document, epoch_of
from acclimate.report.formats import FORMATS
from acclimate.report.gather import slim
from acclimate.report.page import build_page

__all__ = ["report"]

_SUFFIXES: Final = {
    ".html": "html", ".htm": "html", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json",
}  # fmt: skip


def report(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS", help="Folders or files of records.")],
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
    metric: Annotated[str, typer.Option(metavar="NAME", help="Of tables: accuracy or error.")] = "accuracy",
    protocol: Annotated[
        str, typer.Option(metavar="NAME", help="Of tables: after-epoch, after-epoch-N or online.")
    ] = "after-epoch",
    debug: Debug = False,
) -> None:
    """Show records of a grid or of an adaptation: a page to look at, or tables for a paper."""
    with errors_as_messages(debug):
        chosen = _format(kind, out)
        epoch = epoch_of(protocol)
        if metric not in METRICS:
            raise OptionError(unknown("metric", metric, METRICS))
        if out is None and chosen == "html":
            out = Path("report.html")
        check_writable(out)
        records = read_records(*results, keep=slim)
        if chosen == "html":
            text = build_page(records)
        else:
            text = document(records, chosen, epoch=epoch, error=metric == "error")
        if out is None:
            print(text, end="")
            return
        with whole_file(out) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
    size = out.stat().st_size / 2**20 if out.is_file() else 0
    about = f", {size:.1f} MiB: open it in a browser" if chosen == "html" else ""
    messages.print(f"{out}: {len(records):,} records{about}")


def _format(kind: str | None, out: Path | None) -> str:
    """As the option says, or as the name of the file ends."""
    if kind is None and out is not None:
        if out.suffix.lower() not in _SUFFIXES:
            raise OptionError(
                f"{out} does not say what it is to be: end it in .html, .md, .tex, .csv or .json"
            )
        return _SUFFIXES[out.suffix.lower()]
    known = ("html", *FORMATS)
    if kind is not None and kind not in known:
        raise OptionError(unknown("format", kind, known))
    return kind or "html"
