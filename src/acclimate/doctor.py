"""What adaptation will do to a network, and what it will cost: found by looking and by one small step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.tree import Tree
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from acclimate.adapter import Adapter
from acclimate.norms import find_norms
from acclimate.prepare import count_outputs, model_info
from acclimate.types import ModelInfo

__all__ = ["Diagnosis", "Layer", "diagnose", "diagnosis_tree"]

_BATCH = 4  # images of the trial step; batch statistics need more than one


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
    flops_ratio: float
    """Floating-point operations of a step over those of a forward pass."""
    saved_mib: float
    """Kept for the backward pass, for each image."""
    largest_batch: int | None
    """That fits into the memory that is free; None where that is not known."""


def diagnose(
    model: nn.Module,
    method: str = "slr",
    *,
    size: int = 224,
    channels: int = 3,
    normalize: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Diagnosis:
    """Prepare a network, take one step on random images, and count."""
    adapter = Adapter(model, method, normalize=normalize)
    images = torch.rand(_BATCH, channels, size, size)
    with FlopCounterMode(display=False) as forward:
        adapter.predict(images)
    saved = _SavedBytes()
    with FlopCounterMode(display=False) as step, saved_tensors_hooks(saved.pack, saved.unpack):
        adapter(images)
    moving = {name.removeprefix("model.") for name in adapter.adapting}
    parameters = dict(model.named_parameters())
    norms = find_norms(model)
    layers = [_layer(name, norm, moving) for name, norm in norms.items() if list(norm.parameters(False))]
    per_image = saved.total / _BATCH
    return Diagnosis(
        network=type(model).__name__,
        parameters=sum(p.numel() for p in parameters.values()),
        adapting=sum(p.numel() for name, p in parameters.items() if name in moving),
        outputs=count_outputs(model),
        setting=adapter.setting,
        layers=tuple(layers),
        notes=adapter.notes,
        info=model_info(model),
        flops_ratio=step.get_total_flops() / max(1, forward.get_total_flops()),
        saved_mib=per_image / 2**20,
        largest_batch=_largest_batch(per_image),
    )


def _layer(name: str, module: nn.Module, moving: set[str]) -> Layer:
    own = [f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)]
    count = sum(p.numel() for p in module.parameters(recurse=False))
    return Layer(name, type(module).__name__, count, bool(moving & set(own)))


class _SavedBytes:
    """Counts what autograd keeps, each piece of memory once, parameters not at all."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: set[int] = set()

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor


def diagnosis_tree(diagnosis: Diagnosis) -> Tree:
    """The diagnosis for people: stage by stage what adapts, then what it costs."""
    d = diagnosis
    tree = Tree(f"{d.network}: {d.parameters:,} parameters, {d.outputs or 'an unknown number of'} outputs")
    adapting = tree.add(f"{d.adapting:,} adapt ({100 * d.adapting / max(1, d.parameters):.2f}%)")
    stages: dict[str, list[Layer]] = {}
    for layer in d.layers:
        stages.setdefault(layer.name.partition(".")[0], []).append(layer)
    for stage, layers in stages.items():
        adapting.add(f"{stage}: {_told(layers)}")
    found = tree.add("found")
    for note in (*d.notes, f"hyperparameters: setting {d.setting!r}"):
        found.add(note)
    if d.info is None:
        found.add("the weights do not say what their input was normalised with: give normalize=(mean, std)")
    else:
        found.add(f"{d.info.origin} says of the input: mean {d.info.mean}, std {d.info.std}")
    cost = tree.add("cost")
    cost.add(f"a step takes {d.flops_ratio:.2f} times the operations of a forward pass")
    cost.add(f"{d.saved_mib:.1f} MiB are kept for each image until the backward pass")
    if d.largest_batch is not None:
        cost.add(f"about {d.largest_batch:,} images fit into the memory that is free now")
    return tree


def _told(layers: Sequence[Layer]) -> str:
    moving, values = sum(layer.adapts for layer in layers), sum(layer.parameters for layer in layers)
    kinds = ", ".join(sorted({layer.kind for layer in layers}))
    state = "frozen" if not moving else "adapts" if moving == len(layers) else f"{moving} adapt"
    return f"{len(layers)} × {kinds}, {values:,} values, {state}"


def _largest_batch(per_image: float) -> int | None:
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names or per_image == 0:
        return None
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # as much again passes by while gradients are computed
    return max(1, int(free / (2 * per_image)))
