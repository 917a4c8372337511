"""Functions that refuse to be differentiated twice, at no cost where nobody tries to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import function

__all__ = ["once_differentiable"]

_Backward = Callable[..., tuple[torch.Tensor | None, ...]]


def once_differentiable(backward: _Backward) -> _Backward:
    """That of torch, which has work to do only while a backward pass is itself recorded."""
    recorded = function.once_differentiable(backward)

    @functools.wraps(backward)
    def either(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        return recorded(ctx, *gradients) if torch.is_grad_enabled() else backward(ctx, *gradients)

    return either
