"""One cell: adapt from the pretrained weights, measure online and after epochs, and say all about it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import re
import time
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.batches import in_order
from acclimate.bench.images import clean_images, crop_of, open_cell_images, part_of
from acclimate.bench.oracle import oracle_method, oracle_objective
from acclimate.bench.records import SCHEMA, Record, origin
from acclimate.bench.spec import ORACLE, Cell
from acclimate.data import ImageSet
from acclimate.delta import digests
from acclimate.errors import AcclimateWarning
from acclimate.methods import chosen_setting
from acclimate.metrics import Quality, measure, structural_similarity
from acclimate.models.heads import head_in
from acclimate.models.load import load_model
from acclimate.normalization import fitted, normalization_of
from acclimate.prepare import count_outputs

__all__ = ["fingerprints_of", "run_cell"]

_LINUX = Path("/proc/self")
_STEPS_KEPT = 64  # of each curve over steps
_COMPARED, _AT_ONCE = 256, 32  # images whose similarity to the clean ones is measured


def run_cell(cell: Cell, root: Path) -> Record:
    """The record of a cell; whatever goes wrong is raised.

    ``root`` is the folder below which data and weights lie.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(cell.threads)
    try:
        return _run_cell(cell, root)
    finally:
        torch.set_num_threads(threads)


