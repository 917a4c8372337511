"""The table that is looked at first: methods by corruptions, in the paper's form."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from acclimate.bench.spec import ORACLE
from acclimate.corruptions import CORRUPTIONS, VALIDATION_NAMES
from acclimate.report.gather import LAST, ONLINE, Gathered, Series, spoken
from acclimate.report.tables import Entry, Row, Table, bold_best

__all__ = ["entry", "headline_tables", "mean_entry", "pass_name"]


def headline_tables(found: Gathered, *, epoch: int = LAST, error: bool = False) -> list[Table]:
    """One for each network, data, severity and set of corruptions, and one for data without any.

    Test and validation corruptions are not mixed: hyperparameters are chosen on the latter.
    """
    groups: dict[tuple[str, str, int, bool], list[Series]] = {}
    for series in found.series:
        if series.variant.plain:
            place = series.place
            data = place.data if place.corruption else ""
            validation = place.corruption in VALIDATION_NAMES
            groups.setdefault((place.network, data, place.severity, validation), []).append(series)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], not item[0][1], *item[0][1:]))
    return [_table(own, *key, epoch=epoch, error=error) for key, own in ordered]


def _table(
    own: list[Series], network: str, data: str, severity: int, validation: bool, *, epoch: int, error: bool
) -> Table:
    corrupted = bool(data)
    columns = list(dict.fromkeys(s.place.corruption if corrupted else s.place.data for s in own))
    if corrupted:
        columns.sort(key=list(CORRUPTIONS).index)
    cells: dict[str, dict[str, Series]] = {}
    for series in own:
        column = series.place.corruption if corrupted else series.place.data
        cells.setdefault(series.variant.label, {})[column] = series
    source = next((row for row in cells.values() if _method(row) == "source"), {})
    rows = []
    for label, by_column in cells.items():
        figures = [entry(by_column.get(column), epoch, error) for column in columns]
        if corrupted:
            figures = [*_means(by_column, source, columns, epoch, error), *figures]
        rows.append(Row(label, tuple(figures), dim=_method(by_column) == ORACLE))
    competing = [x for x in range(len(columns) + 2 * corrupted) if not (corrupted and x == 1)]
    kind = "validation" if validation else "test"
    where = f"{data}, {kind} corruptions at severity {severity}" if corrupted else "data without corruptions"
    what = "error" if error else "accuracy"
    return Table(
        title=f"{network} on {where}: {what} in % {pass_name(epoch)}",
        heads=("method", *(("mean", "gain") if corrupted else ()), *map(spoken, columns)),
        rows=bold_best(rows, columns=competing, lowest=error),
        keys={
            "network": network,
            "data": data,
            "severity": severity or "",
            "corruptions": kind if corrupted else "",
            "protocol": pass_name(epoch),
            "metric": what,
        },
    )


def _method(row: dict[str, Series]) -> str:
    return next(iter(row.values())).variant.method


def pass_name(epoch: int) -> str:
    """As the protocol box says it."""
    if epoch == ONLINE:
        return "online"
    return "after the last epoch" if epoch == LAST else f"after epoch {epoch}"


def entry(series: Series | None, epoch: int = LAST, error: bool = False) -> Entry | None:
    """Mean and standard deviation over seeds."""
    values = [] if series is None else list(series.accuracies(epoch).values())
    return _entry([100 - value for value in values] if error else values)


def _entry(values: Sequence[float]) -> Entry | None:
    if not values:
        return None
    return Entry(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def mean_entry(many: Sequence[Series | None], epoch: int = LAST, error: bool = False) -> Entry | None:
    """The mean over places, only if all of them are there; its spread is that of the seeds all have."""
    each = [{} if series is None else series.accuracies(epoch) for series in many]
    if not each or not all(each):
        return None
    value = statistics.fmean(statistics.fmean(own.values()) for own in each)
    seeds = set.intersection(*(set(own) for own in each))
    means = [statistics.fmean(own[seed] for own in each) for seed in sorted(seeds)]
    return Entry(100 - value if error else value, statistics.stdev(means) if len(means) > 1 else None)


def _means(
    row: dict[str, Series], source: dict[str, Series], columns: Sequence[str], epoch: int, error: bool
) -> list[Entry | None]:
    mean = mean_entry([row.get(column) for column in columns], epoch, error)
    base = mean_entry([source.get(column) for column in columns], epoch, error)
    gain = None if mean is None or base is None else Entry(mean.value - base.value, sign=True)
    return [mean, gain]
