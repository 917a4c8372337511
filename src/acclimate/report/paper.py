"""The paper's tables, of one's own records: the same rows, columns, names and best figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from acclimate.bench.scores import class_mean
from acclimate.bench.spec import ORACLE
from acclimate.corruptions import NAMES
from acclimate.errors import InputError
from acclimate.report.choose import ANY, Choice, Selected, missing, select
from acclimate.report.gather import LAST, Gathered, Series
from acclimate.report.names import method_name
from acclimate.report.paper_form import (
    Column,
    accuracy,
    by_corruption,
    by_method,
    epochs_of,
    filled,
    one_table,
)
from acclimate.report.tables import Entry, Row, Table, bold_best, mean_of

__all__ = ["table_1", "table_2", "table_a1", "table_a2", "table_a3", "table_a4", "table_a5"]

_ADAPTING: Final = ("tent", "tent+", "hlr", "slr")
_PAIRS: Final = (("tent+", "shot"), ("hlr", "hlr+shot"), ("slr", "slr+shot"))
"""Without and with SHOT's pseudo labels; the paper calls both by the first name."""
_PLAIN, _LABELLED = (tuple(pair[i] for pair in _PAIRS) for i in (0, 1))
_HEADLINE: Final = ("source", "pl", *_ADAPTING, ORACLE)
_ANY_CORRUPTION: Final = "adaptation to the test corruptions"
_UPPER_BOUND: Final = (
    "Ground truth labels are used to adapt the model in a supervised manner, an upper bound."
)


def table_1(found: Gathered, choice: Choice = ANY) -> Table:
    """Methods by corruptions: before adaptation, after the first and the last epoch, with the true labels."""
    own = _corrupted(found, choice, _HEADLINE, missing(_ANY_CORRUPTION, "imagenet-c"))
    series = own.plain(_HEADLINE)

    def row(method: str, epoch: int = LAST, section: str = "") -> Row:
        label = "Pseudo Labels" if method == "pl" else method_name(method)
        cells = [accuracy(series.get((method, name)), epoch, spread=False) for name in NAMES]
        return Row(label, tuple(cells), section, dim=method == ORACLE)

    epochs = epochs_of(series.values()).items()
    middle = [row(method, epoch, section) for section, epoch in epochs for method in _ADAPTING]
    rows = [row("source"), row("pl"), *bold_best(filled(middle)), row(ORACLE)]
    note = _UPPER_BOUND if any(method == ORACLE for method, _ in series) else ""
    return by_method(own, rows, series, "Method", _title(own), note)


def table_2(found: Gathered, choice: Choice = ANY) -> Table:
    """Similarity to the clean images and accuracy, without and with the input transformation."""
    otherwise = missing("slr+it on test corruptions", "input-transformation")
    own = _corrupted(found, choice, ("slr+it",), otherwise)
    series = own.plain(("slr", "slr+it"))

    def row(label: str, cell: Callable[[str], Entry | None]) -> Row:
        return Row(label, tuple(map(cell, NAMES)))

    similarity = [
        row("SSIM", lambda name: _similarity(series.get(("slr+it", name)), "before")),
        row("SSIM+IT", lambda name: _similarity(series.get(("slr+it", name)), "after")),
    ]
    accuracies = [
        row("SLR", lambda name: accuracy(series.get(("slr", name)), spread=False)),
        row("SLR+IT", lambda name: accuracy(series.get(("slr+it", name)), spread=False)),
    ]
    first, second = (filled(rows) for rows in (similarity, accuracies))
    if first and second:
        second[0] = replace(second[0], rule=True)
    rows = [*bold_best(first), *bold_best(second)]
    title = (
        f"SSIM and accuracy in % of SLR-adapted {own.network} on {_where(own)}, "
        "without and with input transformation (IT)"
    )
    return by_method(own, rows, series, "Corruption", title)