def _run_cell(cell: Cell, root: Path) -> Record:
    begun = time.perf_counter()
    network = _network(cell.network.name, cell.network.weights, root)
    crop = crop_of(network, cell.data)
    images = open_cell_images(root, cell.data, cell.corruption, cell.severity, crop)
    part = part_of(images, cell.subset, cell.seed)
    clean = clean_images(root, cell.data, crop) if "+it" in cell.method else None
    _forget_peak_memory(cell.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        adapter = _adapter(cell, network, part)
    run = _Run(adapter, cell, images, part)
    result = run.measured()
    if adapter.method.input_transform:
        result["ssim"] = None if clean is None else _similarity(adapter, clean, images)
    return {
        "schema": SCHEMA,
        "cell": cell.model_dump(mode="json"),
        "spec": _spec(cell, adapter, network, images, part),
        "result": result,
        "cost": {
            "seconds": round(time.perf_counter() - begun, 3),
            "adapting_seconds": round(run.adapting_seconds, 3),
            "images_per_second": round(run.images_adapted / max(run.adapting_seconds, 1e-9), 1),
            "peak_memory_mib": _peak_memory_mib(cell.device),
        },
        "origin": origin(),
    }


def fingerprints_of(cell: Cell, root: Path) -> tuple[str, str]:
    """Of the images that a cell would see, and of the weights it would start from."""
    network = _network(cell.network.name, cell.network.weights, root)
    images = open_cell_images(root, cell.data, cell.corruption, cell.severity, crop_of(network, cell.data))
    return images.fingerprint(), weights_digest(network)


@lru_cache(maxsize=2)
def _network(name: str, weights: str | None, root: Path) -> nn.Module:
    return load_model(name, None if weights is None else root / weights)


def _adapter(cell: Cell, network: nn.Module, part: ImageSet) -> Adapter:
    normalize = fitted(normalization_of(network, cell.network.normalize), part.batch([0]).shape[1])
    options: dict[str, Any] = {
        "normalize": normalize,
        "classes": part.classes,
        "seed": cell.seed,
        "device": cell.device,
        **cell.overrides,
    }
    if cell.method != ORACLE:
        return Adapter(network, cell.method, setting=cell.setting, **options)
    setting = chosen_setting(cell.setting, count_outputs(network))
    return Adapter(network, oracle_method(setting), objective=oracle_objective(_targets(part)), **options)


def _targets(images: ImageSet) -> Tensor:
    """Labels as columns of the logits."""
    assert images.labels is not None
    if images.classes is None:
        return images.labels
    columns = torch.full((max(images.classes) + 1,), -1)
    columns[torch.tensor(images.classes)] = torch.arange(len(images.classes))
    return columns[images.labels]


class _Run:
    """An adaptation under observation."""

    def __init__(self, adapter: Adapter, cell: Cell, images: ImageSet, part: ImageSet) -> None:
        self.adapter, self.cell = adapter, cell
        self.images, self.part = images, part
        self.images_adapted = 0
        self.adapting_seconds = 0.0
        self._online: list[tuple[Tensor, Tensor | None]] = []
        self._after: dict[str, dict[str, Any]] = {}
        self._measuring = 0.0

    def measured(self) -> dict[str, Any]:
        """Adapt, and measure on the way."""
        cell, adapter = self.cell, self.adapter
        begun = time.perf_counter()
        if adapter.method.has_loss or cell.method == ORACLE:
            adapter.fit(
                self.part,
                cell.epochs,
                batch_size=cell.batch_size,
                progress=False,
                on_logits=self._keep,
                on_epoch=self._evaluate,
            )
            online = measure(in_order(self._online, torch.arange(len(self.part))), _targets(self.part))
        else:  # nothing is learned: every pass is like the first
            logits = adapter.predict(self.images, batch_size=cell.batch_size)
            self.images_adapted = len(self.images)
            online = measure(logits, _targets(self.images))
            self._after["1"] = _told(online, adapter)
        self.adapting_seconds = time.perf_counter() - begun - self._measuring
        return {
            "online": {**_told(online, None)},
            "after_epoch": self._after,
            "steps": _thinned(dataclasses.asdict(adapter.history)),
        }

    def _keep(self, logits: Tensor, index: Tensor | None) -> None:
        self.images_adapted += len(logits)
        if self.images_adapted <= len(self.part):  # the first epoch is what an online pass sees
            self._online.append((logits.cpu(), index))

    def _evaluate(self, adapter: Adapter) -> None:
        epoch = adapter.history.epoch[-1]
        if self.cell.evaluate and epoch not in (*self.cell.evaluate, self.cell.epochs):
            return
        begun = time.perf_counter()
        logits = adapter.predict(self.images, batch_size=self.cell.batch_size)
        self._after[str(epoch)] = _told(measure(logits, _targets(self.images)), adapter)
        self._measuring += time.perf_counter() - begun


def _told(quality: Quality, adapter: Adapter | None) -> dict[str, Any]:
    told: dict[str, Any] = _rounded(dataclasses.asdict(quality))
    if adapter is not None and adapter.class_distribution is not None and adapter.step > 0:
        p = adapter.class_distribution.double()
        told["class_entropy"] = _rounded(-torch.special.xlogy(p, p).sum().item())
    return told


def _rounded(value: Any) -> Any:
    """Plain JSON, numbers with eight digits: the last ones say nothing. None stands for what is no number."""
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def _thinned(curves: dict[str, list[float]]) -> dict[str, Any]:
    """Some points of each curve over steps, the last among them, and at which steps they are."""
    length = len(curves["loss"])
    every = max(1, -(-length // _STEPS_KEPT))
    at = sorted({*range(0, length, every), *([length - 1] if length else [])})
    kept = {name: [values[i] for i in at] for name, values in curves.items() if len(values) == length}
    return {"step": [i + 1 for i in at], **_rounded(kept)}


def _similarity(adapter: Adapter, clean: ImageSet, images: ImageSet) -> dict[str, float] | None:
    """SSIM to the clean images of the same names, before and after the input transformation."""
    there = {_stem(name): position for position, name in enumerate(clean.names)}
    both = [(i, there[_stem(name)]) for i, name in enumerate(images.names) if _stem(name) in there]
    if not both:
        return None
    chosen = [both[i] for i in torch.linspace(0, len(both) - 1, min(_COMPARED, len(both))).round().long()]
    before, after = [], []
    for start in range(0, len(chosen), _AT_ONCE):
        positions, others = zip(*chosen[start : start + _AT_ONCE], strict=True)
        first, shifted = clean.batch(others), images.batch(positions)
        made = adapter.transformed(shifted).clamp(0, 1).cpu()
        before.append(structural_similarity(first, shifted))
        after.append(structural_similarity(first, made))
    means = [torch.cat(values).mean().item() for values in (before, after)]
    return {"before": _rounded(means[0]), "after": _rounded(means[1]), "images": len(chosen)}


def _stem(name: str) -> str:
    """Of the file of an image, without what says how it is stored."""
    return name.rpartition(".")[0] or name


def _spec(
    cell: Cell, adapter: Adapter, network: nn.Module, images: ImageSet, part: ImageSet
) -> dict[str, Any]:
    """What the cell turned out to be: all that decides the result."""
    return {
        "weights": weights_digest(network),
        "modified": head_in(network.state_dict()) is not None,
        "data": images.fingerprint(),
        "images": len(images),
        "images_adapted_to": len(part),
        "shape": list(images.batch([0]).shape[1:]),
        "layout": images.layout,
        "setting": adapter.setting or chosen_setting(cell.setting, count_outputs(network)),
        "method": {**dataclasses.asdict(adapter.method), "betas": list(adapter.method.betas)},
        "options": json.loads(json.dumps(dataclasses.asdict(adapter.options))),
        "adapting_values": sum(p.numel() for p in adapter._engine.parameters.values()),
        "protocol": ["online", "after-epoch"],
        "precision": "fp32",
        "guard": False,
        "threads": cell.threads,
    }


@lru_cache(maxsize=2)
def weights_digest(network: nn.Module) -> str:
    found = json.dumps(digests(network.state_dict()), sort_keys=True)
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def _forget_peak_memory(device: str) -> None:
    """So that the peak is this cell's, where the system can forget the earlier one."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    elif _LINUX.exists():
        with contextlib.suppress(OSError):
            (_LINUX / "clear_refs").write_text("5")


def _peak_memory_mib(device: str) -> float | None:
    """Of the process on Linux, of the tensors on a GPU; elsewhere it is not known."""
    if device.startswith("cuda"):
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    if not _LINUX.exists():
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", (_LINUX / "status").read_text())
    return None if found is None else round(int(found[1]) / 2**10, 1)
