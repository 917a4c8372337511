"""Measured against published: figure by figure, and claim by claim."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from acclimate.bench.claims import CLAIMS
from acclimate.bench.scores import FIXED, Figure, check_one_protocol, class_mean, figures
from acclimate.records import Record

__all__ = ["CLAIMS", "Difference", "Verdict", "against_published", "judge"]

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
    "SSIM": "slr+it",
    "SSIM+IT": "slr+it",
    "Groundtruth": "oracle",
}
_STOCK, _MODIFIED = "resnet50", "resnet50_shot"  # of `PAPER_NAMES`, or as a network's factory says


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
    """A published figure and the same measured: accuracy in %, or SSIM."""

    table: str
    method: str
    """As the paper names it; ``+PL`` with pseudo labels."""
    epoch: int
    corruption: str
    published: float
    measured: float


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Every claim of the paper, held against the records."""
    found = figures(records)
    check_one_protocol(found)
    verdicts = []
    for claim, test in CLAIMS.items():
        judged = test(found)
        verdicts.append(Verdict(claim, None, "") if judged is None else Verdict(claim, *judged))
    return verdicts


def against_published(records: Sequence[Record]) -> list[Difference]:
    """For every published figure that was measured as well: ResNet-50 on ImageNet-C, severity 5, VisDA-C.

    The same network and hyperparameters; how many images there were is not asked. Which of the paper's
    networks it is, the name of published weights says, or a factory's network by its ``paper_name``.
    """
    found = figures(records)
    check_one_protocol(found)
    measured: dict[_Experiment, list[Figure]] = {}
    for figure in found:
        if figure.plain and figure.data in ("imagenet-c", "visda-c"):
            measured.setdefault(_experiment_of(figure), []).append(figure)
    differences = []
    for row in _published() if measured else []:
        if row["method"] not in _METHODS or not row["value"]:
            continue
        epoch = int(row["epoch"] or 5)
        values = [_value(figure, row["method"]) for figure in measured.get(_experiment_in(row, epoch), [])]
        known = [value for value in values if value is not None]
        if known:
            name = row["method"] + ("+PL" if row["pseudo_labelling"] == "yes" else "")
            differences.append(
                Difference(
                    row["table"], name, epoch, row["corruption"], float(row["value"]), statistics.fmean(known)
                )
            )
    return differences


def _value(figure: Figure, name: str) -> float | None:
    if name in ("SSIM", "SSIM+IT"):
        return None if figure.ssim is None else figure.ssim[name == "SSIM+IT"]
    return 100 * class_mean(figure.values) if figure.data == "visda-c" else figure.accuracy


class _Experiment(NamedTuple):
    """What a figure must have in common with a published one."""

    data: str
    network: str
    severity: int
    corruption: str
    method: str
    setting: str
    epoch: int


def _experiment_of(figure: Figure) -> _Experiment:
    """VisDA-C's network is not asked for; what learns nothing has no setting."""
    visda = figure.data == "visda-c"
    where = ("", 0, "") if visda else (figure.paper_name, figure.severity, figure.corruption)
    setting = "" if figure.method in FIXED else figure.setting
    return _Experiment(figure.data, *where, figure.method, setting, figure.epoch)


def _experiment_in(row: dict[str, str], epoch: int) -> _Experiment:
    """Of a published figure."""
    method = _METHODS[row["method"]]
    if row["pseudo_labelling"] == "yes":
        method = "shot" if method == "tent+" else f"{method}+shot"
    fixed = method in FIXED
    own = (method, "" if fixed else "paper", -1 if fixed else epoch)
    if row["table"] == "visda_c":
        return _Experiment("visda-c", "", 0, "", method, "" if fixed else "visda-c", own[2])
    network = _MODIFIED if "modified" in row["table"] else _STOCK
    return _Experiment("imagenet-c", network, 5, row["corruption"], *own)


@cache
def _published() -> list[dict[str, str]]:
    with (resources.files(__package__) / "published.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
