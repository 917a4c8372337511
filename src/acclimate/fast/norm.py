"""Batch norms that keep their input only, and can make their output again from it.

The statistics of a batch take two passes over it, the output one pass that is cheap beside them. So
an activation behind a norm keeps nothing: in backward it asks the norm for its output again, which
comes from the same kernel and the same statistics, and is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["batch_norm", "made_by_norm", "output_again"]


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """``F.batch_norm``."""
    if not training and (running_mean is None or not x.requires_grad):
        return NotImplemented
    if x.ndim < 2 or x.numel() < 2 * x.shape[1]:
        return NotImplemented  # torch has an error of its own for that
    return _BatchNorm.apply(x, weight, bias, running_mean, running_var, training, momentum, eps)  # type: ignore[no-untyped-call]


def made_by_norm(y: Tensor) -> Any:
    """The node of the graph that made ``y``, if that was `batch_norm`."""
    node = y.grad_fn
    return node if isinstance(node, _BatchNorm._backward_cls) else None


def output_again(node: Any) -> Tensor:
    """What the norm of a node gave."""
    x, weight, bias, mean, var = _saved(node)
    return _normalized(x, weight, bias, mean, var, node.eps)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        if training:
            if mean is None or var is None:
                # statistics are kept in the precision of what they move: never below float32
                wide = torch.promote_types(x.dtype, torch.float32)
                mean, var = (torch.empty(x.shape[1], dtype=wide, device=x.device) for _ in range(2))
            mean, var = torch.ops.aten.batch_norm_update_stats(x, mean, var, momentum)
        ctx.training, ctx.eps, ctx.unpacked = training, eps, None
        ctx.save_for_backward(x, weight, bias, mean, var)
        return _normalized(x, weight, bias, mean, var, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, _, mean, var = _saved(ctx)
        ctx.unpacked = None
        wanted = list(ctx.needs_input_grad[:3])
        invstd = (var + ctx.eps).rsqrt()
        in_x, in_weight, in_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, mean, var, mean, invstd, ctx.training, ctx.eps, wanted
        )
        return in_x, in_weight, in_bias, None, None, None, None, None


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, eps: float
) -> Tensor:
    made: Tensor = torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
    return made


def _saved(node: Any) -> tuple[Any, ...]:
    """The saved tensors, which hooks on them (those of checkpoints) give out only once."""
    if node.unpacked is None:
        node.unpacked = node.saved_tensors
    return node.unpacked  # type: ignore[no-any-return]
