"""How the time of a step grows with classes, batch, resolution and images, and what is not the network's.

    python benchmarks/scaling.py                  # all of it
    python benchmarks/scaling.py --only overhead  # curves, share, alone or overhead

Nothing may grow faster than linearly, the SLR objective may take 2% of a step of ResNet-50 at most, and
`Adapter` may add 200 microseconds at most to what a step needs. Written first, then asserted.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from amx import bf16_environment
from records import write
from speed import BF16, Row, Worker, WorkerError, machine, spread
from speed_worker import IMAGENET, SEED, Job, make_network
from torch import Tensor, nn

from acclimate import METHODS, Adapter, InputTransformation
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.demo.network import SmallResNet
from acclimate.fast import TRICKS
from acclimate.fast.lean import Lean
from acclimate.fast.measures import Measures, Shown, native_measures
from acclimate.fast.recycling import keep_memory
from acclimate.objectives import Objective
from acclimate.optimization import make_optimizer

CLASSES = (10, 100, 1000, 4096, 10_000, 21_841)
BATCHES = (2, 4, 8, 16, 32, 64)
SIDES = (32, 64, 96, 128, 160, 192, 224)
IMAGES = (64, 128, 256, 512, 1024)
BATCH = 16
STEPS = 2000
TURNS = 200
LINEAR, SHARE, OVERHEAD = 1.1, 2.0, 200.0
"""The most that is allowed: exponent, per cent of a step, microseconds."""

Action = Callable[[], object]


def seconds(action: Action, times: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - started) / times


def medians(actions: Mapping[int, Action], rounds: int) -> dict[int, float]:
    """Median seconds of each action over rounds that go through all of them; short ones are repeated."""
    times = {}
    for x, action in actions.items():
        action()
        times[x] = math.ceil(0.02 / seconds(action))
    found: dict[int, list[float]] = {x: [] for x in actions}
    for _ in range(rounds):
        for x, action in actions.items():
            found[x].append(seconds(action, times[x]))
    return {x: statistics.median(values) for x, values in found.items()}


def fitted(points: Mapping[int, float]) -> Row:
    """t = a x^b over the upper half of the points, where fixed costs are least, and t = a + b x over all."""
    x, t = np.array(list(points), float), np.array(list(points.values()))
    half = len(x) // 2
    exponent, _ = np.polyfit(np.log(x[half:]), np.log(t[half:]), 1)
    slope, fixed = np.polyfit(x, t, 1)
    return {
        "exponent": round(float(exponent), 3),
        "fixed_ms": round(1e3 * float(fixed), 3),
        "us_per_unit": float(f"{1e6 * slope:.4g}"),
    }


class OneNorm(nn.Module):
    """The least that can adapt: one weight for each logit."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(classes))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def objective(classes: int, batch: int = 64, *, shared: bool = True) -> Action:
    """SLR with L_div by itself, forward and backward."""
    torch.manual_seed(SEED)
    logits = (3 * torch.randn(batch, classes)).requires_grad_()
    loss = Objective(METHODS["slr"], classes, shared=shared)

    def run() -> None:
        logits.grad = None
        loss(logits).backward()

    return run


def by_classes() -> dict[int, Action]:
    images = bundled_images()[0][:64]

    def step(classes: int) -> Action:
        torch.manual_seed(SEED)
        adapter = Adapter(SmallResNet(1, classes), "slr", normalize=(MEAN, STD))
        return lambda: adapter(images)

    return {classes: step(classes) for classes in CLASSES}


def of_resnet18(shapes: Mapping[int, tuple[int, int]]) -> dict[int, Action]:
    """Steps with so many images of so many pixels a side."""
    adapter = Adapter(make_network("resnet18", 224), "slr", normalize=IMAGENET)
    images = {x: torch.rand(batch, 3, side, side) for x, (batch, side) in shapes.items()}
    return {x: (lambda pixels=pixels: adapter(pixels)) for x, pixels in images.items()}  # type: ignore[misc]


