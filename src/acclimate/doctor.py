"""What adaptation will do to a network, and what it will cost: found by looking and by a few small steps."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from acclimate.adapter import Adapter
from acclimate.available import available_bytes
from acclimate.errors import AcclimateWarning, InputError
from acclimate.fast import TRICKS
from acclimate.fast.precision import precision_fault, precision_taken
from acclimate.fast.recycling import exactly
from acclimate.mean_std import MeanStd, fitted
from acclimate.norms import find_norms
from acclimate.options import Options
from acclimate.prepare import count_outputs, model_info, normalization_mismatch, trained_size
from acclimate.probe import Probe, probe_normalization
from acclimate.types import ModelInfo

__all__ = ["Diagnosis", "Layer", "diagnose"]

_BATCH = 4  # images of the trial step; batch statistics need more than one
_TIMED = (16, 64)  # images of a timed step; the second, the default of adaptation, only where it is quick
_LONG_ENOUGH = 0.5  # seconds of timing after which no further step is taken
_STEPS = 3


@dataclass(frozen=True)
class Layer:
    """A normalisation layer, or another that was given an affine."""

    name: str
    kind: str
    parameters: int
    adapts: bool


@dataclass(frozen=True)
class Diagnosis:
    """Everything `acclimate doctor` tells."""

    network: str
    parameters: int
    adapting: int
    """Numbers that adapt."""
    outputs: int | None
    setting: str | None
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]
    info: ModelInfo | None
    size: int
    """Side of the images of the trial step."""
    fits: tuple[str, ...]
    """What does and does not fit between the input and what the weights say of it."""
    probe: Probe | None
    """What some images of the user's say of the normalisation."""
    flops_ratio: float
    """Floating-point operations of a step over those of a forward pass."""
    saved_mib: float
    """Kept for the backward pass, for each image."""
    largest_batch: int | None
    """That fits into the memory that is available; None where that is not known."""
    timed_images: int
    """Images of the steps that were timed."""
    step_seconds: float
    """Time of such a step, forward, backward and update, as adaptation takes it."""
    device: str
    precision: str
    """What ``precision="auto"`` takes there."""
    precision_fault: str | None
    """Why bfloat16 cannot be used although the processor announces it, and what to do."""


def diagnose(
    model: nn.Module,
    method: str = "slr",
    *,
    size: int | None = None,
    normalize: MeanStd | None = None,
    images: Tensor | None = None,
    clean: bool = False,
    device: str | None = None,
) -> Diagnosis:
    """Prepare a network, take a few steps on random images, count and time.

    Args:
        size: side of the images; by default what the network says that it was trained on, or 224.
        normalize: by default what the network says.
        images: some of the user's, pixels in [0, 1], to see whether they fit.
        clean: whether these are known to be uncorrupted and like those that the network was trained on: only
            then can a normalisation be said to be wrong.
    """
    info = model_info(model)
    size = size or trained_size(model)
    in_use = _in_use(info, normalize)
    shape = (3 if in_use is None else len(in_use[0]), size, size) if images is None else images.shape[1:]
    in_use = fitted(in_use, shape[0])
    # without what torch's counter does not know
    known = [name for name in TRICKS if name not in ("packing", "winograd")]
    how = {"normalize": in_use, "device": device, "fast": known}
    notes = _adapter(model, method, **how).notes  # by the default statistics, and not about the trial
    trial = torch.rand(_BATCH, *shape)
    adapter = _ready(model, method, trial, **how)
    with FlopCounterMode(display=False) as forward:
        _predict(adapter, trial)
    saved = _SavedBytes(adapter)
    with exactly(), FlopCounterMode(display=False) as step, saved_tensors_hooks(saved.pack, saved.unpack):
        adapter(trial)
    layers = _layers(model, adapter._engine.parameters)
    per_image = saved.total / _BATCH
    used = adapter._engine.device
    largest = _largest_batch(per_image, used)
    timed_images, step_seconds = _timed_step(model, method, adapter.options, used, shape, largest)
    return Diagnosis(
        network=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        adapting=sum(p.numel() for p in adapter._engine.parameters.values()),
        outputs=count_outputs(model),
        setting=adapter.setting,
        layers=tuple(layers),
        notes=notes,
        info=info,
        size=shape[-1],
        fits=tuple(_fits(info, max(shape[1:]), normalize)),
        probe=None if images is None else probe_normalization(model, images, in_use, clean=clean),
        flops_ratio=step.get_total_flops() / max(1, forward.get_total_flops()),
        saved_mib=per_image / 2**20,
        largest_batch=largest,
        timed_images=timed_images,
        step_seconds=step_seconds,
        device=str(used),
        precision=precision_taken("auto", used),
        precision_fault=precision_fault(used),
    )


