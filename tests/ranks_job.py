"""What `test_ranks` compares: each case in one process with whole batches, and in ranks with their shares.

As a script it is one rank: ``python ranks_job.py RANK SIZE FOLDER`` writes what every case found.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from acclimate import Adapter
from acclimate.errors import AcclimateError, AcclimateWarning, InputError
from acclimate.ranks import Ranks
from networks import CLASSES, NORMALIZE, images

Found = dict[str, Tensor]

STEPS, FEW = 20, 5
SHARES = {2: (5, 11), 3: (5, 2, 9)}
"""Of the 16 images of an online batch."""


class OwnForward(nn.BatchNorm2d):
    """A layer whose statistics are mixed outside of it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class WithSpare(nn.Module):
    """A network with a layer that gets no gradient anywhere."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.unused = model, nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


def network(dtype: torch.dtype, kind: str = "plain", seed: int = 0) -> nn.Module:
    """A few layers of each sort: every message between ranks takes its time."""
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
        nn.Conv2d(8, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip
    if kind == "instance":
        model = nn.Sequential(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), model)
    if kind == "unused":
        model = WithSpare(model)
    if kind == "own forward":
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.__class__ = OwnForward
    return model.to(dtype).eval()


def told(adapter: Adapter, logits: Tensor) -> Found:
    found = {name: tensor.detach().clone() for name, tensor in adapter._engine.changing().items()}
    found["alarms"] = torch.tensor([-1.0, *(alarm.step for alarm in adapter.history.alarms)])
    found |= {"logits": logits, "p": adapter.class_distribution, "loss": torch.tensor(adapter.history.loss)}
    if adapter._engine.objective.labels is not None:
        found["labels"] = adapter._engine.objective.labels
    return found


def fitted(
    method: str,
    dtype: torch.dtype = torch.float64,
    kind: str = "plain",
    steps: int = STEPS,
    **options: Any,
) -> Found:
    """83 images in batches of 16: the last of five is one of 19, of which ranks have uneven shares."""
    adapter = Adapter(network(dtype, kind), method, normalize=NORMALIZE, seed=3, **options)
    data = images(83).to(dtype)
    seen: list[tuple[Tensor, Tensor]] = []
    adapter.fit(data, steps // 5, batch_size=16, on_logits=lambda logits, index: seen.append((index, logits)))
    assert adapter.step == steps
    online = torch.zeros(83, CLASSES, dtype=dtype)
    for index, logits in seen[:5]:
        online[index] = logits
    return {**told(adapter, adapter.predict(data, batch_size=16)), "online": online}


def alarmed() -> Found:
    """A learning rate that is far too high, which the guard takes back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        return fitted("slr", steps=FEW, lr=1.0)


def online(method: str, dtype: torch.dtype = torch.float64, kind: str = "plain", **options: Any) -> Found:
    """Calls with shares that are far from even."""
    adapter = Adapter(network(dtype, kind), method, normalize=NORMALIZE, **options)
    ranks = Ranks()
    found = []
    for step in range(FEW):
        batch = images(16, seed=step).to(dtype)
        own = batch if ranks.size == 1 else batch.split(SHARES[ranks.size])[ranks.rank]
        found.append(ranks.rows(adapter(own)))
    return told(adapter, torch.cat(found))


def loaded(path: Path) -> Found:
    """A fit that is saved in the middle by one rank, which alone reads it again."""
    model, data = network(torch.float64), images(64).double()
    adapter = Adapter(model, "slr", normalize=NORMALIZE)

    def stop(adapter: Adapter) -> None:
        if adapter.step == 5:
            adapter.save(path)
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        adapter.fit(DataLoader(TensorDataset(data), 16), 3, on_step=stop)
    again = Adapter.load(path, model)
    again.fit(data, 3, batch_size=16)
    return told(again, again.predict([data[:40], data[40:]]))


def weighted(logits: Tensor, index: Tensor | None) -> Tensor:
    """An objective from outside: a mean over images."""
    return -logits.log_softmax(1)[:, 0].mean()


