"""Whether the guard, the gate and the calibration can be trusted, on the bundled network and on CIFAR-10.

    python benchmarks/trust.py                    # all of it, by two processes: about half an hour
    python benchmarks/trust.py --only too-high    # too-high, default or cost
    python benchmarks/trust.py --data cifar       # rows of the bundled network and the cost stay as they are

too-high    learning rates a hundred times too high, without and with the guard
default     three hundred runs with the defaults: alarms are false ones
cost        what the guard does in a step of ResNet-50, timed by itself

Every run is also judged by the gate and calibrated, and labels then say who was right. The guard's limits
were set by looking at runs on fog, contrast, impulse noise and clean images (bundled network) and on speckle
noise and saturate (CIFAR-10): for those this is no test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import torch
from cifar import IMAGES as CIFAR10
from cifar import NORMALIZE, corrupted, load_images, load_model
from records import RESULTS, origin, write
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.corruptions import CORRUPTIONS, VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateWarning, DivergenceError
from acclimate.fast.measures import Shown
from acclimate.gate import judge
from acclimate.guard import look_at
from acclimate.metrics import measure
from acclimate.stability import Views, temperature_for

METHODS = ("tent", "tent+", "pl", "hlr", "slr", "slr+it")
SEEDS = (2020, 2021, 2022)
EPOCHS, BATCH, SEVERITY = 3, 64, 5
IMAGES = {"bundled": 256, "cifar": 512}
TOO_HIGH = 100.0
ALLOWED = 2.0
"""Points below bn, with the guard."""
CLEAN = "clean"

Row = dict[str, Any]


@lru_cache(maxsize=2)
def network(data: str) -> tuple[nn.Module, Any, Tensor, Tensor]:
    if data == "bundled":
        return bundled_model(), (MEAN, STD), *bundled_images()
    return load_model(20), NORMALIZE, *load_images()


@lru_cache(maxsize=4)
def images_of(data: str, corruption: str) -> tuple[Tensor, Tensor]:
    _, _, clean, labels = network(data)
    count = IMAGES[data]
    images = clean[:count] if corruption == CLEAN else corrupted(clean[:count], corruption, SEVERITY)
    return images, labels[:count]


@lru_cache(maxsize=4)
def views_of_source(data: str, corruption: str, seed: int) -> Views:
    model, normalize, _, _ = network(data)
    source = Adapter(model, "source", normalize=normalize, seed=seed)
    return source.views(images_of(data, corruption)[0], batch_size=BATCH)


@lru_cache(maxsize=4)
def untrained(data: str, corruption: str, seed: int) -> dict[str, float]:
    """Accuracy in % without adaptation, and with statistics only."""
    model, normalize, _, _ = network(data)
    images, labels = images_of(data, corruption)
    found = {}
    for method in ("source", "bn"):
        logits = Adapter(model, method, normalize=normalize, seed=seed).predict(images, batch_size=BATCH)
        found[method] = percent(measure(logits, labels).accuracy)
    return found


def percent(share: float) -> float:
    return round(100 * share, 2)


def row_of(data: str, corruption: str, method: str, seed: int, times: float, guard: bool) -> Row:
    """One adaptation, judged and calibrated."""
    torch.set_num_threads(1)
    model, normalize, _, _ = network(data)
    images, labels = images_of(data, corruption)
    row: Row = {"data": data, "corruption": corruption, "method": method, "seed": seed, "times": times,
                "guard": guard, **untrained(data, corruption, seed)}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        lr = Adapter(model, method, normalize=normalize).method.lr * times
        adapter = Adapter(model, method, normalize=normalize, seed=seed, lr=lr, guard=guard)
        online: list[Tensor] = []

        def keep(logits: Tensor, index: Tensor | None) -> None:
            assert index is not None
            online.append(logits.argmax(1).eq(labels[index]))

        try:
            adapter.fit(images, EPOCHS, batch_size=BATCH, progress=False, on_logits=keep)
        except DivergenceError:
            return {**row, "diverged": True, "accuracy": 0.0, "alarms": []}
        first = torch.cat(online[: len(online) // EPOCHS])
        views = adapter.views(images, batch_size=BATCH)
    verdict = judge(views_of_source(data, corruption, seed), views)
    temperature = temperature_for(views.logits, views.agreement)
    logits = adapter.predict(images, batch_size=BATCH)
    before, after = (measure(found, labels) for found in (logits, logits / temperature))
    return row | {
        "accuracy": percent(before.accuracy), "online": percent(first.double().mean().item()),
        "alarms": [alarm.signal for alarm in adapter.history.alarms], "accepted": verdict.accepted,
        "scores": [round(verdict.figures[f"{who}_score"] or 0.0, 4) for who in ("source", "adapted")],
        "kept": round(verdict.figures["stable_predictions_kept"] or 0.0, 4),
        "temperature": round(temperature, 3),
        "ece": [percent(before.ece), percent(after.ece)], "nll": [round(q.nll, 4) for q in (before, after)],
    }  # fmt: skip


def places(chosen: Collection[str]) -> Iterator[tuple[str, str]]:
    """Every corruption of the demo, and CIFAR's validation corruptions."""
    names = {"bundled": (*CORRUPTIONS, CLEAN), "cifar": (*VALIDATION_NAMES, CLEAN)}
    yield from ((data, corruption) for data in chosen for corruption in names[data])


