"""From the user's network to one that can adapt: which parameters and statistics move, and which do not.

`prepare` never changes the network it is given. It works on a copy that shares the memory of every
weight that will not change, and it always explains what it did.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from acclimate.errors import ModelError, OptionError, listed
from acclimate.freeze import frozen_layers
from acclimate.half import half_note, to_float32
from acclimate.norms import affine_parameters, attach_affine, find_norms, find_weighted_layers
from acclimate.outputs import check_input
from acclimate.ranks import ALONE, Ranks
from acclimate.statistics import Statistics
from acclimate.types import ModelInfo

__all__ = [
    "Prepared",
    "checked_model",
    "copy_model",
    "count_outputs",
    "floating_like",
    "model_info",
    "move_to",
    "normalization_mismatch",
    "possible_outputs",
    "prepare",
    "trained_size",
]


@dataclass(frozen=True)
class Prepared:
    """A network that is ready to adapt."""

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    """What an optimiser may move, by name."""
    statistics: Statistics
    inserted: tuple[str, ...]
    """Layers that were given an affine because they had none."""
    frozen: tuple[str, ...]
    """Layers whose affine stays as it is."""
    source_names: tuple[str, ...]
    """Names in the state dict of the network as it was given."""
    types: Mapping[str, torch.dtype]
    """Type of each tensor as it was given, if some were in half precision; otherwise empty."""
    main_type: torch.dtype
    """Type of most of its numbers as they were given."""
    notes: tuple[str, ...]
    """What was found and decided, one sentence each."""
    cautions: tuple[str, ...]
    """What the user should look at, one sentence each."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what adapts: parameters, then buffers."""
        return (*self.parameters, *self.statistics.buffers)


def prepare(
    model: nn.Module,
    *,
    parameters: bool = True,
    freeze: str | Sequence[str] = "auto",
    freeze_top: bool = True,
    statistics: str = "auto",
    momentum: float = 0.1,
    pseudo_count: float = 16.0,
    lean: bool = False,
    ranks: Ranks = ALONE,
    device: torch.device | str | None = None,
    needed: bool = True,
) -> Prepared:
    """Copy a network and select what adapts in it.

    ``parameters=False`` selects statistics only. ``freeze_top`` is the method's wish, which ``freeze``
    (``"auto"``, ``"top"``, ``"none"`` or patterns) obeys or overrules. ``lean`` says that the network
    will run within `fast.lean.Lean` with lean norms, ``needed=False`` that it is fine if nothing in the
    network itself adapts.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))
    >>> prepare(net).names[:2]
    ('1.weight', '1.bias')
    """
    model = checked_model(model)
    norms = find_norms(model)
    layers = norms or find_weighted_layers(model)
    frozen, why = frozen_layers(model, list(layers), freeze, top=freeze_top) if parameters else (set(), "")
    adapting = [name for name in layers if name not in frozen] if parameters else []
    if parameters and needed and not adapting:
        if frozen:
            raise OptionError(f"freeze={freeze!r} leaves nothing to adapt: every layer is frozen")
        raise ModelError(f"{type(model).__name__} has no normalisation layer and no hidden layer to adapt")

    moving = {id(p) for name in adapting if norms for p in affine_parameters(layers[name]).values()}
    own = copy_model(model, shared=[p for p in model.parameters() if id(p) not in moving])
    types = to_float32(own)
    move_to(device, own)
    own.eval().requires_grad_(False)
    inserted = [name for name in adapting if not (norms and affine_parameters(own.get_submodule(name)))]
    for name in inserted:
        attach_affine(own.get_submodule(name), floating_like(own))
    chosen = _chosen(own, adapting, frozen if norms else ())
    policy = Statistics(own, statistics, momentum=momentum, pseudo_count=pseudo_count, lean=lean, ranks=ranks)
    notes, cautions = _explain(layers, chosen, inserted, policy, why), []
    if types:
        notes.append(half_note(types))
    if parameters and not frozen and (freeze == "top" or (freeze == "auto" and freeze_top)):
        cautions.append(f"{why}: the logits can grow without bound")
    if needed and not chosen and not policy.buffers and statistics != "source":
        cautions.append(f"nothing of {type(model).__name__} adapts: it has no statistics of its own")
    return Prepared(
        model=own,
        parameters=chosen,
        statistics=policy,
        inserted=tuple(inserted),
        frozen=tuple(name for name in layers if name in frozen),
        source_names=tuple(model.state_dict()),
        types=types,
        main_type=floating_like(model).dtype,
        notes=tuple(notes),
        cautions=tuple(cautions),
    )


def model_info(model: nn.Module) -> ModelInfo | None:
    """What a network says of its own input, in the form in which timm's networks do; otherwise nothing."""
    config = getattr(unwrapped(model), "pretrained_cfg", None)
    if not isinstance(config, Mapping) or "mean" not in config or "std" not in config:
        return None
    size = config["input_size"][-1] if "input_size" in config else None
    resize = config.get("resize")
    if resize is None and size is not None and config.get("crop_pct"):
        resize = math.floor(size / config["crop_pct"])  # as timm does
    return ModelInfo(
        tuple(config["mean"]),
        tuple(config["std"]),
        size,
        resize,
        config.get("interpolation"),
        squash=config.get("crop_mode") == "squash",
        assumed=bool(config.get("assumed")),
        origin="its pretrained_cfg",
    )


