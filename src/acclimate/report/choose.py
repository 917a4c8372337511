"""Which of the records a table or a figure is of, where they have several networks, data or severities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from acclimate.errors import InputError, OptionError, listed
from acclimate.report.gather import Gathered, Place, Series

__all__ = ["ANY", "Choice", "Selected", "missing", "select", "unique"]

_PREFERRED: Final = 5  # the severity of the paper's tables
_Value = TypeVar("_Value", str, int)


@dataclass(frozen=True)
class Choice:
    """What was asked for; none where the records decide."""

    model: str | None = None
    data: str | None = None
    severity: int | None = None

    def admits(self, place: Place) -> bool:
        """Whether a place is among what was asked for; data without corruptions have no severity."""
        asked = (
            (self.model, place.network),
            (self.data, place.data),
            (self.severity, place.severity or None),
        )
        return all(wish is None or own is None or wish == own for wish, own in asked)


ANY: Final = Choice()


@dataclass(frozen=True)
class Selected:
    """All that was measured of one network on one data set at one severity."""

    network: str
    data: str
    severity: int
    series: Sequence[Series] = field(repr=False)

    def plain(self, methods: Iterable[str]) -> dict[tuple[str, str], Series]:
        """Methods with their own hyperparameters on all images, by method and corruption."""
        names = set(methods)
        own = unique(s for s in self.series if s.variant.plain and s.variant.method in names)
        return {(method, place.corruption): series for (method, place), series in own.items()}


def select(
    found: Gathered,
    choice: Choice,
    *,
    wanted: Callable[[Series], bool],
    modified: bool | None = None,
    otherwise: InputError,
) -> Selected:
    """The only network, data and severity that have what is wanted; among several, the choice decides.

    A stock network goes before modified ones unless ``modified`` says which kind it must be.
    """
    own = [series for series in found.series if wanted(series)]
    if choice.model is None:
        kind = bool(modified)
        own = [s for s in own if s.modified == kind] or ([] if modified is not None else own)
    if not own:
        raise otherwise
    network = _one("network", "--model", [s.place.network for s in own], choice.model)
    own = [s for s in own if s.place.network == network]
    data = _one("data set", "--data", [s.place.data for s in own], choice.data)
    own = [s for s in own if s.place.data == data]
    severities = [s.place.severity for s in own]
    asked = choice.severity
    if asked is None and _PREFERRED in severities:
        asked = _PREFERRED
    if set(severities) == {0}:  # data without corruptions
        asked = None
    severity = _one("severity", "--severity", severities, asked)
    there = (network, data, severity)
    return Selected(
        *there,
        [s for s in found.series if (s.place.network, s.place.data, s.place.severity) == there],
    )


def _one(what: str, option: str, values: Sequence[_Value], asked: _Value | None) -> _Value:
    known = sorted(set(values))
    if asked is not None:
        if asked not in known:
            raise OptionError(f"the {what} {asked!r} was not measured for this, only {listed(known)}")
        return asked
    if len(known) > 1:
        raise OptionError(f"more than one {what} has this: choose by {option} one of {listed(known)}")
    return known[0]


def unique(many: Iterable[Series]) -> dict[tuple[str, Place], Series]:
    """By method and place; where a method has several protocols in one place, none of them is the figure."""
    found: dict[tuple[str, Place], Series] = {}
    for series in many:
        key = (series.variant.method, series.place)
        other = found.setdefault(key, series)
        if other is not series:
            raise InputError(
                f"{series.variant.method} on {series.place.corruption or series.place.data} was measured by "
                f"several protocols ({other.variant.protocol}; {series.variant.protocol}): "
                "give the records of one"
            )
    return found


def missing(what: str, preset: str) -> InputError:
    """What to say where nothing was measured."""
    return InputError(f"the records have no {what}: `acclimate bench {preset}` makes them")