def _adapter(model: nn.Module, method: str, **options: Any) -> Adapter:
    """An adapter that warns of nothing: the notes have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        return Adapter(model, method, **options)


def _ready(model: nn.Module, method: str, trial: Tensor, **options: Any) -> Adapter:
    """An adapter that has predicted once, as the first time may try more than one layout in memory.

    It takes the statistics that many images get by default, however few the trial has; where the network
    cannot, those that few images get.
    """
    adapter = _adapter(model, method, statistics="batch", **options)
    try:
        _predict(adapter, trial)
    except InputError:
        raise
    except ValueError:  # torch's, of a layer that finds a single value in a channel
        adapter = _adapter(model, method, statistics="stream", **options)
        _predict(adapter, trial)
    return adapter


def _timed_step(
    model: nn.Module,
    method: str,
    options: Options,
    device: torch.device,
    shape: Sequence[int],
    largest: int | None,
) -> tuple[int, float]:
    """How many images a step had, and the median time of a few such, after one that makes things ready."""
    how = {"normalize": options.normalize, "statistics": options.statistics, "device": str(device)}
    adapter = _adapter(model, method, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        few, many = (count if largest is None else max(2, min(count, largest)) for count in _TIMED)
        found = few, _step_seconds(adapter, torch.rand(few, *shape))
        if found[1] * many / few < _LONG_ENOUGH:
            found = many, _step_seconds(adapter, torch.rand(many, *shape))
    return found


def _step_seconds(adapter: Adapter, images: Tensor) -> float:
    adapter(images)
    times: list[float] = []
    while len(times) < _STEPS and sum(times) < _LONG_ENOUGH:
        begun = time.perf_counter()
        adapter(images).cpu()  # waits for a GPU
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _in_use(info: ModelInfo | None, normalize: MeanStd | None) -> MeanStd | None:
    if normalize is None and info is not None and info.mean is not None and info.std is not None:
        return info.mean, info.std
    return normalize


def _fits(info: ModelInfo | None, size: int, normalize: MeanStd | None) -> Iterator[str]:
    """Whether the input is what the weights were trained on, one sentence for each thing they say of it."""
    if info is None:
        given = "" if normalize is not None else "give the normalisation, and "
        yield f"the weights do not say what their input was: {given}check the size"
        return
    said = f"{info.origin} says: mean {info.mean}, std {info.std}"
    mismatch = None if normalize is None else normalization_mismatch(info, *normalize)
    yield f"{said} (used where none is given)" if normalize is None else mismatch or f"{said}, as given"
    if info.size is not None:
        fit = "fit" if info.size == size else f"do not fit: images of {info.size} pixels are expected"
        yield f"{info.origin} says: {info.size} pixels; images of {size} {fit}"


def _layers(model: nn.Module, moving: Mapping[str, nn.Parameter]) -> list[Layer]:
    """The network's own norms, then what was added to it."""
    found = []
    added = {name.removeprefix("model."): parameter.numel() for name, parameter in moving.items()}
    for name, norm in find_norms(model).items():
        own = {f"{name}.{key}": p.numel() for key, p in norm.named_parameters(recurse=False)}
        if own:
            adapts = bool(own.keys() & added.keys())
            found.append(Layer(name, type(norm).__name__, sum(own.values()), adapts))
            added = {key: count for key, count in added.items() if key not in own}
    parents: dict[str, int] = {}
    for name, count in added.items():
        owner = "transform" if name.startswith("transform.") else name.rpartition(".")[0]
        parents[owner] = parents.get(owner, 0) + count
    kinds = {"transform": "input transformation"}
    return found + [Layer(name, kinds.get(name, "added affine"), n, True) for name, n in parents.items()]


class _SavedBytes:
    """Counts what autograd keeps, each piece of memory once, what belongs to the network not at all."""

    def __init__(self, adapter: Adapter) -> None:
        self.total = 0
        network = adapter._engine.network
        held = (*network.parameters(), *network.buffers())
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in held}

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor


def _predict(adapter: Adapter, images: Tensor) -> None:
    try:
        adapter.predict(images)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        shape = tuple(images.shape[1:])
        raise InputError(
            f"the network cannot take images of the shape {shape} (channels, height, width): {reason}; "
            "--size sets their side"
        ) from error


def _largest_batch(per_image: float, device: torch.device) -> int | None:
    free = available_bytes(device)
    if free is None or per_image == 0:
        return None
    # as much again passes by while gradients are computed
    return max(1, int(free / (2 * per_image)))
