"""The paper's claims, each a test of figures: whether it holds and by which numbers; none if not measured.

Judged on means over corruptions, over what all sides of a comparison have measured, seed by seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from acclimate.bench.presets import FRACTIONS
from acclimate.bench.scores import COLLAPSED, Figure, by_corruption, class_mean, common, evenness
from acclimate.corruptions import VALIDATION_NAMES

__all__ = ["CLAIMS", "Judged"]

Judged = tuple[bool, str] | None
ROBUST: Final = "deepaugment_and_augmix"
"""The file of weights of the paper's robust network."""
_HELPED: Final = ("gaussian_noise", "shot_noise", "impulse_noise", "contrast")
_LITTLE: Final = 0.5  # points
_CLEAN_LOSS: Final = 3.0  # points: the paper has 1.5 to 2.5
_EVEN: Final = 1.0  # points that count as parity
_PART: Final = 0.25  # of the classes or samples: what is to keep half of the gain


def _shown(**means: float) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in means.items())


def _shifts(found: Sequence[Figure]) -> list[Figure]:
    """Stock networks on the test corruptions."""
    return [
        figure
        for figure in found
        if figure.corruption
        and figure.corruption not in VALIDATION_NAMES
        and not figure.modified
        and figure.network != ROBUST
    ]


def _ranked(found: Sequence[Figure]) -> Judged:
    means = common(*(by_corruption(found, method) for method in ("tent", "tent+", "hlr", "slr")))
    if means is None:
        return None
    tent, plus, hlr, slr = means
    return min(hlr, slr) > plus > tent, _shown(TENT=tent, **{"TENT+": plus}, HLR=hlr, SLR=slr)


def _on_corrupted(found: Sequence[Figure]) -> Judged:
    return _ranked(_shifts(found))


def _on_renditions(found: Sequence[Figure]) -> Judged:
    return _ranked([figure for figure in found if figure.data == "imagenet-r"])


def _bounds(found: Sequence[Figure]) -> Judged:
    means = common(*(by_corruption(_shifts(found), method) for method in ("pl", "slr", "oracle")))
    if means is None:
        return None
    hard, slr, oracle = means
    return hard < slr < oracle, _shown(PL=hard, SLR=slr, labels=oracle)


def _over_epochs(found: Sequence[Figure]) -> Judged:
    hardest = [figure for figure in _shifts(found) if figure.severity == 5]
    means = common(*(by_corruption(hardest, "tent", epoch=epoch) for epoch in (1, 5)))
    return None if means is None else (means[1] < means[0], _shown(epoch_1=means[0], epoch_5=means[1]))


def _curve(found: Sequence[Figure], method: str, kind: str) -> dict[float, float]:
    """Accuracy on all images by the fraction that was adapted to; with fraction 0, that of the source."""
    other = "samples" if kind == "classes" else "classes"

    def adapted_to(fraction: float) -> Callable[[Figure], bool]:
        return lambda figure: (
            not figure.overrides and getattr(figure, kind) == fraction and getattr(figure, other) == 1
        )

    own = _shifts(found)
    sides = {0.0: by_corruption(own, "source")} if method != "tent" else {}
    sides |= {f: by_corruption(own, method, where=adapted_to(f)) for f in (*FRACTIONS, 1.0)}
    known = {fraction: side for fraction, side in sides.items() if side}
    means = common(*known.values()) if 1.0 in known and len(known) > 1 + (0.0 in known) else None
    return {} if means is None else dict(zip(known, means, strict=True))


def _told(curve: Mapping[float, float]) -> str:
    return ", ".join(f"{fraction:g}: {value:.2f}" for fraction, value in curve.items())


def _over_data(found: Sequence[Figure]) -> Judged:
    curves = {kind: _curve(found, "tent", kind) for kind in ("classes", "samples")}
    known = {kind: curve for kind, curve in curves.items() if curve}
    if not known:
        return None
    holds = all(curve[1.0] < max(curve.values()) - _LITTLE for curve in known.values())
    return holds, "; ".join(f"{kind} {_told(curve)}" for kind, curve in known.items())


def _generalises(found: Sequence[Figure]) -> Judged:
    told, holds = [], []
    for kind in ("classes", "samples"):
        curve = _curve(found, "slr", kind)
        if not {0.0, _PART, 1.0} <= curve.keys():
            continue
        gain, kept = curve[1.0] - curve[0.0], curve[_PART] - curve[0.0]
        holds.append(gain > 0 and kept > gain / 2)
        share = f"{100 * kept / gain:.0f}% of SLR's gain" if gain > 0 else "nothing: SLR gains nothing on all"
        told.append(f"a quarter of the {kind} keeps {share} ({_told(curve)})")
    return (all(holds), "; ".join(told)) if holds else None


def _even(figure: Figure) -> float:
    return evenness(figure.values["histogram"])


def _collapse(found: Sequence[Figure]) -> Judged:
    """On some corruption, the predictions fall on few classes without L_div, and on none with it."""
    told: list[str] = []
    worst: dict[bool, list[float]] = {True: [], False: []}
    for method in ("hlr", "slr"):
        names = {True: method, False: f"{method}-div"}
        means = common(*(by_corruption(found, name) for name in names.values()))
        if means is None:
            continue
        lowest = {}
        for with_it, name in names.items():
            even = [value for own in by_corruption(found, name, of=_even).values() for value in own.values()]
            lowest[with_it] = min(even)
            worst[with_it].append(min(even))
        told.append(
            f"{method.upper()} {means[0]:.2f} with and {means[1]:.2f} without; entropy of the predictions at "
            f"worst {100 * lowest[True]:.0f}% and {100 * lowest[False]:.0f}% of its largest value"
        )
    if not told:
        return None
    return min(worst[True]) >= COLLAPSED > min(worst[False]), "; ".join(told)


