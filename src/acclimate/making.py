"""The adaptable network of a method and its options, from a prepared model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acclimate.errors import OptionError
from acclimate.input_transform import InputTransformation
from acclimate.methods import Method
from acclimate.network import Network, Normalization
from acclimate.options import Options
from acclimate.ranks import Ranks

__all__ = ["make_network"]


def make_network(
    model: nn.Module,
    method: Method,
    options: Options,
    *,
    like: Tensor,
    precision: torch.dtype | None,
    ranks: Ranks,
) -> Network:
    """The model with what goes before it, on the device and in the precision of ``like``."""
    normalization = None if options.normalize is None else Normalization(*options.normalize)
    transform = None
    if method.input_transform:
        if normalization is None:
            raise OptionError(
                "the input transformation works on pixels, so that it needs normalize=(mean, std); "
                "for a network that takes pixels in [0, 1], give mean 0 and std 1"
            )
        generator = torch.Generator().manual_seed(options.seed)
        channels = len(normalization.mean)
        transform = InputTransformation(channels, method.width, method.depth, generator=generator)
        transform.to(like.device, like.dtype)
    if normalization is not None:
        normalization.to(like.device, like.dtype)
    return Network(
        model,
        normalization=normalization,
        transform=transform,
        classes=options.classes,
        features=options.features,
        tricks=options.tricks,
        precision=precision,
        adapts=method.adapts_parameters or method.adapts_statistics,
        ranks=ranks,
    )
