"""Which layers stay frozen: the top of known networks, the last stage of others, or the user's patterns.

The likelihood ratio losses are unbounded. With the top frozen, its normalisation keeps the logits'
scale, and the losses cannot be lowered by simply blowing the logits up. Frozen layers keep their
affine parameters; their statistics adapt all the same.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Final

from torch import nn

from acclimate.errors import OptionError, listed, unknown

__all__ = ["FROZEN_TOPS", "frozen_layers"]

FROZEN_TOPS: Final[dict[str, tuple[str, ...]]] = {
    "ResNet": ("layer4",),
    "DenseNet": ("features.denseblock4", "features.norm5"),
    "MobileNetV2": ("features.16", "features.17", "features.18"),
}
"""The paper's choice by class (ResNeXt is a ResNet): these layers, and every norm above them."""


def frozen_layers(
    model: nn.Module, layers: Sequence[str], freeze: str | Sequence[str], *, top: bool
) -> tuple[set[str], str]:
    """The names among ``layers`` that are frozen, and one sentence that says why.

    ``freeze`` is ``"auto"`` (the top, where ``top`` says that the method freezes it), ``"top"``,
    ``"none"``, or one or more patterns of module names.
    """
    if freeze == "none" or (freeze == "auto" and not top):
        return set(), "nothing is frozen"
    if freeze in ("auto", "top"):
        return _frozen_top(model, layers)
    patterns = [freeze] if isinstance(freeze, str) else list(freeze)
    frozen = {name for pattern in patterns for name in _matching(model, layers, pattern)}
    return frozen, f"frozen by {listed(patterns)}"


def _frozen_top(model: nn.Module, layers: Sequence[str]) -> tuple[set[str], str]:
    stage = _known_top(model, layers) or _last_stage(model, layers)
    if stage is not None:
        first = min(i for i, name in enumerate(layers) if _within(name, stage))
        why = f"the top is frozen from {stage!r} on"
    else:
        # A flat network has no stages: its last quarter stands for one.
        first = len(layers) - max(1, len(layers) // 4)
        count = len(layers) - first
        those = f"the last {count}" if count > 1 else "the last"
        why = f"{those} of {len(layers)} layers that could adapt {'are' if count > 1 else 'is'} frozen"
    if first <= 0:
        return set(), "nothing is frozen, as the network has no layers below its last stage"
    return set(layers[first:]), why


def _known_top(model: nn.Module, layers: Sequence[str]) -> str | None:
    """First layer of the frozen top of a network in the table, wherever in ``model`` it stands."""
    for prefix, module in model.named_modules():
        names = {base.__name__ for base in type(module).__mro__}
        for known in names & FROZEN_TOPS.keys():
            tops = [f"{prefix}.{top}".lstrip(".") for top in FROZEN_TOPS[known]]
            if all(any(_within(name, top) for name in layers) for top in tops):
                return tops[0]
    return None


def _last_stage(model: nn.Module, layers: Sequence[str]) -> str | None:
    """The last module that holds two or more of the layers, but not more than half of all.

    A module that holds more than half is opened (``features``, ``blocks``, ``encoder``); one that holds
    a single layer is not a stage (the last 1x1 convolution of a MobileNet, the final norm of a ViT).
    """
    container = model
    prefix = ""
    while True:
        stages = []
        for name, _ in container.named_children():
            full = f"{prefix}.{name}".lstrip(".")
            held = sum(layer.startswith(full + ".") for layer in layers)
            if held >= 2:
                stages.append((full, held))
        if not stages:
            return None
        prefix, held = stages[-1]
        if 2 * held <= len(layers):
            return prefix
        container = model.get_submodule(prefix)


def _matching(model: nn.Module, layers: Sequence[str], pattern: str) -> list[str]:
    """Layers that a pattern names, by themselves or by a module that holds them."""
    matched = [name for name in layers if any(fnmatch.fnmatchcase(part, pattern) for part in _ancestry(name))]
    if not matched:
        modules = [name for name, _ in model.named_modules() if name]
        if any(fnmatch.fnmatchcase(name, pattern) for name in modules):
            raise OptionError(f"freeze pattern {pattern!r} matches only modules in which nothing would adapt")
        holders = sorted({part for name in layers for part in _ancestry(name)})
        raise OptionError(unknown("freeze pattern", pattern, holders))
    return matched


def _ancestry(name: str) -> list[str]:
    """A dotted name and the names of all that holds it: ``a``, ``a.b``, ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _within(name: str, holder: str) -> bool:
    return name == holder or name.startswith(holder + ".")
