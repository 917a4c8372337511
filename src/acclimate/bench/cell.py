"""One cell: adapt from the pretrained weights, measure online and after epochs, and say all about it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.batches import in_order
from acclimate.bench.images import (
    CORRUPTED_ALREADY,
    clean_images,
    crop_of,
    is_published,
    labelled_by,
    open_cell_images,
    part_of,
)
from acclimate.bench.mirror import local_root
from acclimate.bench.oracle import oracle_method, oracle_objective
from acclimate.bench.spec import ORACLE, Cell
from acclimate.data import ImageSet
from acclimate.errors import AcclimateWarning
from acclimate.mean_std import fitted
from acclimate.methods import chosen_setting
from acclimate.metrics import Quality, measure, structural_similarity
from acclimate.models.load import load_model
from acclimate.normalization import normalization_of
from acclimate.prepare import count_outputs
from acclimate.recording import (
    SHOWN,
    alarms_of,
    class_entropy,
    curves,
    picture,
    rounded,
    spec_of,
    spread,
    weights_digest,
)
from acclimate.records import SCHEMA, Record, origin

__all__ = ["count_images", "fingerprints_of", "run_cell", "seconds_to_corrupt"]

_LINUX = Path("/proc/self")
_COMPARED, _AT_ONCE = 256, 32  # images whose similarity to the clean ones is measured


def run_cell(cell: Cell, root: str | Path) -> Record:
    """The record of a cell; whatever goes wrong is raised.

    ``root`` is the folder below which data and weights lie, or its address.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(cell.threads)
    try:
        return _run_cell(cell, local_root(root, cell))
    finally:
        torch.set_num_threads(threads)


