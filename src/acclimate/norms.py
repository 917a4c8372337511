"""Normalisation layers: which modules are one, their affine parameters, and affines where there are none."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

__all__ = [
    "AFFINE",
    "ChannelAffine",
    "affine_parameters",
    "attach_affine",
    "batch_norms",
    "detach_affine",
    "find_norms",
    "find_weighted_layers",
]

AFFINE: Final = "acclimate_affine"
"""Name of the child module under which an inserted affine layer lives."""

_NAMES: Final = ("weight", "bias", "gamma", "beta", "scale", "shift")
"""What the affine parameters of a norm are called."""

_NORMS: Final = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class ChannelAffine(nn.Module):
    """x * weight + bias, one entry per channel; the identity at the start."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, dtype=like.dtype, device=like.device))
        self.bias = nn.Parameter(torch.zeros(shape, dtype=like.dtype, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


def find_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Every normalisation layer by name, in the order of registration.

    torch's families and their subclasses (timm's among them), and any other layer that calls itself
    a norm and has a parameter of a usual name with one entry per channel.
    """
    return {name: module for name, module in model.named_modules() if _is_norm(module)}


def find_weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every convolution and linear layer but the last: where a network without norms gets affines."""
    kinds = (_ConvNd, nn.Linear)
    # the output projection of torch's attention is read, not called: a hook there would never run
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, kinds) and not isinstance(module, NonDynamicallyQuantizableLinear)
    }
    return dict(list(layers.items())[:-1])


def batch_norms(model: nn.Module) -> dict[str, _NormBase]:
    """Layers that keep running statistics or take them over the batch."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        or (isinstance(module, _NormBase) and module.running_mean is not None)
    }


def affine_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """What adapts in a layer: the weight and bias of its inserted affine, or else its own."""
    prefix, owner = (f"{AFFINE}.", getattr(module, AFFINE)) if hasattr(module, AFFINE) else ("", module)
    own = {name: owner._parameters.get(name) for name in _NAMES}
    return {prefix + name: parameter for name, parameter in own.items() if parameter is not None}


def attach_affine(module: nn.Module, like: Tensor) -> None:
    """Give a layer without one a channel-wise affine that starts as the identity.

    A norm built with ``affine=False`` gets its own ``weight`` and ``bias``; any other layer gets an
    affine that a hook applies to its output, so that names, types and attributes stay what they were.
    """
    if isinstance(module, _NORMS):
        shape, flag, has_bias = _affine_of_norm(module)
        setattr(module, flag, True)
        module.weight = nn.Parameter(torch.ones(shape, dtype=like.dtype, device=like.device))
        if has_bias:
            module.bias = nn.Parameter(torch.zeros(shape, dtype=like.dtype, device=like.device))
        return
    if isinstance(module, _ConvNd):
        shape = (module.out_channels, *[1] * len(module.kernel_size))
    else:
        assert isinstance(module, nn.Linear)
        shape = (module.out_features,)
    module.add_module(AFFINE, ChannelAffine(shape, like))
    module.register_forward_hook(_apply_affine)


def detach_affine(model: nn.Module, name: str) -> None:
    """Turn an inserted affine into stock layers that compute the same.

    It is folded into the weights of a plain convolution or linear layer; behind any other layer it
    becomes a traced module, which carries its own code.
    """
    module = model.get_submodule(name)
    affine = module._modules.pop(AFFINE)
    assert isinstance(affine, ChannelAffine)
    hooks = module._forward_hooks
    for key in [key for key, hook in hooks.items() if hook is _apply_affine]:
        del hooks[key]
    if _is_plain(module):
        weight, bias = module._parameters["weight"], module._parameters["bias"]
        assert weight is not None
        scale, shift = affine.weight.detach().flatten(), affine.bias.detach().flatten()
        module.weight = nn.Parameter(weight.detach() * scale.view(-1, *[1] * (weight.ndim - 1)))
        module.bias = nn.Parameter(shift if bias is None else bias.detach() * scale + shift)
        return
    whole = nn.Sequential(module, fx.symbolic_trace(affine))
    for parent in [parent for parent in model.modules() if parent is not whole]:
        for child_name, child in parent._modules.items():
            if child is module:
                parent._modules[child_name] = whole


def _is_plain(module: nn.Module) -> bool:
    """Whether a layer multiplies with its own weight and nothing else happens to it."""
    plain = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward, nn.Linear.forward)
    return type(module).forward in plain and "weight" in module._parameters and not module._forward_pre_hooks


def _apply_affine(module: nn.Module, _: tuple[object, ...], output: Tensor) -> Tensor:
    scaled: Tensor = getattr(module, AFFINE)(output)
    return scaled


def _is_norm(module: nn.Module) -> bool:
    if isinstance(module, _NORMS):
        return True
    own = affine_parameters(module).values() if "norm" in type(module).__name__.lower() else ()
    return bool(own) and all(sum(size > 1 for size in parameter.shape) <= 1 for parameter in own)


def _affine_of_norm(module: nn.Module) -> tuple[tuple[int, ...], str, bool]:
    """Shape of a norm's affine, the attribute that says whether it has one, and whether it has a bias."""
    if isinstance(module, _NormBase):
        return (module.num_features,), "affine", True
    if isinstance(module, nn.GroupNorm):
        return (module.num_channels,), "affine", True
    shape: tuple[int, ...] = tuple(module.normalized_shape)  # type: ignore[arg-type]
    return shape, "elementwise_affine", isinstance(module, nn.LayerNorm)
