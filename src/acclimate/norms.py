"""Normalisation layers: which modules are one, their affine parameters, and affines where there are none."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
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

_NORMS: Final = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class ChannelAffine(nn.Module):
    """x * weight + bias along one dimension; the identity at the start."""

    def __init__(self, channels: int, dim: int, like: Tensor) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.ones(channels, dtype=like.dtype, device=like.device))
        self.bias = nn.Parameter(torch.zeros(channels, dtype=like.dtype, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        shape = [1] * x.ndim
        shape[self.dim] = -1
        return x * self.weight.view(shape) + self.bias.view(shape)


def find_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Every normalisation layer by name, in the order of registration.

    torch's families and their subclasses (timm's among them), and any other layer that calls itself
    a norm and has a ``weight`` with one entry per channel.
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
    own = {name: owner._parameters.get(name) for name in ("weight", "bias")}
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
    linear = isinstance(module, nn.Linear)
    channels = module.out_features if linear else module.out_channels
    module.add_module(AFFINE, ChannelAffine(int(channels), -1 if linear else 1, like))  # type: ignore[arg-type]
    module.register_forward_hook(_apply_affine)


def detach_affine(parent: nn.Module, name: str) -> None:
    """Turn the inserted affine of ``parent.name`` into stock layers that compute the same.

    It is folded into the weights of a plain convolution or linear layer; behind any other layer it
    becomes a depthwise 1x1 convolution.
    """
    module = getattr(parent, name)
    affine: ChannelAffine = module._modules.pop(AFFINE)
    hooks = module._forward_hooks
    for key in [key for key, hook in hooks.items() if hook is _apply_affine]:
        del hooks[key]
    weight, bias = affine.weight.detach(), affine.bias.detach()
    if type(module).forward in (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward, nn.Linear.forward):
        scale = weight.view(-1, *[1] * (module.weight.ndim - 1))
        module.weight = nn.Parameter(
            module.weight.detach() * scale, requires_grad=module.weight.requires_grad
        )
        folded = bias if module.bias is None else module.bias.detach() * weight + bias
        module.bias = nn.Parameter(folded, requires_grad=module.weight.requires_grad)
        return
    kind = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[module.weight.ndim]
    depthwise: _ConvNd = kind(len(weight), len(weight), 1, groups=len(weight))
    depthwise.weight = nn.Parameter(weight.view(depthwise.weight.shape).clone(), requires_grad=False)
    depthwise.bias = nn.Parameter(bias.clone(), requires_grad=False)
    setattr(parent, name, nn.Sequential(module, depthwise))


def _apply_affine(module: nn.Module, _: tuple[object, ...], output: Tensor) -> Tensor:
    scaled: Tensor = getattr(module, AFFINE)(output)
    return scaled


def _is_norm(module: nn.Module) -> bool:
    if isinstance(module, _NORMS):
        return True
    weight = module._parameters.get("weight")
    return "norm" in type(module).__name__.lower() and weight is not None and weight.ndim == 1


def _affine_of_norm(module: nn.Module) -> tuple[tuple[int, ...], str, bool]:
    """Shape of a norm's affine, the attribute that says whether it has one, and whether it has a bias."""
    if isinstance(module, _NormBase):
        return (module.num_features,), "affine", True
    if isinstance(module, nn.GroupNorm):
        return (module.num_channels,), "affine", True
    shape: tuple[int, ...] = tuple(module.normalized_shape)  # type: ignore[arg-type]
    return shape, "elementwise_affine", isinstance(module, nn.LayerNorm)
