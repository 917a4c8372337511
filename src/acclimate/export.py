"""From the adapted network back to a plain module that needs no acclimate."""

from __future__ import annotations

from collections import OrderedDict

from torch import fx, nn

from acclimate.half import give_back, types_by_layer
from acclimate.network import Network
from acclimate.norms import AFFINE, detach_affine
from acclimate.prepare import Prepared, copy_model

__all__ = ["export_module"]


def export_module(network: Network, prepared: Prepared) -> nn.Module:
    """A copy in evaluation mode that shares no memory with anything.

    If it fits the stock class, it is the stock network with the target's statistics in its norms, and
    takes what the source network took: normalised images. If not, because of an input transformation
    or of affines that could not be folded, it takes what the adapter takes: with ``normalize``, pixels.
    A network that came in half precision goes back in it, with all that is before it.
    """
    with prepared.statistics.detached():
        model = copy_model(prepared.model)
    types = types_by_layer(model, prepared.types)
    for name in prepared.inserted:
        if hasattr(model.get_submodule(name), AFFINE):
            detach_affine(model, name)
    if prepared.types:
        give_back(model, types, prepared.main_type)
    model.eval().requires_grad_()
    is_stock = network.transform is None and set(model.state_dict()) == set(prepared.source_names)
    if is_stock or network.normalization is None:
        return model
    before = [part for part in (network.transform, network.normalization) if part is not None]
    # A traced module carries its own code: it can be pickled and loaded where acclimate is not.
    front = fx.symbolic_trace(nn.Sequential(*before))
    whole = nn.Sequential(OrderedDict(input=copy_model(front).to(prepared.main_type), model=model))
    return whole.eval().requires_grad_()