def jobs_of(part: str, chosen: Collection[str]) -> Iterator[tuple[Any, ...]]:
    for data, corruption in places(chosen):
        if part == "too-high" and corruption != CLEAN:
            for method in METHODS:
                for guard in (False, True):
                    yield data, corruption, method, SEEDS[0], TOO_HIGH, guard
        if part == "default":
            for method in ("tent+", "hlr", "slr", "slr+it") if data == "bundled" else ("tent+", "slr"):
                for seed in SEEDS if (method, data) != ("tent+", "cifar") else SEEDS[:1]:
                    yield data, corruption, method, seed, 1.0, True
            if data == "bundled":
                yield data, corruption, "tent", SEEDS[0], 1.0, True
                yield data, corruption, "pl", SEEDS[0], 1.0, True


def cost() -> Row:
    """Everything that the guard adds to a step, beside a step; of ResNet-50 at 224 pixels, batch 64."""
    from speed_worker import IMAGENET, make_network

    adapter = Adapter(make_network("resnet50", 224), "slr", normalize=IMAGENET)
    images = torch.rand(BATCH, 3, 224, 224)
    logits = adapter(images)
    engine = adapter._engine
    assert engine.objective is not None
    followed = engine.objective.distribution

    assert followed.confidence is not None
    seen = Shown(followed.confidence, followed.confidence, followed.p, ())
    watched = seen._replace(now=engine.guard.way[0], source=engine.guard.way[1], logits=logits)

    def watch() -> None:
        look = look_at(engine._measures(watched), followed, engine.guard, BATCH)
        engine.guard.finding(look)

    def seconds(action: Any, times: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            action()
        return (time.perf_counter() - begun) / times

    each = [
        (seconds(lambda: adapter(images), 1), seconds(watch, 20), seconds(engine._copied, 20))
        for _ in range(5)
    ]
    step, watching, copying = (statistics.median(column) for column in zip(*each, strict=True))
    guarded = watching + copying / 10  # a state is kept every ten steps
    return {
        "part": "cost", "network": "resnet50", "batch": BATCH, "step_ms": round(1e3 * step, 1),
        "watching_ms": round(1e3 * watching, 3), "copying_ms": round(1e3 * copying, 3),
        "percent": round(100 * guarded / step, 4),
    }  # fmt: skip


def checked(rows: list[Row]) -> None:
    """What was promised."""
    for row in rows:
        if row["part"] == "too-high" and row["guard"]:
            assert row["accuracy"] >= row["bn"] - ALLOWED, row
        if row["part"] == "default":
            assert not row["alarms"], row
        if row["part"] == "cost":
            assert row["percent"] <= 1.0, row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=["too-high", "default", "cost"])
    parser.add_argument("--data", choices=list(IMAGES), help="only this network, beside earlier rows")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--name", default="trust")
    args = parser.parse_args()
    path = RESULTS / f"{args.name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    goes_on = bool(earlier) and (args.data is not None or earlier["origin"] == origin())
    rows: list[Row] = earlier["rows"] if goes_on else []
    protocol: Row = {
        "data": CIFAR10, "epochs": EPOCHS, "batch_size": BATCH, "severity": SEVERITY, "images": IMAGES,
        "times_too_high": TOO_HIGH,
        "evaluation": "after the last epoch, batch statistics of shuffled batches",
    }  # fmt: skip
    if args.data and goes_on:
        others = [name for name in IMAGES if name != args.data]
        protocol["continued_from"] = f"{earlier['origin']['commit']} ({', '.join([*others, 'cost'])})"
    chosen = [args.data] if args.data else list(IMAGES)
    parts = ["too-high", "default"] if args.data else ["cost", "too-high", "default"]
    for part in [args.only] if args.only else parts:
        if part == "cost":
            rows = [*(row for row in rows if row["part"] != part), cost()]
            print(rows[-1], flush=True)
        else:
            rows = [row for row in rows if row["part"] != part or row["data"] not in chosen]
            with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
                for one in [pool.submit(row_of, *job) for job in jobs_of(part, chosen)]:
                    rows.append({"part": part, **one.result()})
                    print(rows[-1], flush=True)
        write(args.name, protocol, rows)
    checked(rows)


if __name__ == "__main__":
    main()
