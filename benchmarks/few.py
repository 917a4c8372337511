"""Choose the hyperparameters of `setting="few"` on the validation corruptions, then report the test ones.

    python benchmarks/few.py search    # short runs, two networks of ten classes
    python benchmarks/few.py long      # the candidates again over many more steps
    python benchmarks/few.py choose    # the learning rate that serves both
    python benchmarks/few.py clean     # what adapting to clean images costs
    python benchmarks/few.py test      # fifteen test corruptions, three seeds: once, with what was chosen

TENT and TENT+ are given the same freedom in learning rate and optimiser. Cells that are in a record are not
measured again; its protocol then says which commit it was continued from.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any

from cifar import IMAGES, NORMALIZE, corrupted, load_images, load_model
from records import RESULTS, origin, write
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.corruptions import NAMES, VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

SEVERITY, BATCH_SIZE, CLEAN = 5, 64, "clean"
METHODS = ("source", "bn", "tent", "tent+", "hlr", "slr", "slr+it")
RATES = [3e-3, 1e-2, 2e-2]
FOUND = {"kappa": 0.9, "freeze": "top", "delta": 0.05}  # by the search
TENT_RATES = [3e-3, 1e-2, 3e-2]
CANDIDATES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "slr": (FOUND, RATES),
    "tent": ({"optimizer": "sgd"}, TENT_RATES),
    "tent+": ({"optimizer": "sgd"}, TENT_RATES),
}
"""What the search found best for each method, and the rates around it."""
SEEDS = (2020, 2021, 2022)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], Any]] = {
    "bundled": (bundled_model, bundled_images, (MEAN, STD)),
    "cifar10_resnet20": (load_model, load_images, NORMALIZE),
}
DATA = {"bundled": "Fashion-MNIST, bundled", "cifar10_resnet20": IMAGES}


@dataclass(frozen=True)
class Cell:
    """What a configuration is measured on."""

    network: str
    corruption: str
    seed: int
    first: int
    last: int

    @property
    def key(self) -> str:
        return f"{self.network} {self.corruption} {self.seed}"

    @cache  # noqa: B019 - as many as there are cells
    def data(self) -> tuple[Tensor, Tensor]:
        images, labels = (part[self.first : self.last] for part in NETWORKS[self.network][1]())
        if self.corruption == CLEAN:
            return images, labels
        return corrupted(images, self.corruption, SEVERITY, self.seed), labels


def accuracy(cell: Cell, method: str, epochs: int, **options: Any) -> float:
    make, _, normalize = NETWORKS[cell.network]
    images, labels = cell.data()
    adapter = Adapter(make(), method, normalize=normalize, seed=cell.seed, **options)
    adapter.fit(images, epochs, progress=False)
    right = adapter.predict(images, batch_size=BATCH_SIZE).argmax(1).eq(labels)
    return round(100 * right.double().mean().item(), 2)


@dataclass
class Record:
    """Configurations and what they reached on each cell, kept after every configuration."""

    name: str
    cells: list[Cell]
    epochs: int
    setting: str = "paper"
    rows: list[dict[str, Any]] = field(default_factory=list)
    continued: list[str] = field(default_factory=list)
    elsewhere: bool = False
    """Whether it was measured on other images than those of today, so that nothing may be added to it."""

    def __post_init__(self) -> None:
        path = RESULTS / f"{self.name}.json"
        if path.exists():
            earlier = json.loads(path.read_text())
            self.rows, commit = earlier["rows"], earlier["origin"]["commit"]
            self.elsewhere = earlier["protocol"].get("data", DATA["bundled"]) != self._protocol()["data"]
            self.continued = earlier["protocol"].get("continued_from", [])
            if commit not in (origin()["commit"], *self.continued):
                self.continued = [*self.continued, commit]

    def score(self, method: str, **options: Any) -> float:
        """Mean accuracy over all cells; those without a figure are measured."""
        config = {"method": method, **options}
        row = next((row for row in self.rows if row["config"] == config), None)
        if row is None:
            self.rows.append(row := {"config": config, "mean": None, "accuracy": {}})
        kept = row["accuracy"]
        missing = [cell for cell in self.cells if cell.key not in kept]
        if missing and self.elsewhere:
            raise SystemExit(f"{self.name}.json was measured on other images: remove it to measure it again")
        new = {
            cell.key: accuracy(cell, method, self.epochs, setting=self.setting, **options) for cell in missing
        }
        if new:
            row["accuracy"] = {cell.key: (kept | new)[cell.key] for cell in self.cells}
            row["mean"] = round(sum(row["accuracy"].values()) / len(self.cells), 3)
            write(self.name, self._protocol(), [row for row in self.rows if row["mean"] is not None])
            print(row["mean"], config, flush=True)
        return float(row["mean"])

    def best(self, method: str, fixed: dict[str, Any], **choices: list[Any]) -> dict[str, Any]:
        """The best of all combinations of choices."""
        tried = [{**fixed, **dict(zip(choices, v, strict=True))} for v in product(*choices.values())]
        return max(tried, key=lambda options: self.score(method, **options))

    def best_row(self, method: str) -> dict[str, Any]:
        """The best options that were ever tried for a method."""
        rows = [row for row in self.rows if row["config"]["method"] == method]
        config = max(rows, key=lambda row: row["mean"])["config"]
        return {key: value for key, value in config.items() if key != "method"}

    def _protocol(self) -> dict[str, Any]:
        cell = self.cells[0]
        networks = sorted({c.network for c in self.cells})
        protocol = {
            "data": "; ".join(DATA[network] for network in networks),
            "images": f"{cell.first} to {cell.last} of each data set", "severity": SEVERITY,
            "epochs": self.epochs, "batch_size": BATCH_SIZE, "evaluation": "after-epoch",
            "setting": self.setting, "networks": networks,
            "seeds": sorted({c.seed for c in self.cells}),
            "corruptions": list(dict.fromkeys(c.corruption for c in self.cells)),
        }  # fmt: skip
        return protocol | ({"continued_from": self.continued} if self.continued else {})


def search_record() -> Record:
    return Record("few_search", [Cell(n, c, 2020, 0, 1000) for n in NETWORKS for c in VALIDATION_NAMES], 2)


def search() -> None:
    record = search_record()
    for method in METHODS:
        record.score(method)  # the paper's setting
    rates = [1e-3, 3e-3, 1e-2, 3e-2]
    start = {"kappa": 0.0, "freeze": "none"}
    slr = record.best("slr", start, lr=rates, delta=[0.025, 0.1, 0.25, 1.0])
    slr = record.best("slr", slr, kappa=[0.0, 0.9], freeze=["none", "top"])
    record.best("slr", slr, lr=[*RATES, 3e-2], delta=[0.05, 0.1, 0.25])
    for method in ("tent", "tent+"):
        record.best(method, {}, optimizer=["sgd", "adam"], lr=[*rates, 0.1])


def long_record() -> Record:
    return Record("few_long", [Cell("cifar10_resnet20", "spatter", 2020, 0, 10_000)], 5)


def long(methods: Iterable[str] = CANDIDATES) -> None:
    """Ten times the images, five epochs: does a rate that wins over 32 steps hold over 785?"""
    record = long_record()
    record.score("bn")
    for method in methods:
        fixed, rates = CANDIDATES[method]
        record.best(method, fixed, lr=rates)


def chosen(method: str) -> dict[str, Any]:
    """With the rate that loses least to the best one, over short and over long runs."""
    fixed, rates = CANDIDATES[method]
    records = (search_record(), long_record())
    scores = {lr: [record.score(method, **fixed, lr=lr) for record in records] for lr in rates}
    best = [max(column) for column in zip(*scores.values(), strict=True)]
    losses = {lr: max(b - s for b, s in zip(best, row, strict=True)) for lr, row in scores.items()}
    print(method, losses)
    return {**fixed, "lr": min(losses, key=losses.__getitem__)}


def choose() -> None:
    """The rates of all methods by one rule, and what builds on that of SLR."""
    slr, record = chosen("slr"), search_record()
    record.best("hlr", slr, delta=[0.025, 0.05, 0.1])
    record.best("slr+it", slr, width=[16, 32, 64], depth=[2])
    for method in ("tent", "tent+"):
        chosen(method)


def clean() -> None:
    """There is no free lunch: images without a shift."""
    cells = [Cell(n, CLEAN, seed, 1000, 2000) for n in NETWORKS for seed in SEEDS]
    record = Record("few_clean", cells, 2, setting="few")
    for method in METHODS:
        record.score(method)


def report(networks: Iterable[str] = NETWORKS) -> None:
    """Images that the search has not seen; TENT and TENT+ as in the paper, and as the search left them."""
    for network in networks:
        seeds = SEEDS if network == "bundled" else SEEDS[:1]  # the other takes its time
        cells = [Cell(network, c, seed, 1000, 2000) for c in NAMES for seed in seeds]
        record = Record(f"few_test_{network}", cells, 2, setting="few")
        for method in METHODS:
            record.score(method)
        for method in ("tent", "tent+"):
            record.score(method, **search_record().best_row(method))
            record.score(method, **chosen(method))


if __name__ == "__main__":
    stages = {"search": search, "long": long, "choose": choose, "clean": clean, "test": report}
    stages |= {f"long-{method}": partial(long, [method]) for method in CANDIDATES}
    stages |= {f"test-{network}": partial(report, [network]) for network in NETWORKS}  # side by side
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stage", choices=stages)
    stages[parser.parse_args().stage]()
