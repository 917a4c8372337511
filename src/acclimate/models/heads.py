"""SHOT's head: a bottleneck with batch normalisation, and a classifier with weight normalisation.

"Do We Really Need to Access the Source Data?" (Liang et al., 2020) puts it in the place of a network's
classifier and trains it with smooth labels; the paper's appendix and VisDA-C are run on such networks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from acclimate.errors import ModelError

__all__ = ["BOTTLENECK", "attach_head", "head_in", "head_name"]

BOTTLENECK = 256
_PARTS = ("bottleneck.weight", "classifier.parametrizations.weight.original1")


def attach_head(model: nn.Module, classes: int, bottleneck: int = BOTTLENECK, *, seed: int = 0) -> nn.Module:
    """Replace a network's classifier, its last linear layer, by SHOT's head; the network itself is changed.

    The head is parametrised in torch's new way, so that the network can be copied.

    >>> net = attach_head(nn.Sequential(nn.Flatten(), nn.Linear(8, 10)), classes=3, bottleneck=4)
    >>> [name for name, _ in net[1].named_children()]
    ['bottleneck', 'norm', 'classifier']
    """
    if classes < 2:
        raise ModelError(f"a head needs at least 2 classes, got {classes}")
    name = head_name(model)
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    narrow = nn.Linear(old.in_features, bottleneck)
    classifier = nn.Linear(bottleneck, classes)
    generator = torch.Generator().manual_seed(seed)
    for layer in (narrow, classifier):
        nn.init.xavier_normal_(layer.weight, generator=generator)
        nn.init.zeros_(layer.bias)
    parts = OrderedDict(
        bottleneck=narrow, norm=nn.BatchNorm1d(bottleneck), classifier=weight_norm(classifier, dim=0)
    )
    parent, _, own = name.rpartition(".")
    like = old.weight
    setattr(model.get_submodule(parent), own, nn.Sequential(parts).to(like.device, like.dtype))
    return model


def head_name(model: nn.Module) -> str:
    """Where a network's classifier is: its last linear layer."""
    found: list[str] = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name
    ]
    if not found:
        raise ModelError(f"{type(model).__name__} has no linear classifier that a head could replace")
    return found[-1]


def head_in(state: Mapping[str, Tensor]) -> tuple[str, int, int] | None:
    """The place, classes and bottleneck of SHOT's head in the weights of a network, if it is there."""
    for key, weight in state.items():
        place = key.removesuffix(f".{_PARTS[0]}")
        last = state.get(f"{place}.{_PARTS[1]}")
        if place != key and last is not None:
            return place, last.shape[0], weight.shape[0]
    return None
