"""Networks with weights in half precision: they compute in float32 and are given back as they came.

Every float16 and bfloat16 number is a float32 number too, so that nothing is lost on the way up; on the way
down, what adapted is rounded to the type that it had.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from acclimate.errors import AcclimateWarning, listed

__all__ = ["give_back", "half_note", "in_float32", "to_float32", "types_by_layer"]

HALVES: Final = (torch.float16, torch.bfloat16)

TypesByLayer = Mapping[nn.Module, Mapping[str, torch.dtype]]


def to_float32(model: nn.Module) -> dict[str, torch.dtype]:
    """Turn half-precision tensors of a network into float32, in place; returns the types of all before.

    The result is empty if there was nothing in half precision.

    >>> net = nn.Sequential(nn.Linear(2, 3).half(), nn.BatchNorm1d(3))
    >>> to_float32(net)["0.weight"], net[0].weight.dtype
    (torch.float16, torch.float32)
    """
    types = {
        f"{prefix}.{name}" if prefix else name: tensor.dtype
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, tensor in _own_tensors(module)
        if tensor.is_floating_point()
    }
    if not set(types.values()) & set(HALVES):
        return {}
    made: dict[int, tuple[Tensor, Tensor]] = {}  # with what it was made of, whose id is not given away so

    def wide(tensor: Tensor) -> Tensor:
        if tensor.dtype not in HALVES:
            return tensor
        return made.setdefault(id(tensor), (tensor, tensor.float()))[1]  # once, where two layers share it

    model._apply(wide)  # type: ignore[no-untyped-call]
    return types


def in_float32(model: nn.Module) -> nn.Module:
    """A copy of a network in float32 if some of it is in half precision; otherwise the network itself.

    >>> in_float32(nn.Linear(2, 3).half()).weight.dtype
    torch.float32
    """
    if not any(t.dtype in HALVES for module in model.modules() for _, t in _own_tensors(module)):
        return model
    wide = copy.deepcopy(model)
    to_float32(wide)
    return wide


def half_note(types: Mapping[str, torch.dtype]) -> str:
    """One sentence on what was stored in half precision: ``types`` is what `to_float32` returned."""
    halves = Counter(str(kind).removeprefix("torch.") for kind in types.values() if kind in HALVES)
    kinds = " and ".join(halves)
    return (
        f"{sum(halves.values())} tensors are {kinds}: they compute in float32, in a copy that takes twice "
        f"their memory, and what adapts stays in float32 until export gives it back in {kinds}"
    )


def types_by_layer(model: nn.Module, types: Mapping[str, torch.dtype]) -> TypesByLayer:
    """What `to_float32` returned, by layer: layers stay what they are where an export renames them."""
    return {
        module: {
            name: types[full]
            for name, _ in _own_tensors(module)
            if (full := f"{prefix}.{name}" if prefix else name) in types
        }
        for prefix, module in model.named_modules()
    }


def give_back(model: nn.Module, types: TypesByLayer, main: torch.dtype) -> None:
    """Round a network's tensors to the types they had, in place.

    A tensor that is new takes the type of another one of its layer, or else ``main``. Numbers that are too
    large for their type become its largest, and a warning names them.
    """
    clipped: list[str] = []
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for prefix, module in model.named_modules():
        own = types.get(module, {})
        for name, tensor in list(_own_tensors(module)):
            kind = own.get(name, next(iter(own.values()), main))
            if not tensor.is_floating_point() or tensor.dtype == kind:
                continue
            largest = torch.finfo(kind).max
            if bool((tensor.abs() > largest).any()):
                clipped.append(f"{prefix}.{name}")
            rounded = tensor.detach().clamp(-largest, largest).to(kind)
            if isinstance(tensor, nn.Parameter):
                tensor.data = rounded
            else:
                module._buffers[name] = made.setdefault(id(tensor), (tensor, rounded))[1]
    if clipped:
        warnings.warn(
            f"{listed(clipped, 3)} hold numbers that are too large for the type they came in: they are "
            "exported as its largest; give the model in float32 to keep them",
            AcclimateWarning,
            stacklevel=4,
        )


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for tensors in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in tensors.items() if tensor is not None)
