"""Measured against published: figure by figure, and which of the paper's claims hold in a set of records.

Claims are judged on means over corruptions, and each brings the figures that it was judged by.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from acclimate.bench.presets import FRACTIONS
from acclimate.bench.records import Record
from acclimate.bench.scores import Figure, by_corruption, common, figures

__all__ = ["CLAIMS", "Difference", "Verdict", "against_published", "judge"]

_HELPED: Final = ("gaussian_noise", "shot_noise", "impulse_noise", "contrast")
_LITTLE: Final = 0.5  # points
_CLEAN_LOSS: Final = 3.0  # points: the paper has 1.5 to 2.5
_COLLAPSED: Final = 0.5  # share of one class among the predictions of balanced data
_EVEN: Final = 1.0  # points that count as parity

_METHODS: Final = {
    "No Adaptation": "source",
    "No adaptation": "source",
    "Pseudo Labels": "pl",
    "PL": "pl",
    "TENT": "tent",
    "TENT+": "tent+",
    "HLR": "hlr",
    "SLR": "slr",
    "SLR+IT": "slr+it",
    "Groundtruth": "oracle",
}


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds."""

    claim: str
    holds: bool | None
    """None where it was not measured."""
    figures: str

    @property
    def word(self) -> str:
        return "not measured" if self.holds is None else "yes" if self.holds else "no"


