"""Search the hyperparameters of `setting="few"`: few classes, on the validation corruptions only.

Two networks of ten classes (the bundled one and a CIFAR-10 ResNet-20), four validation corruptions at
severity 5. One stage fixes what the next one builds on; TENT and TENT+ are given the same freedom in
learning rate and optimiser. A configuration that is in the record is not measured again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from cifar import NORMALIZE, corrupted, load_images, load_model
from records import RESULTS, write

from acclimate import Adapter
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model

NAME, IMAGES, EPOCHS, SEED = "few_search", 1000, 2, 2020
NETWORKS: dict[str, tuple[Callable[..., torch.nn.Module], Callable[..., Any], Any]] = {
    "bundled": (bundled_model, bundled_images, (MEAN, STD)),
    "cifar10_resnet20": (load_model, load_images, NORMALIZE),
}
PROTOCOL = {
    "images": f"first {IMAGES} of each data set", "severity": 5, "epochs": EPOCHS, "batch_size": 64,
    "evaluation": "after-epoch", "seed": SEED, "corruptions": list(VALIDATION_NAMES),
}  # fmt: skip


def cells() -> Iterator[tuple[str, str, torch.Tensor, torch.Tensor]]:
    for network, (_, load, _) in NETWORKS.items():
        images, labels = load()
        for corruption in VALIDATION_NAMES:
            yield network, corruption, corrupted(images[:IMAGES], corruption, 5), labels[:IMAGES]


class Search:
    """Measures configurations, once each, and keeps them in the record."""

    def __init__(self) -> None:
        path = RESULTS / f"{NAME}.json"
        self.rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
        self._cells = list(cells())

    def score(self, method: str, **options: Any) -> float:
        """Mean accuracy over all cells."""
        config = {"method": method, **options}
        for row in self.rows:
            if row["config"] == config:
                return float(row["mean"])
        scores = {}
        for network, corruption, images, labels in self._cells:
            make, _, normalize = NETWORKS[network]
            adapter = Adapter(make(), method, normalize=normalize, setting="paper", seed=SEED, **options)
            adapter.fit(images, EPOCHS, progress=False)
            right = adapter.predict(images, batch_size=64).argmax(1).eq(labels)
            scores[f"{network} {corruption}"] = round(100 * right.float().mean().item(), 2)
        row = {"config": config, "mean": round(sum(scores.values()) / len(scores), 3), "accuracy": scores}
        self.rows.append(row)
        write(NAME, PROTOCOL, self.rows)
        print(row["mean"], config, flush=True)
        return float(row["mean"])

    def best(self, method: str, fixed: dict[str, Any], **choices: list[Any]) -> dict[str, Any]:
        """The best of all combinations of choices."""
        options = [
            {**fixed, **dict(zip(choices, values, strict=True))} for values in product(*choices.values())
        ]
        return max(options, key=lambda option: self.score(method, **option))


def main() -> None:
    search = Search()
    for method in ("source", "bn", "tent", "tent+", "hlr", "slr", "slr+it"):
        search.score(method)  # the paper's setting
    start = {"kappa": 0.0, "freeze": "none"}
    slr = search.best("slr", start, lr=[1e-3, 3e-3, 1e-2, 3e-2], delta=[0.025, 0.1, 0.25, 1.0])
    slr = search.best("slr", slr, kappa=[0.0, 0.9], freeze=["none", "top"])
    search.best("hlr", slr, delta=[slr["delta"] / 2, slr["delta"]])
    search.best("slr+it", slr, width=[16, 32, 64], depth=[2])
    for method in ("tent", "tent+"):
        search.best(method, {}, optimizer=["sgd", "adam"], lr=[1e-3, 3e-3, 1e-2])
    for row in sorted(search.rows, key=lambda row: -row["mean"])[:10]:
        print(row["mean"], row["config"])


if __name__ == "__main__":
    main()
