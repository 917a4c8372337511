"""All that adaptation moves: the tensors of a network, and what the optimiser knows of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from acclimate.delta import digests
from acclimate.methods import Method
from acclimate.network import Network
from acclimate.optimization import make_optimizer, optimizer_state, restore_optimizer
from acclimate.prepare import Prepared

__all__ = ["Moving", "under"]


class Moving:
    """Parameters, statistics and optimiser of a network, copied and put back as named tensors."""

    def __init__(self, prepared: Prepared, network: Network, method: Method, *, fused: bool) -> None:
        self._prepared = prepared
        self.parameters = _chosen(prepared, network)
        """What the optimiser moves."""
        self.optimizer = make_optimizer(method, self.parameters, fused=fused) if self.parameters else None
        self._digests: dict[str, str] | None = None
        self.source = {name: tensor.detach().clone() for name, tensor in self.changing().items()}
        """All of `changing` as the user gave it."""

    def changing(self) -> dict[str, Tensor]:
        """Every tensor of the network that adaptation can change."""
        model, names = self._prepared.model, self._prepared.statistics.buffers
        return {**self.parameters, **{f"model.{name}": model.get_buffer(name) for name in names}}

    def source_digests(self) -> dict[str, str]:
        """Digests of the model as the user gave it."""
        if self._digests is None:
            # by address: two names can lead to one tensor
            first = {t.data_ptr(): self.source[name] for name, t in self.changing().items() if t.numel()}
            state = self._prepared.model.state_dict()
            tensors = {n: state[n] for n in self._prepared.source_names if isinstance(state[n], Tensor)}
            types = self._prepared.types  # what was in half precision has its digest as it was given
            given = {name: first.get(t.data_ptr(), t) for name, t in tensors.items()}
            self._digests = digests({name: t.to(types.get(name, t.dtype)) for name, t in given.items()})
        return self._digests

    def state(self) -> dict[str, Tensor]:
        """All of it, not copied."""
        tensors = {f"network.{name}": tensor for name, tensor in self.changing().items()}
        if self.optimizer is not None:
            state = optimizer_state(self.optimizer, self.parameters)
            tensors |= {f"optimizer.{name}": value for name, value in state.items()}
        return tensors

    def put_back(self, state: Mapping[str, Tensor]) -> None:
        """A state that was copied, or the source, if it is empty."""
        with torch.no_grad():
            for name, tensor in self.changing().items():
                tensor.copy_(state[f"network.{name}"] if state else self.source[name])
        if self.optimizer is not None:
            restore_optimizer(self.optimizer, self.parameters, under("optimizer.", state))


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _chosen(prepared: Prepared, network: Network) -> dict[str, nn.Parameter]:
    chosen = {f"model.{name}": parameter for name, parameter in prepared.parameters.items()}
    if network.transform is not None:
        chosen |= {f"transform.{name}": p for name, p in network.transform.named_parameters()}
    return chosen
