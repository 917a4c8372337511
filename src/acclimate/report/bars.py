"""The paper's Figure 2: accuracy of networks and methods, over corrupted, other and clean data."""

from __future__ import annotations

import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from acclimate.corruptions import NAMES
from acclimate.errors import AcclimateWarning, OptionError
from acclimate.report.choose import ANY, Choice, missing, unique
from acclimate.report.gather import Gathered, Place, Series
from acclimate.report.headline import mean_entry
from acclimate.report.names import method_name
from acclimate.report.palette import color_of
from acclimate.report.style import COLUMN, PAGE, drawable, legend_columns, new_figure, style
from acclimate.report.tables import Entry

__all__ = ["figure_2"]

_METHODS: Final = ("source", "bn", "pl", "tent", "tent+", "hlr", "slr", "slr+it")
_SPACE: Final = 1.0  # between the bars of two networks, in bars
_NARROW: Final = 10  # bars that a column has room for
_SIDE: Final = 0.5  # inches that are not for bars
_LETTER: Final = 0.062  # inches of a letter of a network's name
_NUMBER: Final = 0.2  # inches that a bar needs for its figure to stand above it


@dataclass(frozen=True)
class _Panel:
    title: str
    what: str
    bars: Mapping[str, Mapping[str, Entry]]
    """By network and method."""


def figure_2(found: Gathered, choice: Choice = ANY) -> Figure:
    """A row for corrupted data, for each other data set, and for clean images; only those that there are."""
    series = unique(
        s
        for s in found.series
        if s.variant.plain and s.variant.method in _METHODS and choice.admits(s.place)
        if s.place.corruption in (*NAMES, "")
    )
    panels = list(_panels(series))
    if not panels:
        raise missing("accuracies on test corruptions or on data without them", "imagenet-c")
    networks = list(dict.fromkeys(network for panel in panels for network in panel.bars))
    step = _SPACE + max(len(own) for panel in panels for own in panel.bars.values())
    inches = PAGE if step * len(networks) > _NARROW else COLUMN
    with style():
        figure = new_figure(inches, 0.4 + 1.5 * len(panels))
        rows = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, panel in zip(rows, panels, strict=True):
            _draw(axes, panel, networks, step, (inches - _SIDE) / len(networks))
            axes.set_xlim(-step / 2, step * (len(networks) - 0.5))
        _legend(figure, panels, inches)
    return figure


def _panels(series: Mapping[tuple[str, Place], Series]) -> Iterator[_Panel]:
    """Corrupted data first, clean images last."""
    groups: dict[tuple[str, bool], dict[tuple[str, Place], Series]] = {}
    for key, one in series.items():
        place = one.place
        groups.setdefault((place.data, bool(place.corruption)), {})[key] = one
    shifted = {data.partition(",")[0] for data, corrupted in groups if corrupted}
    clean = {data for data, corrupted in groups if not corrupted and data in {*shifted, "imagenet"}}
    for (data, corrupted), own in sorted(groups.items(), key=lambda g: (not g[0][1], g[0][0] in clean, g[0])):
        places = _common_places(own.values(), data)
        bars = _bars(own, places)
        name = drawable(data, 40)
        if bars and corrupted:
            yield _Panel(f"{name}, {_told(places)}", "mCA (%)", bars)
        elif bars:
            yield _Panel(f"{name}, clean" if data in clean else name, "accuracy (%)", bars)


def _common_places(many: Iterable[Series], data: str) -> list[tuple[str, int]]:
    """Corruptions and severities of all networks: means over others could not be compared."""
    each: dict[str, dict[tuple[str, int], None]] = {}
    for series in many:
        each.setdefault(series.place.network, {})[series.place.corruption, series.place.severity] = None
    first, *others = each.values()
    places = [place for place in first if all(place in own for own in others)]
    if not places:
        raise OptionError(f"the networks have no corruption of {data} in common: choose one by --model")
    return places


def _bars(
    own: Mapping[tuple[str, Place], Series], places: Sequence[tuple[str, int]]
) -> dict[str, dict[str, Entry]]:
    """Means over all places; a method that lacks one of them is left out, and that is said."""
    bars: dict[str, dict[str, Entry]] = {}
    data = next(iter(own.values())).place.data
    for network in dict.fromkeys(one.place.network for one in own.values()):
        for method in _METHODS:
            each = [own.get((method, Place(network, data, *place))) for place in places]
            mean = mean_entry(each)
            if mean is not None:
                bars.setdefault(network, {})[method] = mean
            elif any(each):
                there = f"{sum(one is not None for one in each)} of {len(each)}"
                warnings.warn(
                    f"{method} of {network} is left out: it has {there} corruptions and severities",
                    AcclimateWarning,
                    stacklevel=2,
                )
    return bars


def _told(places: Sequence[tuple[str, int]]) -> str:
    corruptions = len({corruption for corruption, _ in places})
    severities = sorted({severity for _, severity in places})
    span = f"{severities[0]} to {severities[-1]}" if len(severities) > 1 else f"{severities[0]}"
    which = "severities" if len(severities) > 1 else "severity"
    return f"{corruptions} corruption{'s' if corruptions > 1 else ''} at {which} {span}"


def _draw(axes: Axes, panel: _Panel, networks: Sequence[str], step: float, inches: float) -> None:
    """The bars of each network stand around one place in all panels, ``inches`` from those of the next."""
    for method in _METHODS:
        there = [
            (i * step + list(own).index(method) - (len(own) - 1) / 2, own[method])
            for i, own in enumerate(panel.bars.get(network, {}) for network in networks)
            if method in own
        ]
        if there:
            _method_bars(axes, method, there, numbers=inches / step >= _NUMBER)
    letters = int(inches / _LETTER)
    places = [i * step for i, network in enumerate(networks) if network in panel.bars]
    names = [network for network in networks if network in panel.bars]
    axes.set_xticks(places, [_broken(name, letters) for name in names])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 105)
    axes.set_yticks(range(0, 101, 25))
    axes.set_ylabel(panel.what)
    axes.set_title(panel.title, loc="left")


def _method_bars(axes: Axes, method: str, there: Sequence[tuple[float, Entry]], *, numbers: bool) -> None:
    spreads = [math.nan if entry.spread is None else entry.spread for _, entry in there]
    bars = axes.bar(
        [x for x, _ in there],
        [entry.value for _, entry in there],
        width=0.86,
        color=color_of(method),
        label=method_name(method),
        yerr=None if all(map(math.isnan, spreads)) else spreads,
        error_kw={"elinewidth": 0.7, "capthick": 0.7, "ecolor": "#222222"},
    )
    if numbers:
        axes.bar_label(bars, [f"{entry.value:.1f}" for _, entry in there], fontsize=5.5, padding=1)


def _broken(name: str, letters: int) -> str:
    """In three lines at most, broken where its words end if that is possible."""
    lines = [""]
    for word in re.findall(r"[^._/: -]*[._/: -]?", drawable(name, 3 * letters)):
        if lines[-1] and len(lines[-1] + word) > letters:
            lines.append("")
        lines[-1] += word
    return "\n".join(part for line in lines for part in textwrap.wrap(line, letters))


def _legend(figure: Figure, panels: Sequence[_Panel], inches: float) -> None:
    shown = {method for panel in panels for own in panel.bars.values() for method in own}
    handles = [Patch(color=color_of(m), label=method_name(m)) for m in _METHODS if m in shown]
    columns = legend_columns(len(handles), inches)
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=1)
