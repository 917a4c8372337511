"""Tables of the pages on the paper's experiments, from the committed records and the published figures."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources

from grid_tables import headline, mean_and_spread, variants
from pages import table
from records import RESULTS

from acclimate.bench import read_records
from acclimate.bench.presets import FRACTIONS
from acclimate.bench.scores import Figure, figures
from acclimate.corruptions import NAMES

METHODS = ("source", "bn", "pl", "tent", "tent+", "hlr", "slr", "slr+it", "oracle")


@cache
def found(grid: str) -> tuple[Figure, ...]:
    """The figures of a grid whose records are in the repository."""
    return tuple(figures(read_records(RESULTS / f"bench_{grid}.jsonl.gz")))


def corrupted(grid: str) -> str:
    return headline([figure for figure in found(grid) if figure.corruption])


def clean() -> str:
    """What adapting to images without a shift does."""
    own = [f for f in found("demo") if not f.corruption and f.plain and f.epoch == -1]
    rows = []
    for method in METHODS:
        values = [figure.accuracy for figure in own if figure.method == method]
        if values:
            rows.append([f"`{method}`", mean_and_spread(values)])
    return table(["method", "accuracy %, clean images"], rows)


def subsets() -> str:
    """Accuracy on all images by the part that was adapted to; means over corruptions."""
    own = [f for f in found("demo") if f.corruption and f.epoch == -1 and not f.overrides and not f.modified]
    part = [f for f in own if f.classes != 1 or f.samples != 1]
    shifts, seeds = {f.corruption for f in part}, {f.seed for f in part}
    own = [f for f in own if f.corruption in shifts and f.seed in seeds]
    rows = []
    for method in dict.fromkeys(f.method for f in sorted(part, key=lambda f: METHODS.index(f.method))):
        for kind, other in (("classes", "samples"), ("samples", "classes")):
            cells = [f"`{method}`", kind]
            for share in (*FRACTIONS, 1.0):
                cells.append(_mean(f for f in own if _is_part(f, method, {kind: share, other: 1})))
            rows.append(cells)
    return table(["method", "part of the", *(f"{share:g}" for share in (*FRACTIONS, 1.0))], rows, words=2)


def _is_part(figure: Figure, method: str, shares: Mapping[str, float]) -> bool:
    return figure.method == method and all(getattr(figure, kind) == share for kind, share in shares.items())


def _mean(own: Iterable[Figure]) -> str:
    values = [figure.accuracy for figure in own]
    return f"{statistics.fmean(values):.2f}" if values else ""


def transformation() -> str:
    """For each corruption the similarity to the clean images before and after, and both accuracies."""
    own = [f for f in found("demo") if f.plain and f.epoch == -1 and not f.modified]
    rows = []
    for name in NAMES:
        seen = [f.ssim for f in own if f.method == "slr+it" and f.corruption == name and f.ssim]
        similar = [f"{statistics.fmean(pair[i] for pair in seen):.3f}" for i in (0, 1)]
        pairs = [[f for f in own if f.method == m and f.corruption == name] for m in ("slr", "slr+it")]
        accurate = [mean_and_spread([f.accuracy for f in pair]) for pair in pairs]
        rows.append([name.replace("_", " "), *similar, *accurate])
    return table(["", "SSIM", "SSIM with it", "`slr`, accuracy %", "`slr+it`, accuracy %"], rows)


def pseudo_labelled() -> str:
    """With and without SHOT's labels, on both networks; means over the test corruptions."""
    methods = {"source": None, "tent+": "shot", "hlr": "hlr+shot", "slr": "slr+shot"}
    own = [f for f in found("demo") if f.plain and f.epoch == -1 and f.corruption in NAMES]
    seeds = {f.seed for f in own if f.modified}
    rows = []
    for modified, told in ((False, "stock"), (True, "with SHOT's head")):
        these = [f for f in own if f.modified == modified and f.seed in seeds]
        for without, labelled in methods.items():
            pair = [_mean(f for f in these if f.method == name) for name in (without, labelled)]
            rows.append([told, f"`{without}`", *pair])
    return table(["network", "method", "accuracy %", "with SHOT's pseudo labels"], rows, words=2)


def varied(option: str) -> Callable[[], str]:
    return lambda: variants([figure for figure in found("demo") if figure.corruption], option)


@cache
def _published() -> tuple[dict[str, str], ...]:
    with (resources.files("acclimate.bench") / "published.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def published(name: str, title: str) -> str:
    """A table of the paper as means over corruptions."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in _published():
        if row["table"] == name and row["value"]:
            method = row["method"] + (" with pseudo labels" if row["pseudo_labelling"] == "yes" else "")
            values.setdefault(method, {}).setdefault(row["epoch"] or "5", []).append(float(row["value"]))
    epochs = sorted({epoch for own in values.values() for epoch in own} - {"0"})
    rows = []
    for method, own in values.items():
        digits = 3 if method.startswith("SSIM") else 2
        shown = [own.get(epoch, own.get("0", [])) for epoch in epochs]
        rows.append([method, *(f"{statistics.fmean(v):.{digits}f}" if v else "" for v in shown)])
    return table([title, *(f"epoch {epoch}" for epoch in epochs)], rows)
