"""All tables of records as one text: the results, the published figures beside them, the paper's claims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from acclimate.bench.compare import Difference, Verdict, against_published, judge
from acclimate.errors import InputError, OptionError
from acclimate.records import Record
from acclimate.report.formats import FORMATS
from acclimate.report.gather import LAST, ONLINE, gather, network_of, spoken
from acclimate.report.headline import headline_tables
from acclimate.report.tables import Entry, Row, Table

__all__ = [
    "METRICS",
    "adaptations_table",
    "claims_table",
    "document",
    "epoch_of",
    "judged",
    "published_tables",
]

METRICS: Final = ("accuracy", "error")


def epoch_of(protocol: str) -> int:
    """Which pass a protocol means: ``online``, ``after-epoch`` (the last) or ``after-epoch-N``."""
    match = re.fullmatch(r"online|after-epoch(?:-([1-9]\d*))?", protocol)
    if match is None:
        raise OptionError(f"protocol must be online, after-epoch or after-epoch-N, got {protocol!r}")
    return ONLINE if protocol == "online" else int(match[1] or LAST)


def document(records: Sequence[Record], kind: str, *, epoch: int = LAST, error: bool = False) -> str:
    """In one of `FORMATS`."""
    found = gather(records)
    verdicts, _ = judged(records)
    tables = [
        *headline_tables(found, epoch=epoch, error=error),
        *([adaptations_table(found.unlabelled)] if found.unlabelled else []),
        *published_tables(against_published(records)),
        *([claims_table(verdicts)] if any(verdict.holds is not None for verdict in verdicts) else []),
    ]
    if not tables:
        raise InputError("none of the records has a result: all cells failed")
    return FORMATS[kind](tables)


def judged(records: Sequence[Record]) -> tuple[list[Verdict], str]:
    """Claims; where records of different experiments cannot be judged together, why."""
    try:
        return judge(records), ""
    except InputError as error:
        return [], str(error)


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    rows = tuple(Row(verdict.claim, (verdict.word, verdict.figures)) for verdict in verdicts)
    heads = ("claim of the paper", "holds here", "figures: accuracy in %, means over corruptions and seeds")
    return Table("Claim by claim", heads, rows)


def published_tables(differences: Sequence[Difference]) -> list[Table]:
    """Measured and published side by side, a table for each of the paper's."""
    heads = ("corruption", "method", "epoch", "published", "measured", "difference")
    return [
        Table(
            f"Published figures: {spoken(name)}",
            heads,
            tuple(_published_row(item) for item in differences if item.table == name),
        )
        for name in dict.fromkeys(item.table for item in differences)
    ]


def _published_row(item: Difference) -> Row:
    digits = 3 if item.published < 1 else 2
    entries = [Entry(value, digits=digits) for value in (item.published, item.measured)]
    change = Entry(item.measured - item.published, digits=digits, sign=True)
    return Row(spoken(item.corruption) or "all", (item.method, str(item.epoch), *entries, change))


def adaptations_table(records: Sequence[Record]) -> Table:
    """Of images without labels: what changed."""
    heads = (
        "adaptation", "method", "images", "predictions changed, %", "confidence before", "confidence after",
        "classes predicted before", "classes predicted after",
    )  # fmt: skip
    return Table("Adaptations to images without labels", heads, tuple(map(_adaptation, records)))


def _adaptation(record: Record) -> Row:
    result, images = record["result"], record["spec"]["images"]
    sides = (result["before"], result["after_epoch"][max(result["after_epoch"], key=int)])
    return Row(
        f"{network_of(record)} on {record['cell']['data']['name']}",
        (
            record["cell"]["method"],
            Entry(images, digits=0),
            Entry(100 * result["changed"] / images, digits=1),
            *(Entry(side["confidence"], digits=3) for side in sides),
            *(Entry(sum(count > 0 for count in side["histogram"]), digits=0) for side in sides),
        ),
    )
