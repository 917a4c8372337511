"""From the adapted network back to a plain module that needs no acclimate."""

from __future__ import annotations

from collections import OrderedDict

from torch import fx, nn

from acclimate.network import Network
from acclimate.norms import AFFINE, detach_affine
from acclimate.prepare import Prepared, copy_model

__all__ = ["export_module"]


def export_module(network: Network, prepared: Prepared) -> nn.Module:
    """A copy in evaluation mode that shares no memory with anything.

    Without an input transformation it is the stock network with the target's statistics in its norms
    and takes the input that the source network took. With one, it takes pixels in [0, 1]:
    transformation, normalisation and network in a row.
    """
    with prepared.statistics.detached():
        model = copy_model(prepared.model)
    for name in prepared.inserted:
        parent, _, leaf = name.rpartition(".")
        if hasattr(model.get_submodule(name), AFFINE):
            detach_affine(model.get_submodule(parent), leaf)
    model.eval().requires_grad_()
    if network.transform is None or network.normalization is None:
        return model
    # A traced module carries its own code: it can be pickled and loaded where acclimate is not.
    front = fx.symbolic_trace(nn.Sequential(network.transform, network.normalization))
    whole = nn.Sequential(OrderedDict(input=copy_model(front), model=model))
    return whole.eval().requires_grad_()
