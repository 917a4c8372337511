"""The table that is looked at first: methods by corruptions, in the paper's form."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from acclimate.bench.spec import ORACLE
from acclimate.chance import estimate
from acclimate.corruptions import CORRUPTIONS, VALIDATION_NAMES
from acclimate.report.gather import LAST, ONLINE, Gathered, Place, Series
from acclimate.report.reading import spoken
from acclimate.report.tables import Entry, Row, Table, bold_best, mean_of

__all__ = ["BY_CLASS", "NOTE", "entry", "gain_entry", "headline_tables", "mean_entry", "pass_name"]


NOTE = (
    "± is the standard deviation over seeds. Behind or below it stands the 95% interval: of the images it is "
    "Wilson's, as if the same images stood behind every figure of a mean; of several seeds also Student's. "
    "Bold is the {} of a column; ≈ marks it and what is within chance of it, and a gain within chance of "
    "none: by Newcombe's interval of the difference of the two, as if of different images, which is cautious."
)
"""Below a table of shares, with ``highest`` or ``lowest``."""
BY_CLASS = "Accuracy is the mean over classes, of which no interval is known."
"""Below a table of means over classes."""
_KINDS = ("", "other hyperparameters", "adapted to a part")


@dataclass(frozen=True)
class _Group:
    """What stands in one table."""

    network: str
    data: str
    corruptions: str
    """``test``, ``validation``, or nothing where the data have no corruption."""
    severity: int
    kind: str


def headline_tables(found: Gathered, *, epoch: int = LAST, error: bool = False) -> list[Table]:
    """One for each network, data, severity and set of corruptions; variants of methods have their own.

    Test and validation corruptions are not mixed: hyperparameters are chosen on the latter.
    """
    groups: dict[_Group, list[Series]] = {}
    for series in found.series:
        groups.setdefault(_group(series), []).append(series)
    source = {series.place: series for series in found.series if series.variant.method == "source"}
    tables = [_table(own, group, source, epoch, error) for group, own in sorted(groups.items(), key=_order)]
    return [table for table in tables if table.rows]


def _group(series: Series) -> _Group:
    place, variant = series.place, series.variant
    which = "validation" if place.corruption in VALIDATION_NAMES else "test"
    kind = _KINDS[0] if variant.plain else _KINDS[1] if variant.whole else _KINDS[2]
    return _Group(place.network, place.data, which if place.corruption else "", place.severity, kind)


def _order(item: tuple[_Group, list[Series]]) -> tuple[object, ...]:
    group = item[0]
    return (_KINDS.index(group.kind), group.network, not group.corruptions, group.data, *_shift(group))


def _shift(group: _Group) -> tuple[object, ...]:
    return group.corruptions, group.severity


def _table(
    own: Sequence[Series], group: _Group, source: Mapping[Place, Series], epoch: int, error: bool
) -> Table:
    order = ["", *CORRUPTIONS]
    places = dict.fromkeys(series.place for series in own)
    known = {place: place.corruption in order for place in places}
    columns = sorted(places, key=lambda p: order.index(p.corruption) if known[p] else len(order))
    cells: dict[str, dict[Place, Series]] = {}
    for series in own:
        cells.setdefault(series.variant.label, {})[series.place] = series
    base = mean_entry([source.get(place) for place in columns], epoch, error)
    rows = []
    for label, row in cells.items():
        figures = [entry(row.get(place), epoch, error) for place in columns]
        mean = mean_entry([row.get(place) for place in columns], epoch, error)
        gain = gain_entry(mean, base, sure=_method(row) == "source")
        first = (mean, gain) if group.corruptions else (gain,)
        if any(figures):
            rows.append(Row(label, (*first, *figures), dim=_method(row) == ORACLE))
    means = ("mean", "gain") if group.corruptions else ("gain",)
    competing = [x for x in range(len(means) + len(columns)) if x != len(means) - 1]
    what = "error" if error else "accuracy"
    heads = [spoken(place.corruption) or what for place in columns]
    return Table(
        title=f"{_where(group)}: {what} in % {pass_name(epoch)}",
        heads=("method", *means, *heads),
        rows=bold_best(rows, columns=competing, lowest=error),
        note=BY_CLASS if own[0].images is None else NOTE.format("lowest" if error else "highest"),
        keys={
            "network": group.network,
            "data": group.data,
            "severity": group.severity or "",
            "corruptions": group.corruptions,
            "protocol": pass_name(epoch),
            "metric": what,
        },
    )


def _where(group: _Group) -> str:
    shift = f", {group.corruptions} corruptions at severity {group.severity}" if group.corruptions else ""
    kind = f", {group.kind}" if group.kind else ""
    return f"{group.network} on {group.data}{shift}{kind}"


def _method(row: Mapping[Place, Series]) -> str:
    return next(iter(row.values())).variant.method


def pass_name(epoch: int) -> str:
    """As the protocol box says it."""
    if epoch == ONLINE:
        return "online"
    return "after the last epoch" if epoch == LAST else f"after epoch {epoch}"


def entry(series: Series | None, epoch: int = LAST, error: bool = False) -> Entry | None:
    """Mean and standard deviation over seeds."""
    return mean_entry([series], epoch, error)


def mean_entry(many: Sequence[Series | None], epoch: int = LAST, error: bool = False) -> Entry | None:
    """The mean over places, only if all of them are there; its spread is that of the seeds all have."""
    each = [{} if series is None else series.accuracies(epoch) for series in many]
    if not each or not all(each):
        return None
    value = statistics.fmean(statistics.fmean(own.values()) for own in each)
    seeds = sorted(set.intersection(*(set(own) for own in each)))
    by_seed = [statistics.fmean(own[seed] for own in each) for seed in seeds]
    spread, interval = mean_of(by_seed), _interval(many, each, by_seed)
    if error:
        value = 100 - value
        interval = interval and (100 - interval[1], 100 - interval[0])
    return Entry(value, None if spread is None else spread.spread, interval=interval)


def _interval(
    many: Sequence[Series | None], each: Sequence[Mapping[int, float]], by_seed: Sequence[float]
) -> tuple[float, float] | None:
    """The 95% interval of a mean in %, if it is known of how many images."""
    images = [series.images for series in many if series is not None]
    known = [count for count in images if count]
    if len(known) < len(each):
        return None
    shares = [[value / 100 for value in own.values()] for own in each]
    found = estimate(shares, known, [value / 100 for value in by_seed])
    return 100 * found.low, 100 * found.high


def gain_entry(own: Entry | None, base: Entry | None, *, sure: bool = False) -> Entry | None:
    """By how much a figure is above that of no adaptation, as if they were of different images.

    ``sure``: the figure is that of no adaptation itself, so that there is no chance about it.
    """
    if own is None or base is None:
        return None
    gain = Entry(own.value - base.value, sign=True)
    one, other = own.estimate, base.estimate
    if sure or one is None or other is None:
        return gain
    found = one.minus(other)
    return replace(gain, interval=(found.low, found.high), chance=not one.apart_from(other))
