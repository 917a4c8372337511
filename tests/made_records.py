"""Whole records whose truth is known, as `acclimate bench` and `acclimate adapt` write them."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch

from acclimate.bench.spec import Cell, Data, Network
from acclimate.methods import parse_method
from acclimate.recording import picture
from acclimate.records import SCHEMA, Record

CLASSES = 10
HOSTILE = """<script>alert("1")</script> '&amp; %_#{}$^~\\ κ 猫 ü ‮""" + "x" * 300
ORIGIN = {
    "acclimate": "1", "commit": "c0ffee", "torch": "2", "python": "3", "machine": "x", "system": "L",
}  # fmt: skip
PIXEL = picture(torch.zeros(3, 2, 2))


def quality(accuracy: float, **changes: Any) -> dict[str, Any]:
    """Of 1,000 images, all in two bins of confidence."""
    share = accuracy / 100
    return {
        "accuracy": share, "per_class": [share] * CLASSES, "nll": 1.0, "brier": 0.5, "ece": abs(0.9 - share),
        "bins": [[0, 0.0, 0.0]] * 12 + [[500, 0.85, share], [500, 0.95, share], [0, 0.0, 0.0]],
        "histogram": [100] * CLASSES, "logit_norm": 5.0, **changes,
    }  # fmt: skip


def measured(method: str, accuracy: float, **changes: Any) -> Record:
    """A record with this accuracy in % after the last epoch, one less after each before and online."""
    histogram = changes.pop("histogram", [100] * CLASSES)
    ssim, network = changes.pop("ssim", None), changes.pop("network", "net")
    data, images = changes.pop("data", "data"), changes.pop("images", 1000)
    cell = Cell(
        network=Network(name=network),
        data=Data(name=data, path=f"{data}.npz"),
        method=method,
        **{"corruption": "fog", "severity": 5, "seed": 2020, "epochs": 5, **changes},
    )
    learns = method not in ("source", "bn")
    last = cell.epochs if learns else 1
    after = {
        str(epoch): {**quality(accuracy - (last - epoch), histogram=histogram), "class_entropy": 2.3}
        for epoch in range(1, last + 1)
    }
    steps: dict[str, Any] = {"step": []}
    if learns:
        steps = {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.0], "confidence": [0.5, 0.6, 0.7],
                 "class_entropy": [2.3, 2.2, 2.1], "accuracy": [0.1, 0.2, 0.3]}  # fmt: skip
    result = {
        "online": quality(accuracy - last if learns else accuracy),
        "after_epoch": after,
        "steps": steps,
    }
    if ssim is not None:
        result["ssim"] = {"before": ssim[0], "after": ssim[1], "images": 10}
        names = ("clean", "shifted", "transformed")
        result["gallery"] = [{"name": "a", "ssim": list(ssim), **dict.fromkeys(names, PIXEL)}]
    return {
        "schema": SCHEMA,
        "cell": cell.model_dump(mode="json"),
        "spec": spec(method, images),
        "result": result,
        "cost": {"seconds": 1.5},
        "origin": ORIGIN,
    }


def spec(method: str, images: int) -> dict[str, Any]:
    chosen = parse_method("slr" if method == "oracle" else method)
    return {
        "weights": "w", "modified": False, "data": "d", "images": images, "images_adapted_to": images,
        "shape": [3, 32, 32], "layout": "arrays", "class_names": None, "setting": "paper",
        "method": {**chosen.__dict__, "betas": list(chosen.betas)},
        "options": {"normalize": None, "freeze": "auto", "statistics": "batch"},
        "protocol": ["online", "after-epoch"], "precision": "fp32", "guard": False, "threads": 1,
    }  # fmt: skip


def failed(reason: str) -> Record:
    record = measured("slr", 50.0, seed=7)
    del record["result"], record["spec"]
    return {**record, "error": {"reason": reason, "trace": []}}


def unlabelled(name: str = "photos", *, class_names: list[str] | None = None, file: str = "a.png") -> Record:
    """An adaptation to images without labels."""
    record = copy.deepcopy(measured("slr+it", 50.0, data=name, corruption=None, severity=None))
    last = record["result"]["after_epoch"]["5"]
    side = {
        "confidence": 0.5,
        "bins": [[n, sure, None] for n, sure, _ in last["bins"]],
        "histogram": last["histogram"],
        "logit_norm": 5.0,
    }
    record["spec"]["class_names"] = class_names
    record["result"] = {
        "before": side,
        "after_epoch": {"5": {**side, "confidence": 0.75, "class_entropy": 2.2}},
        "changed": 250,
        "steps": {"step": [1, 2], "loss": [2.0, 1.0], "confidence": [0.5, 0.6], "class_entropy": [2.3, 2.2]},
        "gallery": [{"name": file, "shifted": PIXEL, "transformed": PIXEL}],
        "cautions": ["the predictions fall on few classes"],
    }
    return record


def many(count: int) -> list[Record]:
    """A grid of so many records, with accuracies drawn at random."""
    from acclimate.corruptions import CORRUPTIONS

    rng = random.Random(0)
    methods = ("source", "bn", "pl", "tent", "tent+", "hlr", "slr", "slr+it", "oracle")
    templates = {
        method: measured(method, 50.0, ssim=(0.5, 0.6) if "+it" in method else None) for method in methods
    }
    found: list[Record] = []
    for number in range(count):
        rest, seed = divmod(number, 2)
        rest, method = divmod(rest, len(methods))
        rest, corruption = divmod(rest, len(CORRUPTIONS))
        network, severity = divmod(rest, 5)
        record = copy.deepcopy(templates[methods[method]])
        record["cell"] |= {
            "corruption": list(CORRUPTIONS)[corruption],
            "severity": severity + 1,
            "seed": 2020 + seed,
        }
        record["cell"]["network"]["name"] = f"network {network}"
        for values in (record["result"]["online"], *record["result"]["after_epoch"].values()):
            values["accuracy"] = rng.random()
        found.append(record)
    return found


def small() -> list[Record]:
    """Two corruptions; SLR with two seeds; TENT lacks a corruption."""
    return [
        measured("source", 30.0),
        measured("source", 40.0, corruption="snow"),
        measured("tent", 45.0),
        measured("slr", 50.0),
        measured("slr", 54.0, seed=2021),
        measured("slr", 38.0, corruption="snow"),
        measured("slr", 36.0, corruption="snow", seed=2021),
        measured("oracle", 90.0),
        measured("oracle", 92.0, corruption="snow"),
    ]
