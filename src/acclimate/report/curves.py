"""The paper's Figures 3 and A2: accuracy against how much was adapted to, and against κ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from acclimate.corruptions import CORRUPTIONS
from acclimate.methods import METHODS
from acclimate.report.choose import ANY, Choice, Selected, missing, select, unique
from acclimate.report.gather import Gathered, Series
from acclimate.report.headline import entry
from acclimate.report.names import corruption_name, method_name
from acclimate.report.palette import CYCLE, color_of, marker_of
from acclimate.report.style import COLUMN, PAGE, legend_columns, new_figure, style
from acclimate.report.tables import Entry

__all__ = ["figure_3", "figure_a2"]

_KINDS: Final = {"classes": "fraction of classes", "samples": "fraction of samples"}
_RATIOS: Final = ("hlr", "slr")
_MARKS: Final = "osD^vP"
_PANEL: Final = 1.55  # inches, where more panels stand beside each other than the text is wide
_ASIDE: Final = 0.07  # of the distance of two κ
_WITHOUT: Final = float("inf")  # stands for no L_div, beyond every κ
Curve = dict[float, Entry]


def figure_3(found: Gathered, choice: Choice = ANY) -> Figure:
    """Fractions of the classes above, of the samples of each class below; a column for each corruption."""
    own = select(found, choice, wanted=_partial, otherwise=missing("adaptation to a subset", "subsets"))
    parts = [series for series in own.series if _partial(series)]
    corruptions = _ordered(series.place.corruption for series in parts)
    kinds = [kind for kind in _KINDS if any(getattr(s.variant, kind) < 1 for s in parts)]
    with style():
        figure = new_figure(_width(len(corruptions)), 0.35 + 1.45 * len(kinds))
        grid = figure.subplots(len(kinds), len(corruptions), squeeze=False, sharey="col")
        for row, kind in zip(grid, kinds, strict=True):
            for axes, corruption in zip(row, corruptions, strict=True):
                _fractions(axes, own, kind, corruption)
                axes.set_xlabel(_KINDS[kind], fontsize=7)
            row[0].set_ylabel("accuracy (%)")
        for axes, corruption in zip(grid[0], corruptions, strict=True):
            axes.set_title(corruption_name(corruption))
        _legend(figure)
    return figure


def _partial(series: Series) -> bool:
    variant = series.variant
    part = (variant.classes < 1) != (variant.samples < 1)
    return bool(series.place.corruption) and not variant.changes and part


def _width(columns: int) -> float:
    return COLUMN if columns == 1 else max(PAGE, _PANEL * columns)


def _fractions(axes: Axes, own: Selected, kind: str, corruption: str) -> None:
    other = "samples" if kind == "classes" else "classes"
    here = [
        s
        for s in own.series
        if s.place.corruption == corruption and not s.variant.changes and getattr(s.variant, other) == 1
    ]
    source = entry(next((s for s in here if s.variant.method == "source"), None))
    if source is not None:
        axes.axhline(
            source.value, color=color_of("source"), linestyle="--", linewidth=1, label=method_name("source")
        )
    for method in dict.fromkeys(s.variant.method for s in here if _partial(s)):
        curve = _curve({getattr(s.variant, kind): s for s in _of(here, method, kind)})
        _line(axes, curve, list(curve), method_name(method), color_of(method), marker_of(method))
    axes.set_xlim(0, 1.05)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])


def _of(many: Sequence[Series], method: str, kind: str) -> list[Series]:
    """Runs of one method by their fraction; several protocols have no common line."""
    own = [s for s in many if s.variant.method == method]
    fractions = {getattr(s.variant, kind) for s in own}
    for fraction in fractions:
        unique(s for s in own if getattr(s.variant, kind) == fraction)
    return own


def _curve(many: Mapping[float, Series]) -> Curve:
    """Over the seeds that all points have, if there are any, so that points differ in nothing else."""
    shared = set.intersection(*(set(series.runs) for series in many.values())) if many else set()
    found: Curve = {}
    for x, series in sorted(many.items()):
        runs = {seed: run for seed, run in series.runs.items() if seed in shared or not shared}
        one = entry(replace(series, runs=runs))
        if one is not None:
            found[x] = one
    return found


def figure_a2(found: Gathered, choice: Choice = ANY) -> Figure:
    """κ for HLR and for SLR, a line for each corruption; without L_div apart from it."""
    otherwise = missing("adaptation with several κ or without L_div", "kappa")
    own = select(found, choice, wanted=_varied, otherwise=otherwise)
    corruptions = _ordered(series.place.corruption for series in own.series if _varied(series))
    curves = {method: {name: _kappas(own, method, name) for name in corruptions} for method in _RATIOS}
    values = sorted({kappa for lines in curves.values() for line in lines.values() for kappa in line})
    shown = [method for method in _RATIOS if any(curves[method].values())]
    with style():
        figure = new_figure(PAGE if len(shown) > 1 else COLUMN, 2.2)
        row = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for letter, axes, method in zip("ab", row, shown, strict=False):
            _panel(axes, curves[method], values)
            axes.set_title(f"({letter}) {method_name(method)}")
        row[0].set_ylabel("accuracy (%)")
        _legend(figure)
    return figure


def _varied(series: Series) -> bool:
    variant = series.variant
    varies = variant.method in _RATIOS and [name for name, _ in variant.changes] == ["kappa"]
    without = variant.method in [f"{name}-div" for name in _RATIOS] and not variant.changes
    return bool(series.place.corruption) and variant.whole and (varies or without)


def _kappas(own: Selected, method: str, corruption: str) -> Curve:
    """By κ; the method's own one is in its record."""
    found: dict[float, list[Series]] = {}
    for series in own.series:
        if series.place.corruption != corruption or not series.variant.whole:
            continue
        if series.variant.method == f"{method}-div" and series.variant.plain:
            found.setdefault(_WITHOUT, []).append(series)
        elif series.variant.method == method and (series.variant.plain or _varied(series)):
            found.setdefault(_kappa(series), []).append(series)
    # of the method's own κ, given or not, the run that has no other name for it
    kept = {kappa: [s for s in many if s.variant.plain] or many for kappa, many in found.items()}
    return _curve({kappa: next(iter(unique(many).values())) for kappa, many in kept.items()})