SGD = {"optimizer": "sgd", "lr": 0.01}
EXACT, SINGLE = torch.float64, torch.float32
CASES: dict[str, Callable[[], Found]] = {
    "fit tent": lambda: fitted("tent"),
    "fit slr": lambda: fitted("slr"),
    "fit slr+it": lambda: fitted("slr+it"),
    "fit shot": lambda: fitted("shot"),
    "fit hlr+shot": lambda: fitted("hlr+shot", pseudo_label_set="recomputed", steps=2 * FEW),
    "fit without savings": lambda: fitted("slr", fast=False, steps=FEW),
    "fit again in backward": lambda: fitted("slr", memory="low", steps=FEW),
    "fit loaded": lambda: loaded(Path(os.environ["RANKS_FOLDER"]) / "half.safetensors"),
    "fit instance norms": lambda: fitted("tent+", kind="instance", steps=FEW),
    "fit with alarms": lambda: alarmed(),
    "fit with a layer to spare": lambda: fitted("tent", kind="unused", steps=FEW, freeze="none"),
    "online tent": lambda: online("tent"),
    "online slr+it": lambda: online("slr+it"),
    "online running": lambda: online("slr", statistics="running"),
    "online blend": lambda: online("slr", statistics="blend"),
    "online stream": lambda: online("slr", statistics="stream"),
    "online stream outside": lambda: online("slr", kind="own forward", statistics="stream"),
    "online blend outside": lambda: online("slr", kind="own forward", statistics="blend"),
    "online source": lambda: online("slr", statistics="source"),
    "online objective": lambda: online("slr", objective=weighted),
    "single tent": lambda: fitted("tent", SINGLE),
    "single slr": lambda: fitted("slr", SINGLE, **SGD),
    "single slr+it": lambda: fitted("slr+it", SINGLE, **SGD),
    "single shot": lambda: fitted("shot", SINGLE),
    "single slr without kernels": lambda: fitted("slr", SINGLE, fast=["layout", "weights"], steps=FEW, **SGD),
    "single stream": lambda: online("slr", SINGLE, statistics="stream", **SGD),
    "single blend": lambda: online("slr", SINGLE, statistics="blend", **SGD),
}


def local_statistics() -> Found:
    """Each rank normalises by its own images, and all hold the same."""
    return online("tent", statistics="batch", ranks="local")


class CutOff(Dataset[Tensor]):
    """Of its files, one that a single rank reads is damaged."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __len__(self) -> int:
        return 16

    def __getitem__(self, position: int) -> Tensor:
        if self._rank == 1:
            raise InputError("it is cut off")
        return images(1)[0].double()


def refusals() -> dict[str, str]:
    """What ranks say that were not given the same, or cannot use it."""
    ranks, model = Ranks(), network(EXACT)
    ok = Adapter(model, "tent")
    bad = images(4).double()
    if ranks.rank == 1:
        bad[2] = torch.nan

    def sampled() -> object:
        data = TensorDataset(images(8).double())
        return ok.fit(DataLoader(data, 4, sampler=DistributedSampler(data)))

    attempts: dict[str, Callable[[], object]] = {
        "options": lambda: Adapter(model, "tent", seed=ranks.rank),
        "weights": lambda: Adapter(network(EXACT, seed=ranks.rank), "tent"),
        "data": lambda: ok.fit(images(40 + ranks.rank).double(), batch_size=8),
        "few images": lambda: ok.fit(images(1).double()),
        "sampler": sampled,
        "pixels": lambda: ok(bad),
        "file": lambda: ok.fit(CutOff(ranks.rank), batch_size=8),
        "mode": lambda: Adapter(model, "tent", ranks="apart"),
        "no file": lambda: Adapter.load("nowhere.safetensors", model),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            said[name] = "nothing"
        except AcclimateError as error:
            said[name] = f"{type(error).__name__}: {error}"
    said["and goes on"] = str(ok(images(4).double()).shape)
    said["alone"] = str(Adapter(network(SINGLE, seed=ranks.rank), "tent", ranks="alone")(images(4)).shape)
    return said


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.environ["RANKS_FOLDER"] = str(folder)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=120),
    )
    found = {name: case() for name, case in CASES.items()}
    local = local_statistics()
    torch.save({"cases": found, "local": local, "refusals": refusals()}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