def table_a1(found: Gathered, choice: Choice = ANY) -> Table:
    """Table 1 turned, with standard deviations over seeds."""
    own = _corrupted(found, choice, _HEADLINE[:-1], missing(_ANY_CORRUPTION, "imagenet-c"))
    epochs = epochs_of(own.plain(_ADAPTING).values())
    columns = [Column("No adaptation", "source"), Column("PL", "pl")]
    columns += [Column(method_name(m), m, epoch, name) for name, epoch in epochs.items() for m in _ADAPTING]
    return by_corruption(own, columns, _title(own), bold=True)


def table_a2(found: Gathered, choice: Choice = ANY) -> Table:
    """A stock network without and with SHOT's pseudo labels."""
    return _without_and_with(found, choice, modified=False)


def table_a3(found: Gathered, choice: Choice = ANY) -> Table:
    """A modified network with SHOT's pseudo labels, after the first and the last epoch."""
    own = _labelled(found, choice, modified=True)
    epochs = epochs_of(own.plain(_LABELLED).values())
    columns = [
        Column(method_name(plain), labelled, epoch, f"Pseudo labeling: {name}")
        for name, epoch in epochs.items()
        for plain, labelled in _PAIRS
    ]
    title = _title(own, " with SHOT's pseudo labels")
    return by_corruption(own, [Column("No adaptation", "source"), *columns], title)


def table_a4(found: Gathered, choice: Choice = ANY) -> Table:
    """A modified network without and with SHOT's pseudo labels."""
    return _without_and_with(found, choice, modified=True)


def table_a5(found: Gathered, choice: Choice = ANY) -> Table:
    """VisDA-C: accuracy as the mean over classes."""
    methods = _HEADLINE[:-1]
    data = choice.data or "visda-c"
    own = select(
        found,
        replace(choice, data=data),
        wanted=lambda s: s.variant.plain and s.variant.method in methods and s.place.data == data,
        otherwise=missing(f"adaptation to {data}", "visda-c"),
    )
    series = own.plain(methods)
    each = {method: series.get((method, "")) for method in methods}
    rows = [
        Row(
            method_name(method),
            (mean_of(100 * class_mean(values) for values in one.evaluations(LAST).values()),),
        )
        for method, one in each.items()
        if one is not None
    ]
    title = f"Performance of {own.network} on {data}: mean accuracy of the classes in %"
    return one_table(own, ("Method", "Accuracy (%)"), rows, title, series)


def _without_and_with(found: Gathered, choice: Choice, *, modified: bool) -> Table:
    own = _labelled(found, choice, modified=modified)
    *_, last = epochs_of(own.plain((*_PLAIN, *_LABELLED)).values())
    columns = [Column("No adaptation", "source")]
    for word, side in (("No pseudo labeling", 0), ("Pseudo labeling", 1)):
        columns += [Column(method_name(pair[0]), pair[side], LAST, f"{word}: {last}") for pair in _PAIRS]
    return by_corruption(own, columns, _title(own, " without and with SHOT's pseudo labels"))


def _corrupted(
    found: Gathered,
    choice: Choice,
    methods: Sequence[str],
    otherwise: InputError,
    modified: bool | None = None,
) -> Selected:
    own = select(
        found,
        choice,
        wanted=lambda s: s.variant.plain and s.variant.method in methods and s.place.corruption in NAMES,
        modified=modified,
        otherwise=otherwise,
    )
    return replace(own, series=[series for series in own.series if series.place.corruption in NAMES])


def _labelled(found: Gathered, choice: Choice, *, modified: bool) -> Selected:
    kind = "modified" if modified else "stock"
    otherwise = missing(f"adaptation of a {kind} network with SHOT's pseudo labels", "shot")
    return _corrupted(found, choice, _LABELLED, otherwise, modified)


def _title(own: Selected, how: str = "") -> str:
    kind = "the modified network " if any(series.modified for series in own.series) else ""
    return f"Test-time adaptation of {kind}{own.network} on {_where(own)}{how}: accuracy in %"


def _where(own: Selected) -> str:
    return f"{own.data} at severity {own.severity}"


def _similarity(series: Series | None, when: str) -> Entry | None:
    runs = [] if series is None else [run["result"].get("ssim") for run in series.runs.values()]
    return mean_of([ssim[when] for ssim in runs if ssim], spread=False, digits=3)
