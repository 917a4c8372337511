"""How images lie in memory: pixel by pixel for convolutions, plane by plane for whoever insists."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from acclimate import Adapter


class Seen(nn.Module):
    """Notes how its input lay in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last.append(x.is_contiguous(memory_format=torch.channels_last))
        return x


class Insists(nn.Module):
    """As many old networks: asks for rows by `view`, which pixel by pixel cannot be."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1)


def network(flatten: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Seen(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), flatten, nn.Linear(144, 5))


def layout(model: nn.Module) -> list[bool]:
    return next(module.last for module in model.modules() if isinstance(module, Seen))


def test_convolutions_see_images_pixel_by_pixel() -> None:
    adapter = Adapter(network(nn.Flatten()), "tent")
    for _ in range(2):
        adapter(torch.rand(8, 3, 8, 8))
    assert layout(adapter._engine.network) == [True, True]


def test_no_convolution_no_change() -> None:
    model = nn.Sequential(Seen(), nn.Flatten(), nn.Linear(192, 4), nn.LayerNorm(4))
    adapter = Adapter(model, "tent")
    adapter(torch.rand(8, 3, 8, 8))
    assert layout(adapter._engine.network) == [False]


@pytest.mark.parametrize("statistics", ["batch", "running", "blend"])
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_a_network_that_insists_gets_planes(statistics: str, given: torch.memory_format) -> None:
    images = torch.rand(3, 8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    adapters = [Adapter(network(f), "tent", statistics=statistics) for f in (Insists(), nn.Flatten())]
    for batch in images:
        one, other = (adapter(batch.contiguous(memory_format=given)) for adapter in adapters)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    # tried once, then known; the first layers saw the first batch twice but count it once
    assert layout(adapters[0]._engine.network) == [True, False, False, False]
    states = [adapter._engine.network.model.state_dict() for adapter in adapters]
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_another_failure_is_the_networks_own() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        Adapter(network(Broken()), "tent")(torch.rand(8, 3, 8, 8))


def test_a_group_norm_behind_a_frozen_convolution() -> None:
    """Where images lie pixel by pixel and need no gradient, torch's own backward ends the process."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 5)
    )
    found = []
    for fast in (True, False):
        adapter = Adapter(net, "tent", fast=fast, optimizer="sgd", freeze="none")
        found.append(
            torch.cat(
                [
                    adapter(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(i)))
                    for i in range(3)
                ]
            )
        )
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