def trained_size(model: nn.Module) -> int:
    """Side of the images that a network was trained on, as it says itself; otherwise ImageNet's 224."""
    info = model_info(model)
    return 224 if info is None or info.size is None else info.size


def normalization_mismatch(info: ModelInfo | None, mean: Sequence[float], std: Sequence[float]) -> str | None:
    """One sentence if the user's normalisation is not the one that the weights were trained with."""
    if info is None or info.mean is None or info.std is None:
        return None
    given, expected = (*mean, *std), (*info.mean, *info.std)
    if len(given) == len(expected) and all(abs(a - b) < 5e-3 for a, b in zip(given, expected, strict=True)):
        return None
    return (
        f"the images are normalised with mean {tuple(mean)} and std {tuple(std)}, but {info.origin} says "
        f"mean {info.mean} and std {info.std}: a wrong normalisation silently costs accuracy"
    )


def floating_like(model: nn.Module) -> Tensor:
    """A parameter that has the network's device and the floating-point type of most of its values."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        sizes[parameter.dtype] += parameter.numel() if parameter.is_floating_point() else 0
    found = (p for p in model.parameters() if p.dtype == sizes.most_common(1)[0][0])
    return next(found, nn.Parameter(torch.zeros(())))


def checked_model(model: nn.Module) -> nn.Module:
    """The network itself, without wrappers, or a clear error if it cannot be adapted."""
    model = unwrapped(model)
    if not isinstance(model, nn.Module):
        raise ModelError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a scripted or traced module cannot be adapted: give the original torch.nn.Module")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        raise ModelError(f"not initialised yet: {listed(lazy, 3)}; run one batch through the model first")
    empty = [name for name, tensor in tensors if tensor.is_meta]
    if empty:
        raise ModelError(f"on the meta device, without values: {listed(empty, 3)}; load the weights first")
    check_input(model)
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, without the wrappers of data parallelism and torch.compile."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def move_to(device: torch.device | str | None, model: nn.Module) -> None:
    """Move a network to a device, if one is given; an error in a sentence where that cannot be used."""
    try:
        model.to(device)
    except (AssertionError, RuntimeError) as error:
        raise OptionError(f"device {str(device)!r} cannot be used: {error}") from error


def copy_model(model: nn.Module, shared: Iterable[nn.Parameter] = ()) -> nn.Module:
    """Copy a network; the parameters in ``shared`` become new objects on the same memory."""
    memo: dict[int, object] = {}
    for parameter in shared:
        # a tensor that was made in inference mode can never take part in a backward pass
        data = parameter.clone() if parameter.is_inference() else parameter
        memo[id(parameter)] = nn.Parameter(data.detach(), requires_grad=False)
    for module in model.modules():
        for value in _attributes(module):
            # deepcopy refuses results of a computation: weight_norm of old keeps its product as an
            # attribute, some attention layers keep their biases in a dict
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be copied ({error}): acclimate adapts a copy, "
            "so the model must support copy.deepcopy"
        ) from error


def _attributes(module: nn.Module) -> Iterator[object]:
    for value in vars(module).values():
        yield value
        if isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, (list, tuple)):
            yield from value


def _chosen(model: nn.Module, adapting: Iterable[str], frozen: Iterable[str]) -> dict[str, nn.Parameter]:
    """What adapts, each once: a parameter that two layers share is frozen if one of them is."""
    taken = {id(p) for name in frozen for p in affine_parameters(model.get_submodule(name)).values()}
    chosen: dict[str, nn.Parameter] = {}
    for name in adapting:
        for suffix, parameter in affine_parameters(model.get_submodule(name)).items():
            if id(parameter) not in taken:
                taken.add(id(parameter))
                parameter.requires_grad_()
                chosen[f"{name}.{suffix}"] = parameter
    return chosen


def _explain(
    layers: Mapping[str, nn.Module],
    chosen: Mapping[str, nn.Parameter],
    inserted: Sequence[str],
    statistics: Statistics,
    why_frozen: str,
) -> list[str]:
    """What was found and decided, one sentence each."""
    kinds = Counter(type(layer).__name__ for layer in layers.values())
    found = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    notes = [f"found {found or 'no normalisation layer'}"]
    if chosen:
        total = sum(parameter.numel() for parameter in chosen.values())
        notes.append(f"{total:,} values in {len(chosen)} parameters adapt; {why_frozen}")
    if inserted:
        notes.append(f"identity affines were added to {listed(inserted, 4)}, which have none of their own")
    if statistics.norms:
        policy = "by the size of the first batch" if statistics.undecided else statistics.policy
        notes.append(f"statistics of {len(statistics.norms)} layers: {policy}")
    return notes


def count_outputs(model: nn.Module) -> int | None:
    """The number of logits, as the network says itself or its last linear layer; None if neither does.

    >>> count_outputs(nn.Sequential(nn.Flatten(), nn.Linear(8, 10)))
    10
    """
    return next(iter(possible_outputs(model)), None)


def possible_outputs(model: nn.Module) -> list[int]:
    """What the network says, then what its last layer says: who replaces the layer may leave the other."""
    owners = ((model, "num_classes"), (getattr(model, "config", None), "num_labels"))
    stated = [getattr(owner, name, None) for owner, name in owners]
    sizes = [
        module.out_features if isinstance(module, nn.Linear) else module.out_channels
        for module in (model.modules() if isinstance(model, nn.Module) else ())
        if isinstance(module, (nn.Linear, nn.Conv2d))
    ]
    return [count for count in stated if isinstance(count, int) and count > 0] + sizes[-1:]
