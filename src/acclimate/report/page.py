"""One page that needs nothing else: tables that any browser shows, and charts drawn from what lies in it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from importlib import resources

from acclimate.errors import counted
from acclimate.records import Record
from acclimate.report.document import (
    AgainstPaper,
    adaptations_table,
    against_paper,
    alarms_of,
    alarms_table,
    failures_table,
)
from acclimate.report.formats import as_html, escaped
from acclimate.report.gallery import gallery_section
from acclimate.report.gather import Gathered, Series, gather
from acclimate.report.glance import Sentence, collapses, glance
from acclimate.report.headline import headline_tables
from acclimate.report.page_data import DRAWN, page_data
from acclimate.report.protocol import CELLS, cells_file, commands, facts_table, hyperparameters
from acclimate.report.reading import data_of, network_of, spoken
from acclimate.report.tables import Entry, Row, Table

__all__ = ["build_page"]

_FAILURES = 50  # that are listed


def build_page(records: Sequence[Record]) -> str:
    """A whole HTML document of records of any grid or adaptation.

    It holds all that it shows, plotly too, and its content security policy forbids it to ask for anything.
    """
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # here: it takes a moment

    found = gather(records)
    compared = against_paper(found)
    sections = [
        _section("glance", "At a glance", _glance(glance(found, compared.verdicts))),
        *_measured(found),
        *_unlabelled(found),
        *gallery_section(found),
        *_against_paper(compared),
        *_failures(found),
        _section("protocol", "Protocol", _protocol(found)),
    ]
    packed = gzip.compress(
        json.dumps(page_data(found), separators=(",", ":"), allow_nan=False).encode(), mtime=0
    )
    return _asset("page.html").format(
        title=escaped(_title(found)),
        count=_count(records, found),
        style=_asset("page.css"),
        sections="\n".join(sections),
        data=base64.b64encode(packed).decode(),
        script=_asset("page.js"),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
    )


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _title(found: Gathered) -> str:
    networks = [*found.networks, *(network_of(record) for record in found.unlabelled)]
    data = [series.place.data for series in found.series]
    data += [data_of(record) for record in found.unlabelled]
    sides = [_few(list(dict.fromkeys(names))) for names in (networks, data)]
    return f"{sides[0]} on {sides[1]}" if networks else "no results"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return " and ".join(names[:2]) + more if len(names) < 3 else f"{names[0]}, {names[1]}{more}"


def _count(records: Sequence[Record], found: Gathered) -> str:
    methods = {series.variant.method for series in found.series}
    methods |= {record["cell"]["method"] for record in found.unlabelled}
    seeds = {seed for series in found.series for seed in series.runs}
    parts = {
        "record": len(records),
        "network": len({*found.networks, *(network_of(record) for record in found.unlabelled)}),
        "method": len(methods),
        "corruption": len(found.corruptions),
        "seed": len(seeds),
        "failure": len(found.failed),
    }
    return " · ".join(counted(n, name) for name, n in parts.items() if n)


def _section(identity: str, title: str, content: str, *, script_only: bool = False) -> str:
    kind = ' class="script"' if script_only else ""
    return f'<section id="{identity}"{kind}><h2>{escaped(title)}</h2>\n{content}\n</section>'


def _glance(sentences: Sequence[Sentence]) -> str:
    items = (f'<li class="is-{item.kind}">{escaped(item.text)}</li>' for item in sentences)
    return f'<ul class="glance">{"".join(items)}</ul>'


def _measured(found: Gathered) -> Iterator[str]:
    """All that needs labels; the headline's tables are there with and without a script."""
    if not found.series:
        return
    static = "\n".join(as_html(table) for table in headline_tables(found))
    yield _section("results", "Results", f'<div id="headline"></div><div id="static">{static}</div>')
    yield _section(
        "curves", "Over epochs and steps", '<div class="charts" id="charts-curves"></div>', script_only=True
    )
    yield _section("models", "By network", '<div class="charts" id="charts-models"></div>', script_only=True)
    if any(not series.variant.whole for series in found.series):
        yield _section(
            "subsets", "Adapted to a part", '<div class="charts" id="charts-subsets"></div>', script_only=True
        )
    if any(name == "kappa" for series in found.series for name, _ in series.variant.changes):
        yield _section(
            "kappa", "Regulariser", '<div class="charts" id="charts-kappa"></div>', script_only=True
        )
    fallen = collapses(found)
    content = '<div class="charts script" id="charts-closer"></div>' + (_collapsed(fallen) if fallen else "")
    yield _section("closer", "Predicted classes and calibration", content, script_only=not fallen)


def _collapsed(fallen: Sequence[tuple[Series, float]]) -> str:
    rows = []
    for series, even in fallen[:_FAILURES]:
        place = series.place
        where = f"{place.network} on {place.data} {spoken(place.corruption)} {place.severity or ''}".strip()
        rows.append(Row(series.variant.label, (where, Entry(100 * even, digits=0))))
    note = "Entropy of the predicted classes below half of its largest value, at worst over seeds."
    heads = ("method", "where", "entropy, % of the largest")
    return as_html(Table("Collapsed", heads, tuple(rows), note=note))


def _unlabelled(found: Gathered) -> Iterator[str]:
    if found.unlabelled:
        content = '<div class="charts script" id="charts-unlabelled"></div>'
        if len(found.unlabelled) > DRAWN:
            content += f'<p class="note">Charts of the first {DRAWN}.</p>'
        yield _section("adaptations", "Adaptations", as_html(adaptations_table(found.unlabelled)) + content)


def _against_paper(compared: AgainstPaper) -> Iterator[str]:
    tables = [
        as_html(table, "claims" if table.heads[0].startswith("claim") else "") for table in compared.tables
    ]
    if tables:
        yield _section("paper", "Against the paper", "\n".join(tables))


def _failures(found: Gathered) -> Iterator[str]:
    if found.failed:
        yield _section("failures", "Failures", as_html(failures_table(found.failed, _FAILURES)))
    if alarms_of(found.records):
        yield _section("alarms", "Alarms", as_html(alarms_table(found.records, _FAILURES)))


def _protocol(found: Gathered) -> str:
    shown = "\n".join(escaped(command) for command in commands(found))
    offer = ""
    if found.series or found.failed:
        link = f'<a download="{CELLS}" href="{cells_file(found)}">{CELLS}</a>'
        offer = f"<p>Every cell of this page, as <code>acclimate bench</code> takes it: {link}</p>"
    methods = f"<details><summary>Hyperparameters</summary>{as_html(hyperparameters(found))}</details>"
    said = (
        "Online: the logits of the adapting pass, each from before its update. After epoch k: a separate "
        "pass. Accuracies are only comparable within one protocol. ± is the standard deviation over seeds."
    )
    again = f"<h3>To run it again</h3><pre>{shown}</pre>{offer}"
    return f"<p>{said}</p>{again}{as_html(facts_table(found))}{methods}"
