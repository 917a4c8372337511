"""A network by its name, with weights from a file.

`resnet50` or `resnet50.IMAGENET1K_V1` of torchvision, `resnet50.a1_in1k` of timm, `hf:owner/name` of
Hugging Face's hub, `robustbench:dataset/threat/name`, or `package.module:factory` of the user's own.

Nothing is unpickled that could run code: weights are safetensors, or files that torch can read with
`weights_only=True`.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from acclimate.errors import ModelError, listed, said, short, unknown
from acclimate.models.heads import attach_head, head_in, head_name
from acclimate.models.hubs import from_hugging_face, from_robustbench, without_retries
from acclimate.models.vision import import_timm, import_torchvision

__all__ = ["load_model", "load_weights", "model_names"]

ALIASES = {
    "demo": "acclimate.demo.bundle:bundled_model",
    "demo-shot": "acclimate.demo.bundle:bundled_shot_model",
    "cifar-resnet20": "acclimate.demo.network:cifar_resnet20",
    "cifar-resnet56": "acclimate.demo.network:cifar_resnet56",
}
# Under which keys checkpoints keep their weights, the averaged ones first: they are what is evaluated.
_WRAPPERS = (
    "state_dict_ema", "model_ema", "ema_state_dict", "ema", "state_dict", "model_state_dict", "model", "net",
)  # fmt: skip
_PREFIXES = ("module.", "_orig_mod.")  # of wrappers for many devices and of compiled networks
_OWN_INPUT = ("googlenet", "inception_v3")  # they undo ImageNet's normalisation for their older weights


_HUBS = {"hf": from_hugging_face, "robustbench": from_robustbench}


def load_model(name: str, weights: str | Path | None = None) -> nn.Module:
    """The network of a name, in evaluation mode; without ``weights``, with those it was published with.

    >>> type(load_model("demo")).__name__
    'SmallResNet'
    """
    name = ALIASES.get(name, name)
    origin, _, rest = name.partition(":")
    if origin in _HUBS:
        model = _HUBS[origin](rest)
    else:
        model = _from_factory(name) if ":" in name else _published(name, pretrained=weights is None)
    if weights is not None:
        load_weights(model, weights)
        said = getattr(model, "pretrained_cfg", None)
        if isinstance(said, Mapping):  # of the published weights, which these may not be
            model.pretrained_cfg = {**said, "assumed": True}  # type: ignore[assignment]
        if getattr(model, "paper_name", None) is not None:
            model.paper_name = None  # type: ignore[assignment]
    return model.eval()


def model_names() -> dict[str, str]:
    """Every name that `load_model` knows, and where the network comes from."""
    models, timm = import_torchvision().models, import_timm()
    found = {
        "demo": "bundled: 172,506 parameters, 10 classes of Fashion-MNIST",
        "demo-shot": "bundled: the same with SHOT's head",
        "cifar-resnet20": "for CIFAR-10's widespread checkpoint, which --weights names",
        "cifar-resnet56": "for CIFAR-10's widespread checkpoint, which --weights names",
    }
    found |= dict.fromkeys(timm.list_models(), "timm")
    for name in models.list_models(module=models):
        facts = models.get_model_weights(name).DEFAULT.meta
        accuracy = facts["_metrics"]["ImageNet-1K"]["acc@1"]
        found[name] = f"torchvision: {facts['num_params']:,} parameters, {accuracy:.1f}% on ImageNet"
    return dict(sorted(found.items(), key=lambda item: (item[1] == "timm", item[0] not in ALIASES)))


def _from_factory(path: str) -> nn.Module:
    module_name, _, factory_name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the folder where the command is run
    with contextlib.suppress(
        ModelError
    ):  # which the module may import itself, beside a torch it does not fit
        import_torchvision()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module does
        raise ModelError(f"{path!r}: cannot import {module_name}: {_reason(error)}") from error
    factory = getattr(module, factory_name, None)
    if factory is None:
        raise ModelError(f"{path!r}: {unknown('name in ' + module_name, factory_name, _callables(module))}")
    if isinstance(factory, nn.Module):
        return factory
    try:
        model = factory()
    except Exception as error:
        raise ModelError(f"{path!r} cannot be called without arguments: {_reason(error)}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{path!r} gives a {type(model).__name__}, expected a torch.nn.Module")
    return model


def _reason(error: Exception) -> str:
    said = str(error).partition("\n")[0]
    return said if isinstance(error, ImportError) else f"{type(error).__name__}: {said}"


def _callables(module: object) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]


def _published(name: str, *, pretrained: bool) -> nn.Module:
    """A network of torchvision, `resnet50` or `resnet50.IMAGENET1K_V1`, or of timm, `resnet50.a1_in1k`."""
    models, timm = import_torchvision().models, import_timm()
    base, _, tag = name.partition(".")
    ours = base in models.list_models(module=models) and (not tag or tag.isupper())
    enum = models.get_model_weights(base).__members__ if ours else {}
    if ours and tag and tag not in enum:
        raise ModelError(unknown(f"weights of {base}", tag, enum))
    if not ours and not timm.is_model(base):
        known = dict.fromkeys([*ALIASES, *models.list_models(module=models), *timm.list_models()])
        raise ModelError(f"{unknown('model', name, known)} (or give package.module:factory)")
    weights = enum[tag or "DEFAULT"] if ours else None
    try:
        if weights is not None:
            # what the published weights expect before the first layer does not depend on where they come from
            special = base in _OWN_INPUT and not pretrained
            own = {"transform_input": True, "init_weights": False} if special else {}
            model = models.get_model(base, weights=weights if pretrained else None, **own)
            preset = weights.transforms()
            model.pretrained_cfg = {  # as timm's networks have it
                "mean": preset.mean,
                "std": preset.std,
                "input_size": (3, *(preset.crop_size * 2)[:2]),
                "resize": preset.resize_size[0],
                "interpolation": preset.interpolation.value,
            }
        else:
            with without_retries() if pretrained else contextlib.nullcontext():
                model = timm.create_model(name, pretrained=pretrained)
    except (OSError, RuntimeError) as error:  # no network, or a hub that says no
        address = weights.url if weights is not None else f"the weights of {name} from timm's hub"
        raise ModelError(
            f"the published weights of {name} cannot be had ({error}): fetch {address} and give the file "
            "as weights (--weights FILE)"
        ) from error
    assert isinstance(model, nn.Module)
    return model


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Weights of a file into a network, all of them or an error that says which do not fit."""
    state = _plain_state(_read(Path(path)), Path(path))
    head = head_in(state)
    if head is not None and head[0] == head_name(model):
        attach_head(model, classes=head[1], bottleneck=head[2])
    own = model.state_dict()
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    surplus = [name for name in state if name not in own]
    shapes = [n for n in own if n in state and own[n].shape != state[n].shape]
    if missing or surplus or shapes:
        found = {"missing": missing, "not in the network": surplus, "of another shape": shapes}
        told = "; ".join(f"{what}: {listed(names, 3)}" for what, names in found.items() if names)
        raise ModelError(f"{path} has the weights of another network than {type(model).__name__} ({told})")
    try:
        model.load_state_dict(state, strict=False)
    except (RuntimeError, NotImplementedError) as error:  # tensors of a kind that hold no numbers
        raise ModelError(f"{path} has weights that cannot be taken: {said(error)}") from error


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"there is no file of weights at {path}")
    try:
        if path.suffix == ".safetensors" or _is_safetensors(path):
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged, or not a safetensors file: {said(error)}") from error
    except Exception as error:  # torch raises whatever its reader meets: pickle's, zip's and its own
        refused = re.search(r"Unsupported (?:global|operand)[^\n]*|GLOBAL \S+", str(error))
        reason = short(refused[0] if refused else said(error).partition(". ")[0])
        raise ModelError(
            f"{path} cannot be read without running code from it, or is damaged ({reason}): "
            "save a plain state_dict, best as safetensors"
        ) from error


def _is_safetensors(path: Path) -> bool:
    """By its first bytes: the length of a JSON document, and its brace."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _plain_state(found: Any, path: Path) -> dict[str, Tensor]:
    """Names and tensors, whatever a checkpoint wraps them in."""
    for key in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping) and found[key]:
            found = found[key]
            break
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        got = type(found).__name__
        if isinstance(found, Mapping):
            got = f"{got} with {listed(found, 5)}"
        raise ModelError(f"expected a state_dict in {path}, names and tensors, got {got}")
    return {_without_prefixes(str(name)): tensor for name, tensor in found.items()}


def _without_prefixes(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name
