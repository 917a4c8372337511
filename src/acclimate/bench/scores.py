"""Figures out of records: means over seeds for each corruption, then over what all sides have measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.bench.spec import Network
from acclimate.errors import InputError
from acclimate.records import Record

__all__ = [
    "COLLAPSED",
    "FIXED",
    "PAPER_NAMES",
    "Figure",
    "Side",
    "by_corruption",
    "check_one_protocol",
    "class_mean",
    "common",
    "evenness",
    "figures",
]

FIXED = ("source", "bn")
"""Methods that learn nothing, so that epochs and settings do not matter."""
PAPER_NAMES = {"resnet50.IMAGENET1K_V1": "resnet50", "resnet50_shot": "resnet50_shot"}
"""The networks whose figures the paper publishes, by the names that they have here."""
COLLAPSED = 0.5
"""Share of its largest value below which the entropy of the predicted classes is a collapse."""
Side = dict[str, dict[int | None, float]]
"""Figures by what was measured and by seed."""


@dataclass(frozen=True)
class Figure:
    """One cell after one epoch, or online."""

    network: str
    """Its name, or that of its file of weights."""
    paper_name: str
    """Which network of the paper it is, as its factory says or the name of its weights; "" if none."""
    modified: bool
    """Whether the network has SHOT's head."""
    data: str
    images: int
    corruption: str
    """Empty where there is none."""
    severity: int
    method: str
    setting: str
    overrides: tuple[tuple[str, Any], ...]
    classes: float
    """The fraction of the classes that was adapted to."""
    samples: float
    seed: int
    batch_size: int
    epochs: int
    epoch: int
    """0 for the online pass; -1 is the last one, as well as its number."""
    accuracy: float
    values: dict[str, Any]
    ssim: tuple[float, float] | None

    @property
    def plain(self) -> bool:
        """Adapted to all images with the method's own hyperparameters."""
        return not self.overrides and self.classes == self.samples == 1


def figures(records: Iterable[Record]) -> list[Figure]:
    """Every evaluation of every record that has accuracies; the last epoch twice, also as epoch -1.

    A cell that failed has none, nor has an adaptation to images without labels.
    """
    found = []
    for record in records:
        if "online" not in record.get("result", {}):
            continue
        after = {int(epoch): values for epoch, values in record["result"]["after_epoch"].items()}
        if not after:
            raise InputError(f"a record of {record['cell']['method']} has no evaluation after an epoch")
        passes = {0: record["result"]["online"], **after, -1: after[max(after)]}
        shared = _shared(record)
        found += [
            Figure(**shared, epoch=epoch, accuracy=100 * values["accuracy"], values=values)
            for epoch, values in passes.items()
        ]
    return found


def _shared(record: Record) -> dict[str, Any]:
    """What all figures of a record have in common."""
    cell, spec, ssim = record["cell"], record["spec"], record["result"].get("ssim")
    subset = cell["subset"] or {}
    network = Network(**cell["network"]).title
    return {
        "network": network,
        "paper_name": spec.get("paper_name", PAPER_NAMES.get(network, "")),
        "modified": spec.get("modified", network.endswith("-shot")),
        "data": cell["data"]["name"],
        "images": spec["images"],
        "corruption": cell["corruption"] or "",
        "severity": cell["severity"] or 0,
        "method": cell["method"],
        "setting": spec["setting"],
        "overrides": tuple(sorted(cell["overrides"].items())),
        "classes": subset.get("classes") or 1.0,
        "samples": subset.get("samples") or 1.0,
        "seed": cell["seed"],
        "batch_size": cell["batch_size"],
        "epochs": cell["epochs"],
        "ssim": None if ssim is None else (ssim["before"], ssim["after"]),
    }


def check_one_protocol(found: Sequence[Figure]) -> None:
    """Figures of different protocols have no common mean: an error that says what differs."""
    kinds: dict[tuple[str, str, str, int, str], set[str]] = {}
    for figure in found:
        if figure.plain:
            where = (figure.network, figure.data, figure.corruption, figure.severity)
            group = figure.method if figure.method in FIXED else "what learns"
            kinds.setdefault((*where, group), set()).add(_protocol(figure))
    for (network, data, *_), ways in kinds.items():
        if len(ways) > 1:
            raise InputError(
                f"the records of {network} on {data} are of different experiments "
                f"({'; '.join(sorted(ways))}): compare them apart"
            )


def _protocol(figure: Figure) -> str:
    """What has to be the same for a common mean; what learns nothing has no epochs, the source no batches."""
    told = f"{figure.images:,} images"
    if figure.method != "source":
        told += f", batches of {figure.batch_size}"
    if figure.method not in FIXED:
        told += f", {figure.epochs} epochs, setting {figure.setting!r}"
    return told


def by_corruption(
    found: Sequence[Figure],
    method: str,
    *,
    epoch: int = -1,
    of: Callable[[Figure], float] = lambda figure: figure.accuracy,
    where: Callable[[Figure], bool] = lambda figure: figure.plain,
    key: Callable[[Figure], str] = lambda f: f"{f.network} {f.data} {f.images} {f.corruption} {f.severity}",
) -> Side:
    """For each network, data, corruption and severity a figure for each seed.

    What stays as it is has no seed: it stands for all.
    """
    side: Side = {}
    for figure in found:
        wanted = epoch if method not in FIXED else -1  # what learns nothing has one pass only
        if figure.method == method and figure.epoch == wanted and where(figure):
            side.setdefault(key(figure), {})[None if method == "source" else figure.seed] = of(figure)
    return side


def common(*sides: Side) -> list[float] | None:
    """The mean of each side over what all of them have, seed by seed; None if that is nothing."""
    keys = set.intersection(*(set(side) for side in sides)) if sides else set()
    means: list[list[float]] = [[] for _ in sides]
    for key in sorted(keys):
        drawn = [set(side[key]) - {None} for side in sides if set(side[key]) != {None}]
        seeds = set.intersection(*drawn) if drawn else {None}
        if not seeds:
            continue
        for mean, side in zip(means, sides, strict=True):
            own = side[key]
            mean.append(statistics.fmean(own[None] if None in own else own[seed] for seed in seeds))
    return [statistics.fmean(values) for values in means] if means and means[0] else None


def class_mean(values: Mapping[str, Any]) -> float:
    """Accuracy as VisDA-C reports it: the mean over the classes that there are, as a share.

    >>> class_mean({"per_class": [1.0, 0.5, None]})
    0.75
    """
    known = [value for value in values["per_class"] if value is not None]
    return math.fsum(known) / len(known)


def evenness(histogram: Sequence[int]) -> float:
    """Entropy of the predicted classes, as a share of the largest that so many images can have.

    >>> evenness([5, 5, 5, 5]), evenness([20, 0, 0, 0]), evenness([1, 1, 0, 0])
    (1.0, 0.0, 1.0)
    """
    counts = np.asarray(histogram, dtype=np.float64)
    total = counts.sum()
    most = min(len(counts), math.floor(total) if total >= 1 else len(counts))
    if most < 2:
        return 1.0
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum() / math.log(most)) + 0.0
