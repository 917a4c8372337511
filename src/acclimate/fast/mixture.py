"""Batch norms that normalise by a mixture of statistics: how their next ``F.batch_norm`` is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import TorchFunctionMode

__all__ = ["Mixed", "Mixture", "mix_next", "mixture_for", "takes_mixture"]

_NOTE: Final = "_acclimate_mixture"
"""Attribute of a running mean by which the next ``F.batch_norm`` is told what to mix it with."""


class Mixed(NamedTuple):
    """What a batch is normalised with, in part made of the batch."""

    mean: Tensor
    var: Tensor
    share: float | Tensor
    """The part of the batch, through which its gradient flows."""
    centre: Tensor
    """What the variance's gradient is taken about: d var / d x = 2 share (x - centre) / count."""


Mixture = Callable[[Tensor, Tensor], Mixed]
"""Mean and variance of a batch to those that it is normalised with."""


def mix_next(running_mean: Tensor, mixture: Mixture) -> None:
    """Let the next ``F.batch_norm`` with this running mean normalise by a mixture."""
    setattr(running_mean, _NOTE, mixture)


def mixture_for(running_mean: Tensor | None) -> Mixture | None:
    """The mixture that this call was told of, which it alone was."""
    return None if running_mean is None else vars(running_mean).pop(_NOTE, None)


def takes_mixture(layer: _NormBase) -> bool:
    """Whether a layer in evaluation mode hands its input and running mean to ``F.batch_norm``, and once only.

    torch's own do, and so do timm's with an activation in them. Of any other it is seen from a pass of zeros.
    """
    if type(layer).forward is _BatchNorm.forward:
        return True
    assert layer.running_mean is not None
    pixels = [2] * next((n for kind, n in _PIXELS.items() if isinstance(layer, kind)), 0)
    zeros = layer.running_mean.new_zeros(2, layer.num_features, *pixels)
    listening = _Listening(zeros, layer.running_mean)
    before = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        with torch.no_grad(), torch.random.fork_rng([]), listening:
            type(layer).forward(layer, zeros)  # past hooks, which are not ours to run
    except Exception:  # whatever a foreign layer has against such an input
        return False
    finally:
        for buffer, value in before:
            buffer.copy_(value)
    return listening.heard == 1


_PIXELS: Final[dict[type[nn.Module], int]] = {nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}
"""Dimensions behind the channels."""


class _Listening(TorchFunctionMode):
    """Counts the calls of ``F.batch_norm`` with a certain input and a certain running mean."""

    def __init__(self, *expected: Tensor) -> None:
        super().__init__()
        self._expected = expected
        self.heard = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = [*args, *(kwargs or {}).values()]
        self.heard += func is F.batch_norm and all(any(v is e for v in given) for e in self._expected)
        return func(*args, **(kwargs or {}))
