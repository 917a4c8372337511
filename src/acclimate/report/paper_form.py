"""The forms of the paper's tables: methods by corruptions, and corruptions by methods and epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from acclimate.bench.scores import FIXED
from acclimate.corruptions import NAMES
from acclimate.report.choose import Selected
from acclimate.report.gather import LAST, Series
from acclimate.report.names import corruption_name, method_name
from acclimate.report.tables import Entry, Row, Table, bold_best, mean_of

__all__ = ["Column", "accuracy", "by_corruption", "by_method", "epochs_of", "filled", "one_table"]


@dataclass(frozen=True)
class Column:
    """A method after an epoch, below a text that several columns share."""

    head: str
    method: str
    epoch: int = LAST
    group: str = ""


def by_method(
    own: Selected,
    rows: Iterable[Row],
    series: Mapping[tuple[str, str], Series],
    corner: str,
    title: str,
    note: str = "",
) -> Table:
    """A row a method, a column a corruption; those without any figure are left out."""
    there = filled(rows)
    kept = [i for i in range(len(NAMES)) if any(row.cells[i] is not None for row in there)]
    heads = (corner, *(corruption_name(NAMES[i]) for i in kept))
    shown = [replace(row, cells=tuple(row.cells[i] for i in kept)) for row in there]
    return one_table(own, heads, shown, title, series, note)


def by_corruption(own: Selected, columns: Sequence[Column], title: str, *, bold: bool = False) -> Table:
    """A row a corruption, a column a method and epoch; those without any figure are left out."""
    series = own.plain(column.method for column in columns)
    cells = {
        name: [accuracy(series.get((column.method, name)), column.epoch) for column in columns]
        for name in NAMES
    }
    kept = [i for i in range(len(columns)) if any(row[i] is not None for row in cells.values())]
    shown = [columns[i] for i in kept]
    rows: Sequence[Row] = filled(
        Row(corruption_name(name), tuple(row[i] for i in kept)) for name, row in cells.items()
    )
    groups = _groups(shown)
    for group in dict.fromkeys(column.group for column in shown if bold and column.group):
        rows = bold_best(rows, columns=[i for i, c in enumerate(shown) if c.group == group], along="rows")
    heads = ("Corruption", *(column.head for column in shown))
    return replace(one_table(own, heads, rows, title, series), groups=groups)


def _groups(columns: Sequence[Column]) -> tuple[tuple[str, int], ...]:
    """The texts above the heads; the labels have none."""
    groups = [("", 1)]
    for column in columns:
        if column.group == groups[-1][0]:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return tuple(groups) if len(groups) > 1 else ()


def one_table(
    own: Selected,
    heads: tuple[str, ...],
    rows: Sequence[Row],
    title: str,
    series: Mapping[tuple[str, str], Series],
    note: str = "",
) -> Table:
    spread = any(isinstance(c, Entry) and c.spread is not None for row in rows for c in row.cells)
    notes = (note, _seeds_note(series.values(), spread=spread), _protocol_note(series.values()))
    keys = {"network": own.network, "data": own.data, "severity": own.severity}
    return Table(title, heads, tuple(rows), note=" ".join(filter(None, notes)), keys=keys)


def filled(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if any(cell is not None for cell in row.cells)]


def accuracy(series: Series | None, epoch: int = LAST, *, spread: bool = True) -> Entry | None:
    return None if series is None else mean_of(series.accuracies(epoch).values(), spread=spread)


def epochs_of(many: Iterable[Series]) -> dict[str, int]:
    """The first and the last epoch by the words of the heads; one where they are the same."""
    ends = {series.epochs[-1] for series in many if _learns(series) and series.epochs}
    last = f"Epoch {ends.pop()}" if len(ends) == 1 else "Last epoch"
    return {last: LAST} if last == "Epoch 1" else {"Epoch 1": 1, last: LAST}


def _learns(series: Series) -> bool:
    return series.variant.method not in FIXED


def _seeds_note(many: Iterable[Series], *, spread: bool) -> str:
    counts = sorted({len(series.runs) for series in many if _learns(series)})
    if not counts or counts == [1]:
        return "One seed." if counts else ""
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"Mean {'± standard deviation ' if spread else ''}over {seeds} seeds."


def _protocol_note(many: Iterable[Series]) -> str:
    """Only said where not all methods learned by the same one."""
    ways: dict[str, None] = {}
    for series in many:
        if series.variant.protocol:
            ways.setdefault(f"{method_name(series.variant.method)} {series.variant.protocol}")
    protocols = {way.partition(" ")[2] for way in ways}
    return f"Protocols differ: {'; '.join(ways)}." if len(protocols) > 1 else ""
