"""What the page's charts and its table are drawn from: figures by seed, and all else averaged over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.bench.scores import COLLAPSED, FIXED, evenness
from acclimate.bench.spec import ORACLE
from acclimate.chance import T95, Z95
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.metrics import BINS
from acclimate.records import Record
from acclimate.report.formats import calm
from acclimate.report.gather import LAST, ONLINE, Gathered, Series
from acclimate.report.headline import BY_CLASS, NOTE
from acclimate.report.palette import color_of
from acclimate.report.reading import data_of, network_of, spoken

__all__ = ["CURVES", "DRAWN", "page_data"]

CURVES = ("accuracy", "loss", "confidence", "class_entropy")
DRAWN = 20
"""Adaptations without labels that have charts of their own."""
_POINTS = 32  # of a curve
_BARS = 60  # classes that are shown one by one; of more, the counts in falling order
_DIGITS = 4


def page_data(found: Gathered) -> dict[str, Any]:
    """Plain JSON; names are given once and then by their number."""
    rows = list(dict.fromkeys(series.variant for series in found.series))
    datas = list(dict.fromkeys(series.place.data for series in found.series))
    networks, corruptions = found.networks, found.corruptions
    numbers = {variant: number for number, variant in enumerate(rows)}
    kappas = {series.variant: _kappa(series) for series in found.series}
    return {
        "networks": [calm(name) for name in networks],
        "data": [calm(name) for name in datas],
        "corruptions": [
            {"name": spoken(name), "validation": name in VALIDATION_NAMES} for name in corruptions
        ],
        "rows": [
            {
                "label": variant.label,
                "method": variant.method,
                "plain": variant.plain,
                "classes": variant.classes,
                "samples": variant.samples,
                "changes": dict(variant.changes),
                "protocol": variant.protocol,
                "kappa": kappas[variant],
                "color": color_of(variant.method),
            }
            for variant in rows
        ],
        "series": [
            {
                "n": networks.index(series.place.network),
                "d": datas.index(series.place.data),
                "v": series.place.severity,
                "c": corruptions.index(series.place.corruption) if series.place.corruption else -1,
                "r": numbers[series.variant],
                "i": series.images,
                **_figures(series),
                **_details(list(series.evaluations(LAST).values()), list(series.runs.values())),
            }
            for series in found.series
        ],
        "names": _class_names(found, datas),
        "unlabelled": [_unlabelled(record) for record in found.unlabelled[:DRAWN]],
        "constants": {
            "oracle": ORACLE,
            "fixed": FIXED,
            "collapsed": 100 * COLLAPSED,
            "bins": BINS,
            "bars": _BARS,
            "z": Z95,
            "t": T95,
            "note": NOTE,
            "by_class": BY_CLASS,
        },
    }


def _kappa(series: Series) -> float | None:
    """Of the running class distribution, where the method has one."""
    method = next(iter(series.runs.values()))["spec"]["method"]
    return float(method["kappa"]) if method["diversity"] else None


def _figures(series: Series) -> dict[str, Any]:
    """Accuracies by pass, each a list over seeds; None where a seed was not measured then."""
    seeds = sorted(series.runs)
    online = [ONLINE] if series.variant.whole else []
    passes = [LAST] if series.fixed else [*online, *series.epochs, LAST]
    return {
        "s": seeds,
        "a": {
            str(epoch): [found.get(seed) for found in (series.accuracies(epoch),) for seed in seeds]
            for epoch in passes
        },
    }


def _details(evaluations: Sequence[Mapping[str, Any]], runs: Sequence[Record]) -> dict[str, Any]:
    """Calibration, predicted classes and curves of one variant in one place."""
    return {
        "ece": [round(100 * own["ece"], _DIGITS) for own in evaluations if "ece" in own],
        "bins": _bins([own["bins"] for own in evaluations]),
        "hist": _histogram([own["histogram"] for own in evaluations]),
        "sorted": len(evaluations[0]["histogram"]) > _BARS,
        "even": round(min(evenness(own["histogram"]) for own in evaluations), _DIGITS),
        "steps": _steps(runs),
    }


def _bins(many: Sequence[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    """Bins of confidence that hold images: their number, share, mean confidence and accuracy in %."""
    total = sum(count for bins in many for count, *_ in bins)
    merged = []
    for number, same in enumerate(zip(*many, strict=True)):
        count = sum(item[0] for item in same)
        if count and all(item[1] is not None for item in same):
            sure = sum(item[0] * item[1] for item in same) / count
            known = all(item[2] is not None for item in same)
            right = sum(item[0] * item[2] for item in same) / count if known else None
            share = round(100 * count / total, 2)
            merged.append(
                [number, share, round(100 * sure, 2), None if right is None else round(100 * right, 2)]
            )
    return merged


def _histogram(many: Sequence[Sequence[int]]) -> list[float]:
    """Shares of the predicted classes in %; of many classes, some of the shares in falling order."""
    total = sum(map(sum, many))
    shares = [100 * sum(counts) / total for counts in zip(*many, strict=True)]
    if len(shares) > _BARS:
        falling = sorted(shares, reverse=True)
        shares = [falling[round(i * (len(falling) - 1) / (_BARS - 1))] for i in range(_BARS)]
    return [round(share, 3) for share in shares]


def _steps(runs: Sequence[Record]) -> dict[str, list[float | None]]:
    """Curves over steps, averaged over the seeds whose steps are those of the first."""
    curves = [run["result"]["steps"] for run in runs]
    if not curves or not curves[0].get("step"):
        return {}
    curves = [own for own in curves if own["step"] == curves[0]["step"]]
    length = len(curves[0]["step"])
    every = max(1, -(-length // _POINTS))
    at = sorted({*range(0, length, every), length - 1})
    most = math.log(_classes(runs[0]))
    scale = {"accuracy": 100.0, "confidence": 100.0, "class_entropy": 100 / most, "loss": 1.0}
    found: dict[str, list[float | None]] = {"step": [curves[0]["step"][i] for i in at]}
    for name in CURVES:
        if all(name in own for own in curves):
            means = np.mean(np.array([own[name] for own in curves], dtype=float)[:, at], axis=0)
            found[name] = [_shown(scale[name] * value) for value in means.tolist()]
    return found


def _shown(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _classes(run: Record) -> int:
    after = run["result"]["after_epoch"]
    return max(2, len(after[max(after, key=int)]["histogram"]))


def _class_names(found: Gathered, datas: Sequence[str]) -> list[list[str] | None]:
    """Of each data, if its records know them."""
    known: dict[str, list[str]] = {}
    for series in found.series:
        names = next(iter(series.runs.values()))["spec"].get("class_names")
        if names and len(names) <= _BARS:
            known.setdefault(series.place.data, [calm(name) for name in names])
    return [known.get(data) for data in datas]


def _unlabelled(record: Record) -> dict[str, Any]:
    """An adaptation to images without labels: before, after, and the curves."""
    result, names = record["result"], record["spec"].get("class_names")
    after = result["after_epoch"][max(result["after_epoch"], key=int)]
    return {
        "label": calm(f"{network_of(record)} on {data_of(record)}: {record['cell']['method']}"),
        "names": [calm(name) for name in names] if names and len(names) <= _BARS else None,
        "before": _details([result["before"]], []),
        "after": _details([after], [record]),
    }
