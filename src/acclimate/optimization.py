"""The optimiser of a method, its learning rate at every step, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import OptionError
from acclimate.methods import Method

__all__ = ["learning_rate", "lr_share", "make_optimizer", "optimizer_state", "restore_optimizer"]


def make_optimizer(
    method: Method, parameters: Mapping[str, nn.Parameter], *, fused: bool = False
) -> torch.optim.Optimizer:
    """SGD or Adam over all parameters in one group; ``fused`` moves them all in one call."""
    moved = list(parameters.values())
    common: dict[str, Any] = {"lr": method.lr, "weight_decay": method.weight_decay}
    if fused and {(p.device.type, p.is_floating_point()) for p in moved} <= {("cpu", True), ("cuda", True)}:
        common["fused"] = True
    try:
        if method.optimizer == "adam":
            return torch.optim.Adam(moved, betas=method.betas, **common)
        return torch.optim.SGD(moved, momentum=method.momentum, nesterov=method.nesterov, **common)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"torch's {method.optimizer} does not take these hyperparameters: {error}"
        ) from error


def learning_rate(method: Method, position: int, total: int | None) -> float:
    """Of the step at ``position`` (from 0) of ``total``; constant where there is no known end.

    >>> from acclimate.methods import METHODS
    >>> [learning_rate(METHODS["slr"], position, 4) for position in (0, 2)]
    [0.0006, 0.0003]
    """
    if method.schedule == "constant" or total is None:
        return method.lr
    return method.lr * 0.5 * (1 + math.cos(math.pi * min(position / total, 1)))


def lr_share(method: Method, images: int) -> float:
    """The part of the learning rate that a batch of so many images takes.

    It is (images / full_batch)^2.5, at most 1: of few images each there are more steps, and each goes by a
    noisier gradient, of which Adam makes a step as long as of any other.

    >>> from acclimate.methods import METHODS
    >>> [lr_share(METHODS["slr"], images) for images in (1, 4, 16, 64)]
    [3.0517578125e-05, 0.0009765625, 0.03125, 1.0]
    """
    return 1.0 if images >= method.full_batch else float((images / method.full_batch) ** 2.5)


def optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """What an optimiser remembers of each parameter, as ``name/key``."""
    return {
        f"{name}/{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], state: Mapping[str, Tensor]
) -> None:
    """The inverse of `optimizer_state`."""
    optimizer.state.clear()
    for full, value in state.items():
        name, _, key = full.rpartition("/")
        # torch keeps Adam's step counter on the CPU
        device = "cpu" if key == "step" else parameters[name].device
        optimizer.state[parameters[name]][key] = value.to(device)