def by_images() -> dict[int, Action]:
    images = bundled_images()[0]
    adapter = Adapter(bundled_model(), "slr", normalize=(MEAN, STD))

    def fit(count: int) -> Action:
        return lambda: adapter.fit(images[:count], 1, progress=False)

    return {count: fit(count) for count in IMAGES}


CURVES: dict[str, tuple[str, Callable[[], dict[int, Action]]]] = {
    "the SLR objective by itself, batch 64": ("classes", lambda: {n: objective(n) for n in CLASSES}),
    "a step of a network of 8 layers, batch 64, 32 px": ("classes", by_classes),
    "a step of ResNet-18, 64 px": ("images of a batch", lambda: of_resnet18({n: (n, 64) for n in BATCHES})),
    "a step of ResNet-18, batch 8": ("pixels", lambda: of_resnet18({s * s: (8, s) for s in SIDES})),
    "an epoch of the bundled network": ("images", by_images),
}
"""What is timed, the unit that the work is linear in, and an action for each number of units."""


def curves(args: argparse.Namespace) -> Iterator[Row]:
    # from its first step on, malloc keeps memory, as it does wherever something adapts
    Adapter(OneNorm(10), "slr", freeze="none")(torch.rand(8, 10))
    for what, (unit, make) in CURVES.items():
        points = medians(make(), args.rounds)
        shown = {str(x): float(f"{t:.4g}") for x, t in points.items()}
        yield {"part": "curves", "what": what, "unit": unit, **fitted(points), "seconds": shown}


def share(args: argparse.Namespace) -> Iterator[Row]:
    """The objective beside a whole step of SLR, which runs in a process of its own."""
    alone = objective(1000, args.batch)
    for precision, options in {"fp32": {}, "bf16": BF16}.items():
        if options and bf16_environment()[0] is None:
            continue
        where = f"a step of {args.network}, batch {args.batch}"
        row: Row = {"part": "share", "what": f"the SLR objective, 1,000 classes, in {where}"}
        row["precision"] = precision
        worker = Worker(Job(args.network, args.batch, args.size, "slr", options))
        try:
            pairs = [(worker.ask("go")["seconds"], seconds(alone, 20)) for _ in range(2 + args.rounds)][2:]
        except WorkerError as error:
            yield {**row, "error": str(error)}
            continue
        finally:
            worker.close()
        step, loss = (statistics.median(column) for column in zip(*pairs, strict=True))
        row |= {"objective_ms": round(1e3 * loss, 3), "step_ms": round(1e3 * step, 1)}
        yield {**row, "percent": spread([100 * own / whole for whole, own in pairs])[0]}


def overhead(args: argparse.Namespace) -> Iterator[Row]:
    """A step of `Adapter` beside forward, objective, backward and update written out, taking turns."""
    images = torch.rand(8, 10)
    adapter = Adapter(OneNorm(10), "slr", freeze="none", optimizer="sgd")
    adapter(images)
    model, loss = OneNorm(10), copy.deepcopy(adapter._engine.objective)
    own = adapter._engine._optimizer
    assert loss is not None
    assert own is not None
    optimizer = type(own)(model.parameters(), **own.defaults)

    def by_hand() -> None:
        value = loss(model(images))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()

    pairs = [(seconds(lambda: adapter(images)), seconds(by_hand)) for _ in range(100 + STEPS)][100:]
    ours, theirs = (1e6 * statistics.median(column) for column in zip(*pairs, strict=True))
    yield {
        "part": "overhead",
        "what": "a step of a network with one parameter",
        "steps": STEPS,
        "adapter_us": round(ours, 1),
        "by_hand_us": round(theirs, 1),
        "difference_us": round(ours - theirs, 1),
    }


