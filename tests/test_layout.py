"""How images lie in memory: pixel by pixel for convolutions, plane by plane for whoever insists."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from acclimate import Adapter
from acclimate.fast import TRICKS
from acclimate.fast.layout import in_planes, is_by_pixel, pixel_by_pixel


class Seen(nn.Module):
    """Notes how its input lay in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last.append(is_by_pixel(x))
        return x


class Insists(nn.Module):
    """As many old networks: asks for rows by `view`, which pixel by pixel cannot be."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1)


def network(flatten: nn.Module, channels: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Conv2d(channels, 4, 3)
    return nn.Sequential(Seen(), first, nn.BatchNorm2d(4), nn.ReLU(), flatten, nn.Linear(144, 5))


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


@pytest.mark.parametrize(
    "shape", [(2, 1, 5, 4), (2, 1, 1, 4), (2, 1, 5, 1), (1, 1, 2, 2), (2, 3, 5, 4), (2, 3, 1, 2)]
)
def test_how_images_lie_is_what_torch_takes_them_for(shape: tuple[int, ...]) -> None:
    """As seen by what a convolution makes of them, whose channels are several."""
    planes = torch.rand(shape)
    pixels = pixel_by_pixel(planes)
    layer = nn.Conv2d(shape[1], 8, 1)
    for images, by_pixel in (
        (planes, False),
        (pixels, True),
        (in_planes(pixels), False),
        (in_planes(planes), False),
    ):
        assert torch.equal(images, planes)
        assert is_by_pixel(images) == by_pixel == is_by_pixel(layer(images))


@pytest.mark.parametrize("method", ["tent", "slr+it"])
@pytest.mark.parametrize("tricks", [tuple(TRICKS), ("layout",)], ids=["all", "layout"])
def test_images_of_one_channel_too(method: str, tricks: tuple[str, ...]) -> None:
    found = []
    for fast in (tricks, False):
        model = network(nn.Flatten(), 1)
        model.insert(2, Seen())  # behind the convolution
        adapter = Adapter(model, method, normalize=([0.5], [0.25]), fast=fast, optimizer="sgd", freeze="none")
        images = torch.rand(2, 8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        found.append([adapter(batch) for batch in images])
        seen = [module.last for module in adapter._engine.network.modules() if isinstance(module, Seen)]
        assert seen == [[fast is not False] * 2] * 2
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


class Checkpointed(nn.Module):
    """Run again in the backward pass, by the network itself."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.part, x, use_reentrant=False)
        return made


@pytest.mark.parametrize("method", ["tent", "slr+it"])
@pytest.mark.parametrize("tricks", [tuple(TRICKS), ("layout",)], ids=["all", "layout"])
@pytest.mark.parametrize("kind", ["plain", "valid", "checkpointed"])
def test_convolutions_of_one_channel_that_onednn_gets_wrong(
    kind: str, tricks: tuple[str, ...], method: str
) -> None:
    """With strides over all columns but one."""
    torch.manual_seed(0)
    first: nn.Module = nn.Conv2d(1, 8, 3, stride=(1, 2), padding="valid" if kind == "valid" else 0)
    if kind == "checkpointed":
        first = Checkpointed(first)
    rest = nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    model = nn.Sequential(first, *rest)
    images = torch.rand(8, 1, 32, 3)
    found = []
    for fast in (tricks, False):
        adapter = Adapter(
            model, method, normalize=([0.5], [0.25]), fast=fast, optimizer="sgd", freeze="none", memory="off"
        )
        found.append(adapter(images))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_group_norm_of_images_of_one_channel() -> None:
    """torch's own ends the process in its backward pass if these lie pixel by pixel and need no gradient."""
    torch.manual_seed(0)
    layers = nn.GroupNorm(1, 1), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5)
    images = torch.rand(8, 1, 8, 8)
    found = []
    for fast in (["layout"], False):
        adapter = Adapter(nn.Sequential(*layers), "tent", fast=fast, freeze="none")
        found.append([adapter(images) for _ in range(2)])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["tent", "slr+it"])
def test_images_of_one_channel_with_little_memory(method: str) -> None:
    found = []
    for memory in ("low", "off"):
        torch.manual_seed(0)
        blocks = [
            nn.Sequential(nn.Conv2d(n, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for n in (1, 8, 8)
        ]
        model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(2048, 5))
        adapter = Adapter(
            model, method, normalize=([0.5], [0.25]), memory=memory, optimizer="sgd", freeze="none"
        )
        images = torch.rand(2, 6, 1, 16, 16, generator=torch.Generator().manual_seed(1))
        found.append([adapter(batch) for batch in images])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("statistics", ["batch", "running", "blend"])
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_a_network_that_insists_gets_planes(
    statistics: str, given: torch.memory_format, channels: int
) -> None:
    images = torch.rand(3, 8, channels, 8, 8, generator=torch.Generator().manual_seed(1))
    flat = Insists(), nn.Flatten()
    adapters = [Adapter(network(f, channels), "tent", statistics=statistics) for f in flat]
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
