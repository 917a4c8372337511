"""Figures out of records: means over seeds for each corruption, then over what all sides have measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.bench.records import Record

__all__ = ["Figure", "by_corruption", "common", "figures"]


@dataclass(frozen=True)
class Figure:
    """One cell after one epoch, or online."""

    network: str
    modified: bool
    """Whether the network has SHOT's head."""
    data: str
    corruption: str
    """Empty where there is none."""
    severity: int
    method: str
    overrides: tuple[tuple[str, Any], ...]
    classes: float
    """The fraction of the classes that was adapted to."""
    samples: float
    seed: int
    epoch: int
    """0 for the online pass; -1 is the last one that was evaluated, as well as its number."""
    accuracy: float
    values: dict[str, Any]
    ssim: tuple[float, float] | None

    @property
    def plain(self) -> bool:
        """Adapted to all images with the method's own hyperparameters."""
        return not self.overrides and self.classes == self.samples == 1


def figures(records: Iterable[Record]) -> list[Figure]:
    """Every evaluation of every record that has a result; the last epoch twice, also as epoch -1."""
    found = []
    for record in records:
        if "result" not in record:
            continue
        after = {int(epoch): values for epoch, values in record["result"]["after_epoch"].items()}
        passes = {0: record["result"]["online"], **after, -1: after[max(after)]}
        found += [_figure(record, epoch, values) for epoch, values in passes.items()]
    return found


def _figure(record: Record, epoch: int, values: dict[str, Any]) -> Figure:
    cell, ssim = record["cell"], record["result"].get("ssim")
    subset = cell["subset"] or {}
    weights = cell["network"]["weights"] or ""
    return Figure(
        network=cell["network"]["name"] + (f" ({weights})" if weights else ""),
        modified="shot" in cell["network"]["name"] + weights or "visda" in weights,
        data=cell["data"]["name"],
        corruption=cell["corruption"] or "",
        severity=cell["severity"] or 0,
        method=cell["method"],
        overrides=tuple(sorted(cell["overrides"].items())),
        classes=subset.get("classes") or 1.0,
        samples=subset.get("samples") or 1.0,
        seed=cell["seed"],
        epoch=epoch,
        accuracy=100 * values["accuracy"],
        values=values,
        ssim=None if ssim is None else (ssim["before"], ssim["after"]),
    )


def by_corruption(
    found: Sequence[Figure],
    method: str,
    *,
    epoch: int = -1,
    of: Callable[[Figure], float] = lambda figure: figure.accuracy,
    where: Callable[[Figure], bool] = lambda figure: figure.plain,
) -> dict[str, float]:
    """For each network, data, corruption and severity the mean over seeds."""
    groups: dict[str, list[float]] = {}
    for figure in found:
        wanted = epoch if method not in ("source", "bn") else -1  # what learns nothing has one pass only
        if figure.method == method and figure.epoch == wanted and where(figure):
            key = f"{figure.network} {figure.data} {figure.corruption} {figure.severity}"
            groups.setdefault(key, []).append(of(figure))
    return {key: statistics.fmean(values) for key, values in groups.items()}


def common(*sides: dict[str, float]) -> list[float] | None:
    """The mean of each side over what all of them have; None if that is nothing."""
    keys = set.intersection(*(set(side) for side in sides)) if sides else set()
    if not keys:
        return None
    return [statistics.fmean(side[key] for key in sorted(keys)) for side in sides]