@dataclass(frozen=True)
class Difference:
    """A published figure and the same measured."""

    table: str
    method: str
    epoch: int
    corruption: str
    published: float
    measured: float


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Every claim of the paper, held against the records."""
    found = figures(records)
    return [_judged(claim, test, found) for claim, test in CLAIMS.items()]


def _judged(
    claim: str, test: Callable[[Sequence[Figure]], tuple[bool, str] | None], found: Sequence[Figure]
) -> Verdict:
    judged = test(found)
    return Verdict(claim, None, "") if judged is None else Verdict(claim, *judged)


def against_published(records: Sequence[Record]) -> list[Difference]:
    """For every published figure that was measured as well: ResNet-50 on ImageNet-C, severity 5, VisDA-C."""
    found = figures(records)
    differences = []
    for row in _published():
        method = _METHODS.get(row["method"])
        if method is None or not row["value"]:
            continue
        if row["pseudo_labelling"] == "yes":
            method = "shot" if method == "tent+" else f"{method}+shot"
        epoch = int(row["epoch"] or 5)
        values = [figure.accuracy for figure in found if _is(figure, row, method, epoch)]
        if values:
            differences.append(
                Difference(
                    row["table"], method, epoch, row["corruption"], float(row["value"]),
                    statistics.fmean(values),
                )
            )  # fmt: skip
    return differences


def _is(figure: Figure, row: dict[str, str], method: str, epoch: int) -> bool:
    if figure.method != method or not figure.plain:
        return False
    if figure.epoch != (epoch if method != "source" else -1):
        return False
    if row["table"] == "visda_c":
        return figure.data == "visda-c"
    modified = "modified" in row["table"]
    here = figure.data == "imagenet-c" and figure.severity == 5 and figure.corruption == row["corruption"]
    return (
        here and figure.network.startswith("resnet50") and figure.modified == modified and not _robust(figure)
    )


def _robust(figure: Figure) -> bool:
    return "augmix" in figure.network.lower()


@cache
def _published() -> list[dict[str, str]]:
    with (resources.files(__package__) / "published.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _shown(**means: float) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in means.items())


def _shifted(figure: Figure) -> bool:
    return figure.plain and bool(figure.corruption) and not figure.modified and not _robust(figure)


def _test_shifts(found: Sequence[Figure]) -> list[Figure]:
    return [figure for figure in found if _shifted(figure)]


def _ranked(found: Sequence[Figure]) -> tuple[bool, str] | None:
    methods = ("tent", "tent+", "hlr", "slr")
    means = common(*(by_corruption(found, method) for method in methods))
    if means is None:
        return None
    tent, plus, hlr, slr = means
    return min(hlr, slr) > plus > tent, _shown(TENT=tent, **{"TENT+": plus}, HLR=hlr, SLR=slr)


def _over_epochs(found: Sequence[Figure]) -> tuple[bool, str] | None:
    means = common(*(by_corruption(_test_shifts(found), "tent", epoch=epoch) for epoch in (1, 5)))
    if means is None:
        return None
    return means[1] < means[0], _shown(epoch_1=means[0], epoch_5=means[1])


def _over_data(found: Sequence[Figure]) -> tuple[bool, str] | None:
    curves = [_curve(found, "tent", kind) for kind in ("classes", "samples")]
    known = [curve for curve in curves if curve]
    if not known:
        return None
    told = "; ".join(
        f"{kind}: " + ", ".join(f"{fraction:g} {value:.2f}" for fraction, value in curve.items())
        for kind, curve in zip(("classes", "samples"), curves, strict=True)
        if curve
    )
    return all(curve[1.0] < max(curve.values()) - _LITTLE for curve in known), told


def _curve(found: Sequence[Figure], method: str, kind: str) -> dict[float, float]:
    """Accuracy on all images by the fraction that was adapted to."""
    other = "samples" if kind == "classes" else "classes"

    def on(fraction: float) -> dict[str, float]:
        def chosen(figure: Figure) -> bool:
            return (
                not figure.overrides
                and bool(figure.corruption)
                and getattr(figure, kind) == fraction
                and getattr(figure, other) == 1
            )

        return by_corruption(found, method, where=chosen)

    fractions = (*FRACTIONS, 1.0)
    sides = [on(fraction) for fraction in fractions]
    known = [(fraction, side) for fraction, side in zip(fractions, sides, strict=True) if side]
    means = common(*(side for _, side in known)) if len(known) > 1 else None
    if means is None or known[-1][0] != 1.0:
        return {}
    return dict(zip((fraction for fraction, _ in known), means, strict=True))


def _generalises(found: Sequence[Figure]) -> tuple[bool, str] | None:
    told, holds = [], []
    for kind in ("classes", "samples"):
        curve = _curve(found, "slr", kind)
        if not curve or 0.25 not in curve:
            continue
        source = by_corruption(found, "source")
        part = by_corruption(found, "slr", where=lambda f, k=kind: getattr(f, k) == 0.25 and not f.overrides)  # type: ignore[misc]
        means = common(source, part)
        if means is None:
            continue
        kept = (means[1] - means[0]) / max(curve[1.0] - means[0], 1e-9)
        holds.append(kept > 0.5)
        told.append(f"a quarter of the {kind} keeps {100 * kept:.0f}% of SLR's gain ({_curve_told(curve)})")
    return (all(holds), "; ".join(told)) if holds else None


def _curve_told(curve: dict[float, float]) -> str:
    return ", ".join(f"{fraction:g}: {value:.2f}" for fraction, value in curve.items())


def _collapse(found: Sequence[Figure]) -> tuple[bool, str] | None:
    def share(figure: Figure) -> float:
        counts = figure.values["histogram"]
        return float(max(counts) / sum(counts))

    told: list[str] = []
    worst: dict[str, float] = {}
    for method in ("hlr", "slr"):
        pair = [(name, by_corruption(found, name, of=share)) for name in (method, f"{method}-div")]
        keys = set(pair[0][1]) & set(pair[1][1])
        means = common(*(by_corruption(found, name) for name, _ in pair))
        if not keys or means is None:
            continue
        worst |= {name: max(side[key] for key in keys) for name, side in pair}
        told.append(
            f"{method.upper()} {means[0]:.2f} with and {means[1]:.2f} without, commonest class at worst "
            f"{100 * worst[method]:.0f}% and {100 * worst[f'{method}-div']:.0f}% of predictions"
        )
    if not told:
        return None
    without = [value for name, value in worst.items() if name.endswith("-div")]
    with_it = [value for name, value in worst.items() if not name.endswith("-div")]
    return max(with_it) < _COLLAPSED <= max(without), "; ".join(told)


def _transformation(found: Sequence[Figure]) -> tuple[bool, str] | None:
    shifts = _test_shifts(found)
    helped = [figure for figure in shifts if figure.corruption in _HELPED]
    others = [figure for figure in shifts if figure.corruption not in _HELPED]
    gain = common(by_corruption(helped, "slr"), by_corruption(helped, "slr+it"))
    cost = common(by_corruption(others, "slr"), by_corruption(others, "slr+it"))
    seen = [figure for figure in helped if figure.ssim is not None and figure.epoch == -1]
    if gain is None or cost is None or not seen:
        return None
    before, after = (statistics.fmean(figure.ssim[i] for figure in seen if figure.ssim) for i in (0, 1))
    holds = gain[1] > gain[0] and after > before and cost[1] > cost[0] - _LITTLE
    return holds, (
        f"noise and contrast: SSIM {before:.3f} to {after:.3f}, accuracy {gain[0]:.2f} to {gain[1]:.2f}; "
        f"elsewhere {cost[0]:.2f} to {cost[1]:.2f}"
    )


def _clean(found: Sequence[Figure]) -> tuple[bool, str] | None:
    clean = [
        figure for figure in found if figure.plain and figure.data != "imagenet-r" and not figure.corruption
    ]
    clean = [figure for figure in clean if figure.data != "visda-c"]
    methods = ("source", "tent", "hlr", "slr")
    means = common(*(by_corruption(clean, method) for method in methods))
    if means is None:
        return None
    source, tent, hlr, slr = means
    holds = source - _CLEAN_LOSS < min(hlr, slr) < source and source - tent < source - max(hlr, slr)
    return holds, _shown(source=source, TENT=tent, HLR=hlr, SLR=slr)


def _pseudo_labels(found: Sequence[Figure], *, modified: bool = False) -> tuple[bool, str] | None:
    own = [figure for figure in found if figure.modified == modified and figure.corruption]
    told, holds = [], []
    for without, with_them in (("tent+", "shot"), ("hlr", "hlr+shot"), ("slr", "slr+shot")):
        means = common(by_corruption(own, without), by_corruption(own, with_them))
        if means is not None:
            told.append(f"{without} {means[0]:.2f} without, {means[1]:.2f} with")
            holds.append(means[1] <= means[0])
    return (all(holds), "; ".join(told)) if told else None


def _modified(found: Sequence[Figure]) -> tuple[bool, str] | None:
    def named(figure: Figure) -> str:
        return f"{figure.data} {figure.corruption} {figure.severity}"

    told, holds = [], []
    for method in ("tent+", "hlr", "slr"):
        sides = []
        for modified in (False, True):
            own: dict[str, list[float]] = {}
            for figure in found:
                right = figure.modified == modified and figure.plain and not _robust(figure)
                if right and figure.method == method and figure.epoch == -1 and _comparable(figure):
                    own.setdefault(named(figure), []).append(figure.accuracy)
            sides.append({key: statistics.fmean(values) for key, values in own.items()})
        means = common(*sides)
        if means is not None:
            told.append(f"{method} {means[0]:.2f} stock, {means[1]:.2f} modified")
            holds.append(means[1] <= means[0])
    return (all(holds), "; ".join(told)) if told else None


def _comparable(figure: Figure) -> bool:
    """The stock network of which a modified one is measured as well."""
    return figure.network.startswith(("resnet50", "demo"))


def _parity(found: Sequence[Figure]) -> tuple[bool, str] | None:
    robust = [figure for figure in found if _robust(figure) and figure.corruption]
    means = common(*(by_corruption(robust, method) for method in ("tent+", "hlr", "slr")))
    if means is None:
        return None
    plus, hlr, slr = means
    return max(abs(hlr - plus), abs(slr - plus)) < _EVEN, _shown(**{"TENT+": plus}, HLR=hlr, SLR=slr)


def _visda(found: Sequence[Figure]) -> tuple[bool, str] | None:
    own = [figure for figure in found if figure.data == "visda-c"]
    means = common(*(by_corruption(own, method, of=_class_mean) for method in ("source", "tent+", "slr")))
    if means is None:
        return None
    source, plus, slr = means
    return slr > plus > source, _shown(source=source, **{"TENT+": plus}, SLR=slr)


def _class_mean(figure: Figure) -> float:
    """VisDA-C is reported as the mean over classes."""
    known = [value for value in figure.values["per_class"] if value is not None]
    return 100 * math.fsum(known) / len(known)


def _bounds(found: Sequence[Figure]) -> tuple[bool, str] | None:
    means = common(*(by_corruption(_test_shifts(found), m) for m in ("source", "pl", "slr", "oracle")))
    if means is None:
        return None
    source, hard, slr, oracle = means
    return source < hard < slr < oracle, _shown(source=source, PL=hard, SLR=slr, labels=oracle)


CLAIMS: Final[dict[str, Callable[[Sequence[Figure]], tuple[bool, str] | None]]] = {
    "SLR and HLR above TENT+ above TENT, on corrupted images": lambda f: _ranked(_test_shifts(f)),
    "SLR and HLR above TENT+ above TENT, on ImageNet-R": lambda f: _ranked(
        [figure for figure in f if figure.data == "imagenet-r"]
    ),
    "hard pseudo labels below SLR, the true labels above": _bounds,
    "TENT loses from epoch 1 to epoch 5": _over_epochs,
    "TENT loses with more data": _over_data,
    "L_div prevents collapse": _collapse,
    "adapting on a fraction of classes or samples generalises to all": _generalises,
    "the input transformation raises SSIM and accuracy on noise and contrast, and costs little elsewhere": (
        _transformation
    ),
    "a small loss on clean images, smaller for TENT": _clean,
    "SHOT's pseudo labels do not help a stock network": _pseudo_labels,
    "SHOT's pseudo labels do not help a modified network": lambda f: _pseudo_labels(f, modified=True),
    "the modified network does not help either": _modified,
    "parity with TENT+ on a robust network": _parity,
    "SLR above TENT+ above no adaptation on VisDA-C": _visda,
}
"""Every claim of the paper that records can decide."""
