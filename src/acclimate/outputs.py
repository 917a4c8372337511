"""What a network takes and gives back: images and logits ``(N, classes)``, or what cannot be adapted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from acclimate.errors import ModelError, listed

__all__ = ["caution_about", "check_input", "logits_of", "tells_enough"]

_ENOUGH: Final = 16
"""Outputs from which on chance does not look like a pattern."""
_ROWS: Final = 4
"""Images from which on rows have length 1 for a reason."""
_SPREAD: Final = 0.5
"""By which outputs of a sigmoid differ from image to image; those of an untrained network do not."""

_BOXES: Final = ("boxes", "pred_boxes", "bboxes")
_EXPECTED: Final = "the network must return one logit per class for every image, a tensor (N, classes), got"
_ADVICE: Final = "adapt a classifier, or wrap the network in a module whose forward returns such a tensor"

_PROBABILITIES: Final = (
    "each row of the outputs sums to 1: these are probabilities, but losses here take logits; give the "
    "network without its softmax, or let it return outputs.clamp_min(1e-12).log()"
)
_SIGMOID: Final = (
    "all outputs are within [0, 1], as behind a sigmoid, but losses here take logits of classes that exclude "
    "each other; give the network without its sigmoid, or let it return outputs.logit(1e-6)"
)
_EMBEDDINGS: Final = (
    "each row of the outputs has length 1: these are embeddings, but losses here take one logit per class; "
    "give the network with its classifier, or let it return similarities to classes, divided by a temperature"
)


def check_input(model: nn.Module) -> None:
    """An error if a network cannot be called with a batch of images alone."""
    if model._forward_pre_hooks or type(model).__call__ is not nn.Module.__call__:
        return  # which may add what is missing
    try:
        signature = inspect.signature(model.forward, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError:
        needed = [p.name for p in signature.parameters.values() if _is_needed(p)]
        raise ModelError(
            f"the network must take one tensor, a batch of images, but {type(model).__name__}.forward takes "
            f"{listed(needed) or 'nothing'}: wrap it in a module whose forward(images) gives it the rest"
        ) from None


def _is_needed(parameter: inspect.Parameter) -> bool:
    is_open = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not is_open


def logits_of(output: object, images: int | None = None) -> Tensor:
    """The logits in what a network returns: a tensor, a tuple, a dict or an object with ``logits``.

    ``images`` is how many rows they must have, if that is known.
    """
    logits = _part_with_logits(output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = f"the shape {_shape(logits)}" if isinstance(logits, Tensor) else _described(output)
        raise ModelError(f"{_EXPECTED} {got}: {_ADVICE}")
    if images is not None and len(logits) != images:
        raise ModelError(f"{_EXPECTED} {len(logits)} rows for {images} images: {_ADVICE}")
    return logits


def _part_with_logits(output: object) -> object:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, (tuple, list)) and output else output


def _shape(output: Tensor) -> str:
    """A shape, and what has such a one."""
    what = {3: ", as tokens have", 4: ", a map for every class as of segmentation"}
    return f"{tuple(output.shape)}{what.get(output.ndim, '')}"


def _described(output: object) -> str:
    """What came instead of a tensor, and what gives such a thing."""
    if output is None:
        return "None"
    kind, inner = type(output).__name__, output
    if isinstance(output, (tuple, list)) and output:
        kind, inner = f"{kind} of {type(output[0]).__name__}", output[0]
    if not isinstance(inner, Mapping):
        return f"a {kind}"
    keys = f"a {kind} with {listed(inner, 4)}"
    if any(key in inner for key in _BOXES):
        return f"{keys}, as of detection"
    shapes = [value for value in inner.values() if isinstance(value, Tensor)]
    return f"{keys} of the shape {_shape(shapes[0])}" if shapes else keys


def tells_enough(logits: Tensor) -> bool:
    """Whether there are so many outputs that `caution_about` cannot be wrong by chance."""
    return logits.numel() >= _ENOUGH


def caution_about(logits: Tensor) -> str | None:
    """One sentence if these look like probabilities, like outputs of a sigmoid or like embeddings; else None.

    It waits for the device once.

    >>> caution_about(torch.randn(8, 4).softmax(1))[:58]
    'each row of the outputs sums to 1: these are probabilities'
    """
    wide = logits.detach().double() if logits.is_cpu else logits.detach().float()
    sums, lengths = (wide.sum(1) - 1).abs().amax(), (wide.square().sum(1) - 1).abs().amax()
    spreads = (wide.amax(0) - wide.amin(0)).amax()
    low, high, off_sum, off_length, spread = torch.stack([*wide.aminmax(), sums, lengths, spreads]).tolist()
    close = 1e-4 if logits.dtype.itemsize > 2 else 2e-2
    if low >= 0 and high <= 1 + close and off_sum <= close:
        return _PROBABILITIES
    if low >= 0 and high <= 1 and spread > _SPREAD:
        return _SIGMOID
    return _EMBEDDINGS if off_length <= close and len(logits) >= _ROWS else None