def _transformation(found: Sequence[Figure]) -> Judged:
    own = _shifts(found)
    helped = [figure for figure in own if figure.corruption in _HELPED]
    others = [figure for figure in own if figure.corruption not in _HELPED]
    gain, cost = (
        common(by_corruption(part, "slr"), by_corruption(part, "slr+it")) for part in (helped, others)
    )
    seen = [figure.ssim for figure in helped if figure.ssim is not None and figure.epoch == -1]
    if gain is None or cost is None or not seen:
        return None
    before, after = (statistics.fmean(pair[i] for pair in seen) for i in (0, 1))
    holds = gain[1] > gain[0] and after > before and cost[1] > cost[0] - _LITTLE
    return holds, (
        f"noise and contrast: SSIM {before:.3f} to {after:.3f}, accuracy {gain[0]:.2f} to {gain[1]:.2f}; "
        f"elsewhere {cost[0]:.2f} to {cost[1]:.2f}"
    )


def _clean(found: Sequence[Figure]) -> Judged:
    corrupted = {figure.data for figure in found if figure.corruption}
    clean = [f for f in found if not f.corruption and (f.data == "imagenet" or f.data in corrupted)]
    means = common(*(by_corruption(clean, method) for method in ("source", "tent", "hlr", "slr")))
    if means is None:
        return None
    source, tent, hlr, slr = means
    holds = source - _CLEAN_LOSS < min(hlr, slr) <= max(hlr, slr) < min(source, tent)
    return holds, _shown(source=source, TENT=tent, HLR=hlr, SLR=slr)


_PAIRS: Final = (("tent+", "shot"), ("hlr", "hlr+shot"), ("slr", "slr+shot"))


def _labelled(found: Sequence[Figure], *, modified: bool) -> Judged:
    """On the mean over the methods that were measured with and without pseudo labels."""
    own = [figure for figure in found if figure.modified == modified and figure.corruption]
    pairs = {
        without: common(by_corruption(own, without), by_corruption(own, with_them))
        for without, with_them in _PAIRS
    }
    return _no_better(pairs, "without", "with")


def _no_better(pairs: Mapping[str, list[float] | None], first: str, second: str) -> Judged:
    """Whether the second of two figures is not above the first, on the mean over methods."""
    known = {name: means for name, means in pairs.items() if means is not None}
    if not known:
        return None
    told = "; ".join(f"{name} {a:.2f} {first}, {b:.2f} {second}" for name, (a, b) in known.items())
    one, other = (statistics.fmean(means[i] for means in known.values()) for i in (0, 1))
    return other <= one, f"{told}; mean {one:.2f} and {other:.2f}"


def _stock_labelled(found: Sequence[Figure]) -> Judged:
    return _labelled(found, modified=False)


def _modified_labelled(found: Sequence[Figure]) -> Judged:
    return _labelled(found, modified=True)


def _modified(found: Sequence[Figure]) -> Judged:
    """Networks of different names are compared, on the mean over methods."""
    kinds = ("resnet50", "demo")
    same = [figure for figure in found if (figure.paper_name or figure.network).startswith(kinds)]
    pairs = {}
    for method, _ in _PAIRS:
        sides = [
            by_corruption(
                [figure for figure in same if figure.modified == modified],
                method,
                key=lambda figure: f"{figure.data} {figure.images} {figure.corruption} {figure.severity}",
            )
            for modified in (False, True)
        ]
        pairs[method] = common(*sides)
    return _no_better(pairs, "stock", "modified")


def _parity(found: Sequence[Figure]) -> Judged:
    robust = [figure for figure in found if figure.network == ROBUST and figure.corruption]
    means = common(*(by_corruption(robust, method) for method in ("tent+", "hlr", "slr")))
    if means is None:
        return None
    plus, hlr, slr = means
    return max(abs(hlr - plus), abs(slr - plus)) < _EVEN, _shown(**{"TENT+": plus}, HLR=hlr, SLR=slr)


def _class_mean(figure: Figure) -> float:
    return 100 * class_mean(figure.values)


def _visda(found: Sequence[Figure]) -> Judged:
    own = [figure for figure in found if figure.data == "visda-c"]
    means = common(*(by_corruption(own, method, of=_class_mean) for method in ("source", "tent+", "slr")))
    if means is None:
        return None
    source, plus, slr = means
    return slr > plus > source, _shown(source=source, **{"TENT+": plus}, SLR=slr)


_IT: Final = (
    "the input transformation raises SSIM and accuracy on noise and contrast, and costs little elsewhere"
)
CLAIMS: Final[Mapping[str, Callable[[Sequence[Figure]], Judged]]] = MappingProxyType(
    {
        "SLR and HLR above TENT+ above TENT, on corrupted images": _on_corrupted,
        "SLR and HLR above TENT+ above TENT, on ImageNet-R": _on_renditions,
        "hard pseudo labels below SLR, the true labels above": _bounds,
        "TENT loses from epoch 1 to epoch 5": _over_epochs,
        "TENT loses with more data": _over_data,
        "L_div prevents collapse": _collapse,
        "adapting on a fraction of classes or samples generalises to all": _generalises,
        _IT: _transformation,
        "a small loss on clean images, smaller for TENT": _clean,
        "SHOT's pseudo labels do not help a stock network": _stock_labelled,
        "SHOT's pseudo labels do not help a modified network": _modified_labelled,
        "the modified network does not help either": _modified,
        "parity with TENT+ on a robust network": _parity,
        "SLR above TENT+ above no adaptation on VisDA-C": _visda,
    }
)
"""Every claim of the paper that records can decide."""