def alone(args: argparse.Namespace) -> Iterator[Row]:
    """Savings that are too small a part of a step to be seen there, by themselves, with and without."""
    pairs: dict[str, tuple[str, Action, Action]] = {}
    for classes in CLASSES[2], CLASSES[-1]:
        what = f"the SLR objective, batch 64, {classes:,} classes"
        shared, apart = (objective(classes, shared=is_shared) for is_shared in (True, False))
        pairs[what] = ("objective", shared, apart)
    for network in ("resnet50", "densenet121"):
        for method in ("slr", "tent"):
            fused, single = (_update(network, method, fused=is_fused) for is_fused in (True, False))
            what = f"an update of {network} by {METHODS[method].optimizer}"
            pairs[what] = ("optimizer", fused, single)
        what = f"what the guard looks at in a step of {network}, batch 64"
        pairs[what] = ("measures", *_looks(network))
    for side in (32, 224):
        what = f"the input transformation, forward and backward, {BATCH} images of {side} pixels a side"
        ours, other = (_transformation(side, is_trained) for is_trained in (True, False))
        pairs[what] = ("trained", ours, other)
    for what, (saving, ours, other) in pairs.items():
        turns = TURNS if seconds(ours) < 0.1 else TURNS // 10
        found = [(seconds(ours), seconds(other)) for _ in range(turns // 10 + turns)][turns // 10 :]
        took = {
            key: statistics.median(pair[i] for pair in found) for i, key in enumerate(("with", "without"))
        }
        times, iqr = spread([without / own for own, without in found])
        row = {"part": "alone", "what": what, "saving": saving, "turns": turns}
        yield (
            row
            | {f"{key}_us": round(1e6 * t, 1) for key, t in took.items()}
            | {"cost": times, "cost_iqr": iqr}
        )


def _transformation(side: int, is_trained: bool) -> Action:
    """In the mode in which a network runs while it adapts."""
    keep_memory()
    transform = InputTransformation(generator=torch.Generator().manual_seed(SEED))
    lean = Lean([name for name in TRICKS if is_trained or name != "trained"])
    images = torch.rand(BATCH, 3, side, side).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        transform.tau.fill_(0.7)  # as after some steps

    def run() -> None:
        transform.zero_grad(set_to_none=True)
        with lean:
            made = transform(images)
        made.square().mean().backward()

    return run


def _looks(network: str) -> tuple[Action, Action]:
    """Gradients, the parameters' way, logits and class distribution, by the kernel and by torch."""
    adapter = Adapter(make_network(network, 224), "slr", normalize=IMAGENET)
    source = [p.detach().clone() for p in adapter._engine.parameters.values()]
    native = native_measures(source)
    assert native is not None, "there is no C compiler"
    now = [p + 1e-3 * torch.randn_like(p) for p in source]
    gradients = [1e-3 * torch.randn_like(p) for p in source]
    logits = torch.randn(64, 1000)
    p = logits.softmax(1).mean(0)
    shown = Shown(p.mean(), p.amax(), p, gradients, now, source, logits)
    plain = Measures()
    return (lambda: native(shown)), (lambda: plain(shown))


def _update(network: str, method: str, *, fused: bool) -> Action:
    """Of all parameters that the method adapts."""
    adapter = Adapter(make_network(network, 224), method, normalize=IMAGENET)
    parameters = {name: nn.Parameter(p.detach().clone()) for name, p in adapter._engine.parameters.items()}
    for parameter in parameters.values():
        parameter.grad = 1e-3 * torch.randn_like(parameter)
    return make_optimizer(adapter.method, parameters, fused=fused).step


PARTS = {"curves": curves, "share": share, "alone": alone, "overhead": overhead}


def too_much(row: Row) -> bool:
    limits: dict[str, Any] = {"exponent": LINEAR, "percent": SHARE, "difference_us": OVERHEAD}
    return any(row[key] > limit for key, limit in limits.items() if key in row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--network", default="resnet50", help="of the share")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--name", default="scaling")
    args = parser.parse_args()
    protocol = {"method": "slr", "weights": f"random, seed {SEED}", "rounds": args.rounds, **machine()}
    rows: list[Row] = []
    for part in [args.only] if args.only else PARTS:
        for row in PARTS[part](args):
            print(row, flush=True)
            rows.append(row)
            write(args.name, protocol, rows)
    failed = [row for row in rows if too_much(row)]
    assert not failed, failed


if __name__ == "__main__":
    main()