def _run_cell(cell: Cell, root: Path) -> Record:
    begun = time.perf_counter()
    network = _network(cell.network.name, cell.network.weights, root)
    crop = crop_of(network, cell.data)
    images = open_cell_images(root, cell.data, cell.corruption, cell.severity, crop)
    images = labelled_by(network, images)
    part = part_of(images, cell.subset, cell.seed)
    clean = clean_images(root, cell.data, crop) if "+it" in cell.method else None
    _forget_peak_memory(cell.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        adapter = _adapter(cell, network, part)
    run = _Run(adapter, cell, images, part)
    result = run.measured()
    if adapter.method.input_transform:
        result |= {"ssim": None} if clean is None else _likeness(adapter, clean, images)
    return {
        "schema": SCHEMA,
        "cell": cell.model_dump(mode="json"),
        "spec": spec_of(
            adapter,
            network,
            images,
            setting=adapter.setting or chosen_setting(cell.setting, count_outputs(network)),
            adapted_to=len(part),
            protocol=("online", "after-epoch"),
        ),
        "result": result,
        "cost": {
            "seconds": round(time.perf_counter() - begun, 3),
            "adapting_seconds": round(run.adapting_seconds, 3),
            "evaluating_seconds": round(run.evaluating_seconds, 3),
            "images_per_second": round(run.images_adapted / max(run.adapting_seconds, 1e-9), 1),
            "peak_memory_mib": _peak_memory_mib(cell.device),
        },
        "origin": origin(),
    }


def fingerprints_of(cell: Cell, root: str | Path) -> tuple[str, str]:
    """Of the images that a cell would see, and of the weights it would start from."""
    root = local_root(root, cell)
    network = _network(cell.network.name, cell.network.weights, root)
    images = open_cell_images(root, cell.data, cell.corruption, cell.severity, crop_of(network, cell.data))
    images = labelled_by(network, images)
    return images.fingerprint(), weights_digest(network)


def count_images(cell: Cell, root: str | Path) -> tuple[int, int]:
    """How many images a cell predicts, and to how many it adapts."""
    root = local_root(root, cell)
    crop = crop_of(_network(cell.network.name, cell.network.weights, root), cell.data)
    shift = (cell.corruption, cell.severity) if is_published(root, cell.data) else (None, None)
    images = open_cell_images(root, cell.data, *shift, crop)
    return len(images), len(part_of(images, cell.subset, cell.seed))


def seconds_to_corrupt(cell: Cell, root: str | Path) -> float:
    """What making the corruption of all its images takes; nothing, where they are published as they are."""
    if cell.corruption is None or cell.data.layout in CORRUPTED_ALREADY:
        return 0.0
    root = local_root(root, cell)
    if is_published(root, cell.data):
        return 0.0
    few = cell.data.model_copy(update={"limit": min(_AT_ONCE, cell.data.limit or _AT_ONCE)})
    crop = crop_of(_network(cell.network.name, cell.network.weights, root), cell.data)
    begun = time.perf_counter()
    images = open_cell_images(root, few, cell.corruption, cell.severity, crop)
    images.batch(range(len(images)))
    return (time.perf_counter() - begun) * count_images(cell, root)[0] / len(images)


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
        "guard": False,  # as in the paper, unless a cell asks for it
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
        self._right: list[float] = []
        self._truth = _targets(part)
        self._after: dict[str, dict[str, Any]] = {}
        self.evaluating_seconds = 0.0

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
            online = measure(in_order(self._online, torch.arange(len(self.part))), self._truth)
        else:  # nothing is learned: every pass is like the first
            logits = adapter.predict(self.images, batch_size=cell.batch_size)
            self.images_adapted = len(self.images)
            online = measure(logits, _targets(self.images))
            self._after["1"] = _told(online, adapter)
        self.adapting_seconds = time.perf_counter() - begun - self.evaluating_seconds
        return {
            "online": {**_told(online, None)},
            "after_epoch": self._after,
            "steps": curves(adapter, self._right),
            **alarms_of(adapter),
            **self._calibrated(),
        }

    def _calibrated(self) -> dict[str, Any]:
        """How good confidences are with the temperature that was found, where one was looked for."""
        if not self.adapter.options.calibrate or self.adapter.step == 0:
            return {}
        logits = self.adapter.predict(self.images, batch_size=self.cell.batch_size)
        found = measure(logits, _targets(self.images))
        told = {name: getattr(found, name) for name in ("ece", "nll", "brier")}
        return {"calibrated": {"temperature": rounded(self.adapter.temperature), **rounded(told)}}

    def _keep(self, logits: Tensor, index: Tensor | None) -> None:
        assert index is not None
        self._right.append(logits.argmax(1).cpu().eq(self._truth[index]).double().mean().item())
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
        self.evaluating_seconds += time.perf_counter() - begun


def _told(quality: Quality, adapter: Adapter | None) -> dict[str, Any]:
    told: dict[str, Any] = rounded(dataclasses.asdict(quality))
    entropy = None if adapter is None else class_entropy(adapter)
    return told if entropy is None else {**told, "class_entropy": entropy}


def _likeness(adapter: Adapter, clean: ImageSet, images: ImageSet) -> dict[str, Any]:
    """SSIM to the clean images of the same names before and after the transformation; some to look at."""
    there = {_stem(name): position for position, name in enumerate(clean.names)}
    both = [(i, there[_stem(name)]) for i, name in enumerate(images.names) if _stem(name) in there]
    if not both:
        return {"ssim": None}
    chosen = [both[i] for i in spread(len(both), _COMPARED)]
    before, after = [], []
    for start in range(0, len(chosen), _AT_ONCE):
        first, shifted, made = _three(adapter, clean, images, chosen[start : start + _AT_ONCE])
        before.append(structural_similarity(first, shifted))
        after.append(structural_similarity(first, made))
    means = [torch.cat(values).mean().item() for values in (before, after)]
    ssim = {"before": rounded(means[0]), "after": rounded(means[1]), "images": len(chosen)}
    shown = [both[i] for i in spread(len(both), SHOWN)]
    return {"ssim": ssim, "gallery": _gallery(_three(adapter, clean, images, shown), images, shown)}


def _three(
    adapter: Adapter, clean: ImageSet, images: ImageSet, positions: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Images clean, shifted and transformed."""
    own, others = zip(*positions, strict=True)
    shifted = images.batch(own)
    return clean.batch(others), shifted, adapter.transformed(shifted).clamp(0, 1).cpu()


def _gallery(
    three: tuple[Tensor, Tensor, Tensor], images: ImageSet, positions: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    clean, shifted, made = three
    similar = zip(
        structural_similarity(clean, shifted).tolist(),
        structural_similarity(clean, made).tolist(),
        strict=True,
    )
    return [
        {
            "name": images.names[own],
            "clean": picture(clean[i]),
            "shifted": picture(shifted[i]),
            "transformed": picture(made[i]),
            "ssim": rounded(list(pair)),
        }
        for i, ((own, _), pair) in enumerate(zip(positions, similar, strict=True))
    ]


def _stem(name: str) -> str:
    """Of the file of an image, without what says how it is stored."""
    return name.rpartition(".")[0] or name


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
