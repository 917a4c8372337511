"""Records whose figures are chosen, and the paper's tables as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from acclimate.bench import compare
from acclimate.records import SCHEMA, Record

SEEDS = (2020, 2021, 2022)
STOCK = {"name": "resnet50.IMAGENET1K_V1", "weights": None}
MODIFIED = {"name": "resnet50.IMAGENET1K_V1", "weights": "resnet50_shot.safetensors"}
VISDA: dict[str, Any] = {"data": {"name": "visda-c"}, "corruption": None, "severity": None}
NAMES = {"No Adaptation": "source", "No adaptation": "source", "Pseudo Labels": "pl", "Groundtruth": "oracle"}
HOSTILE = '<script>"x"</script> \'%&_#{}$^~\\ [*] 水é\x07\x7fĦ ' + 250 * "x"


def record(method: str, accuracy: float, **changes: Any) -> Record:
    """Of an accuracy in % after the last epoch, and after epoch 1 unless ``first`` says otherwise."""
    first, ssim = changes.pop("first", accuracy), changes.pop("ssim", None)
    last, setting = changes.pop("last", 5), changes.pop("setting", "paper")
    cell = {
        "network": STOCK, "data": {"name": "imagenet-c"}, "corruption": "fog", "severity": 5,
        "method": method, "overrides": {}, "subset": None, "seed": 2020, "epochs": last, "batch_size": 64,
        "setting": setting, **changes,
    }  # fmt: skip
    spec = {
        "images": 9, "setting": setting, "modified": "shot" in (cell["network"]["weights"] or ""),
        "weights": str(cell["network"]), "data": f"{cell['data']} {cell['corruption']} {cell['severity']}",
    }  # fmt: skip

    def after(value: float) -> dict[str, Any]:
        return {"accuracy": value / 100, "histogram": [1, 1], "per_class": [value / 100, None]}

    learns = method not in ("source", "bn")
    epochs = {"1": after(first), str(last): after(accuracy)} if learns else {"1": after(accuracy)}
    result = {"online": after(first), "after_epoch": epochs, "ssim": ssim}
    return {"schema": SCHEMA, "cell": cell, "spec": spec, "result": result, "cost": {}, "origin": {}}


def over_seeds(
    method: str, last: Sequence[float], first: Sequence[float] = (), **changes: Any
) -> list[Record]:
    """Three seeds with this mean and standard deviation after the last and the first epoch."""
    mean, spread = last
    early, early_spread = first or last
    return [
        record(method, mean + side * spread, first=early + side * early_spread, seed=seed, **changes)
        for side, seed in zip((-1, 0, 1), SEEDS, strict=True)
    ]


def published(*tables: str) -> list[Record]:
    """The paper's tables of these names."""
    found: dict[tuple[str, str, str], dict[int, tuple[float, float]]] = {}
    for row in compare._published():
        if row["table"] not in tables or row["method"].startswith("SSIM"):
            continue
        method = NAMES.get(row["method"], row["method"].lower())
        if row["pseudo_labelling"] == "yes":
            method = "shot" if method == "tent+" else f"{method}+shot"
        values = found.setdefault((row["table"], method, row["corruption"]), {})
        values[int(row["epoch"] or 5)] = (float(row["value"]), float(row["std"] or 0))
    return [one for key, values in found.items() for one in _published(*key, values)]


def _published(
    table: str, method: str, corruption: str, values: dict[int, tuple[float, float]]
) -> Iterable[Record]:
    changes: dict[str, Any] = {"corruption": corruption}
    if table == "visda_c":
        changes = {**VISDA, "setting": "visda-c"}
    elif "modified" in table:
        changes["network"] = MODIFIED
    last = values[max(values)]
    first = values.get(1, last)
    if not last[1]:  # a figure without error bars is one run
        return [record(method, last[0], first=first[0], **changes)]
    return over_seeds(method, last, first, **changes)


def hostile_records() -> list[Record]:
    """One of every kind, of networks and data with names that nobody would choose."""
    place: dict[str, Any] = {"network": {**STOCK, "name": HOSTILE}, "data": {"name": HOSTILE}}
    labelled: dict[str, Any] = {"network": {"name": "x", "weights": "shot" + HOSTILE.replace("/", "")}}
    methods = [
        "source",
        "pl",
        "tent",
        "tent+",
        "hlr",
        "slr",
        "slr+it",
        "shot",
        "hlr+shot",
        "slr+shot",
        "oracle",
    ]
    ssim = {"before": 0.5, "after": 0.6}
    stock = [record(m, 50 + i, ssim=ssim, **place) for i, m in enumerate(methods)]
    modified = [record(m, 50 + i, ssim=ssim, **{**place, **labelled}) for i, m in enumerate(methods)]
    return [*stock, *modified, *(record(m, 60, **VISDA) for m in ("source", "slr"))]
