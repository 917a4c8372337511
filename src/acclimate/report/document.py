"""All tables of records as one text: the results, the published figures beside them, the paper's claims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from acclimate.bench.compare import Difference, Verdict, against_published, judge
from acclimate.errors import InputError, OptionError
from acclimate.records import Record
from acclimate.report.formats import FORMATS
from acclimate.report.gather import LAST, ONLINE, Gathered, gather
from acclimate.report.headline import headline_tables, pass_name
from acclimate.report.reading import data_of, network_of, reason_of, shift_of, spoken
from acclimate.report.tables import Entry, Row, Table

__all__ = [
    "METRICS",
    "AgainstPaper",
    "adaptations_table",
    "against_paper",
    "alarms_of",
    "alarms_table",
    "document",
    "epoch_of",
    "failures_table",
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
    learning = [series for series in found.series if not series.fixed]
    if learning and not any(series.evaluations(epoch) for series in learning):
        raise InputError(f"no run was measured {pass_name(epoch)}: choose another protocol")
    tables = headline_tables(found, epoch=epoch, error=error)
    if found.unlabelled:
        tables.append(adaptations_table(found.unlabelled))
    if not tables:
        raise InputError("none of the records has a result: all cells failed")
    if found.failed:
        tables.append(failures_table(found.failed))
    if alarms_of(found.records):
        tables.append(alarms_table(found.records))
    return FORMATS[kind]([*tables, *against_paper(found).tables])


@dataclass(frozen=True)
class AgainstPaper:
    """Records held against the paper."""

    verdicts: list[Verdict]
    differences: list[Difference]
    caution: str = ""
    """Why they were not, where they are of experiments that have no common figures."""

    @property
    def tables(self) -> list[Table]:
        found = _published_tables(self.differences)
        if any(verdict.holds is not None for verdict in self.verdicts):
            found.append(_claims_table(self.verdicts))
        if self.caution:
            row = Row("not compared", (self.caution,))
            found.append(Table("Against the paper", ("", "why"), (row,)))
        return found


def against_paper(found: Gathered) -> AgainstPaper:
    """Figure by figure and claim by claim, of each record once."""
    try:
        return AgainstPaper(judge(found.records), against_published(found.records))
    except InputError as error:
        return AgainstPaper([], [], str(error))


def _claims_table(verdicts: Sequence[Verdict]) -> Table:
    rows = tuple(Row(verdict.claim, (verdict.word, verdict.figures)) for verdict in verdicts)
    heads = ("claim of the paper", "holds here", "figures: accuracy in %, means over corruptions and seeds")
    return Table("Claim by claim", heads, rows)


def _published_tables(differences: Sequence[Difference]) -> list[Table]:
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
    where = spoken(item.corruption) or "all"
    keys = {"method": item.method, "epoch": item.epoch}
    return Row(where, (item.method, str(item.epoch), *entries, change), keys=keys)


def failures_table(records: Sequence[Record], most: int | None = None) -> Table:
    """Cells that failed, and why."""
    rows = tuple(
        Row(
            f"{network_of(record)} {record['cell']['method']}",
            (shift_of(record), str(record["cell"]["seed"]), reason_of(record)),
        )
        for record in records[:most]
    )
    note = f"And {len(records) - len(rows):,} more." if len(rows) < len(records) else ""
    return Table("Cells that failed", ("cell", "data", "seed", "reason"), rows, note=note)


def alarms_of(records: Sequence[Record]) -> list[tuple[Record, dict[str, Any]]]:
    """What the guard said, run by run."""
    return [(record, alarm) for record in records for alarm in record.get("result", {}).get("alarms", ())]


def alarms_table(records: Sequence[Record], most: int | None = None) -> Table:
    """What the guard said and did."""
    found = alarms_of(records)
    rows = tuple(
        Row(
            f"{network_of(record)} {record['cell']['method']}",
            (shift_of(record), str(record["cell"]["seed"]), alarm["signal"], alarm["message"]),
        )
        for record, alarm in found[:most]
    )
    note = f"And {len(found) - len(rows):,} more." if len(rows) < len(found) else ""
    return Table("Alarms of the guard", ("run", "data", "seed", "signal", "what happened"), rows, note=note)


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
        f"{network_of(record)} on {data_of(record)}",
        (
            record["cell"]["method"],
            Entry(images, digits=0),
            Entry(100 * result["changed"] / images, digits=1),
            *(None if side["confidence"] is None else Entry(side["confidence"], digits=3) for side in sides),
            *(Entry(sum(count > 0 for count in side["histogram"]), digits=0) for side in sides),
        ),
        keys={"method": record["cell"]["method"], "seed": record["cell"]["seed"]},
    )