def _kappa(series: Series) -> float:
    changes = dict(series.variant.changes)
    if "kappa" in changes:
        return float(changes["kappa"])
    run = next(iter(series.runs.values()))
    return float(run["spec"].get("method", {}).get("kappa", METHODS[series.variant.method].kappa))


def _panel(axes: Axes, lines: Mapping[str, Curve], values: Sequence[float]) -> None:
    """κ are evenly spaced: those that matter lie close to 1."""
    place = {value: float(i) for i, value in enumerate(values)}
    apart = _WITHOUT in place
    for number, (corruption, curve) in enumerate(lines.items()):
        color, mark = CYCLE[number % len(CYCLE)], _MARKS[number % len(_MARKS)]
        within = {kappa: one for kappa, one in curve.items() if kappa != _WITHOUT}
        aside = _ASIDE * (number - (len(lines) - 1) / 2)  # or bars of the same height would hide each other
        places = [place[kappa] + aside for kappa in within]
        _line(axes, within, places, corruption_name(corruption), color, mark)
        if _WITHOUT in curve:
            one = {_WITHOUT: curve[_WITHOUT]}
            _line(axes, one, [place[_WITHOUT] + aside], "", color, mark, hollow=True)
    if apart and len(values) > 1:
        axes.axvline(len(values) - 1.5, color="#bbbbbb", linewidth=0.6, linestyle=":")
    names = [r"no $L_\mathrm{div}$" if value == _WITHOUT else f"{value:g}" for value in values]
    axes.set_xticks(range(len(values)), names, parse_math=True)
    axes.set_xlim(-0.35, len(values) - 0.65)
    axes.set_xlabel("κ")


def _line(
    axes: Axes, curve: Curve, places: Sequence[float], label: str, color: str, mark: str, hollow: bool = False
) -> None:
    """Means over seeds, with their standard deviations where there are several."""
    spreads = [math.nan if one.spread is None else one.spread for one in curve.values()]
    axes.errorbar(
        places,
        [one.value for one in curve.values()],
        yerr=None if all(map(math.isnan, spreads)) else spreads,
        color=color,
        marker=mark,
        markerfacecolor="white" if hollow else color,
        elinewidth=0.7,
        capthick=0.7,
        label=label or "_nolegend_",
    )


def _ordered(names: Iterable[str]) -> list[str]:
    there = set(names)
    return [*(name for name in CORRUPTIONS if name in there), *sorted(there - set(CORRUPTIONS))]


def _legend(figure: Figure) -> None:
    """What any panel has, once, above all of them."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle[0] if isinstance(handle, ErrorbarContainer) else handle)
    columns = legend_columns(len(found), figure.get_figwidth())
    figure.legend(list(found.values()), list(found), loc="outside upper center", ncols=columns)
