"""Exported networks: stock classes, baked statistics, no trace of acclimate."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.models.vision import import_timm, import_torchvision
from networks import BATCHES, NORMALIZE, images, resnet, same, state

models = import_torchvision().models
STOCK = ("resnet50", "densenet121", "mobilenet_v2", "resnext50_32x4d")


@pytest.mark.parametrize("name", STOCK)
def test_adapted_networks_load_into_their_stock_class(name: str) -> None:
    torch.manual_seed(0)
    source = getattr(models, name)(num_classes=8)
    adapter = Adapter(source, "slr", lr=0.01)
    adapter.fit(images(24, size=64), 2, batch_size=8)
    exported = adapter.export()
    assert type(exported) is type(source)
    assert not exported.training
    stock = getattr(models, name)(num_classes=8)
    stock.load_state_dict(exported.state_dict(), strict=True)
    x = images(8, size=64)
    assert torch.equal(stock.eval()(x), exported(x))
    changed = {n for n, t in exported.state_dict().items() if not torch.equal(t, source.state_dict()[n])}
    adapting = {n.removeprefix("model.") for n in adapter.adapting}
    assert changed <= adapting
    # every statistic is the target's, and every parameter below the frozen top has moved
    assert {n for n in adapting if "running" in n or not n.endswith("num_batches_tracked")} <= changed


def test_baked_statistics_are_the_targets() -> None:
    """One batch is the whole target: evaluation mode then computes what batch statistics compute."""
    adapter, x = Adapter(resnet(), "bn"), images(64)
    by_batch = adapter(x)
    # running_var is the unbiased estimate: a factor n / (n - 1), close to 1 for 64 images of 16 pixels
    torch.testing.assert_close(adapter.export()(x), by_batch, rtol=0.02, atol=0.02)
    assert not torch.allclose(resnet()(x), by_batch, rtol=0.02, atol=0.02)


def test_running_statistics_predict_the_same_before_and_after_export() -> None:
    adapter = Adapter(resnet(), "slr", statistics="running", fast=False)
    adapter.fit(images(40), 2, batch_size=8)
    assert torch.equal(adapter.export()(BATCHES[0]), adapter.predict(BATCHES[0]))


@pytest.mark.parametrize("statistics", ["batch", "running", "blend", "source"])
def test_export_shares_nothing_and_disturbs_nothing(statistics: str) -> None:
    model = resnet()
    before = state(model)
    adapter, reference = (Adapter(model, "slr", statistics=statistics) for _ in range(2))
    for x in BATCHES:
        exported = adapter.export()
        for p in exported.parameters():
            p.data.zero_()
        assert torch.equal(adapter(x), reference(x))
    assert same(before, state(model))
    assert all(p.requires_grad for p in adapter.export().parameters())


def test_an_unadapted_export_is_the_source() -> None:
    assert same(Adapter(resnet(), "slr").export().state_dict(), resnet().state_dict())
    source = Adapter(resnet(), "source")
    source.fit(images(20), 1, batch_size=10)
    assert same(source.export().state_dict(), resnet().state_dict())


def test_with_an_input_transformation_pixels_go_in() -> None:
    adapter = Adapter(resnet(), "slr+it", normalize=NORMALIZE, statistics="running", lr=0.02)
    adapter.fit(images(40), 3, batch_size=8)
    exported = adapter.export()
    torch.testing.assert_close(exported(BATCHES[0]), adapter.predict(BATCHES[0]), rtol=1e-5, atol=1e-5)
    program = torch.export.export(exported, (BATCHES[0],))
    torch.testing.assert_close(program.module()(BATCHES[0]), exported(BATCHES[0]), rtol=1e-4, atol=1e-5)
    assert "acclimate.input_transform" not in {type(m).__module__ for m in exported.modules()}


WITHOUT_ACCLIMATE = """
import pickle, sys
sys.modules["acclimate"] = None  # importing it now fails
import torch
with open(sys.argv[1], "rb") as file:
    front, pixels, expected = pickle.load(file)
torch.testing.assert_close(front(pixels), expected)
"""


def test_the_transformation_is_unpickled_where_acclimate_is_not(tmp_path: Path) -> None:
    adapter = Adapter(resnet(), "slr+it", normalize=NORMALIZE, lr=0.02)
    adapter.fit(images(40), 3, batch_size=8)
    front = adapter.export().get_submodule("input")
    with (tmp_path / "front.pickle").open("wb") as file:
        pickle.dump((front, BATCHES[0], front(BATCHES[0]).detach()), file)
    command = [sys.executable, "-c", WITHOUT_ACCLIMATE, str(tmp_path / "front.pickle")]
    assert subprocess.run(command, check=False).returncode == 0


class Standardised(nn.Conv2d):
    """A convolution that rescales its weights: an affine cannot be folded into them."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / self.weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        return self._conv_forward(x, weight, self.bias)


def test_inserted_affines_are_folded_into_stock_layers() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Sequential(Standardised(8, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2)),
        nn.Conv2d(4, 4, 3, groups=2, bias=False),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 12),
        nn.Tanh(),
        nn.Linear(12, 5),
    ).double()
    adapter = Adapter(net, "slr", lr=0.05, freeze="none")
    adapter.fit(images(24).double(), 3, batch_size=8)
    exported = adapter.export()
    torch.testing.assert_close(
        exported(BATCHES[0].double()), adapter.predict(BATCHES[0]), rtol=1e-12, atol=1e-12
    )
    assert not any("acclimate" in name for name, _ in exported.named_modules())
    assert not any(m._forward_hooks for m in exported.modules())
    torch.export.export(exported, (BATCHES[0].double(),))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal", "standardised twice"])
def test_affines_behind_layers_with_weights_of_their_own_making(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "standardised twice":
        shared = Standardised(4, 4, 3, padding=1)
        middle = nn.Sequential(shared, nn.ReLU(), shared)
    else:
        wrap = getattr(nn.utils.parametrizations, kind)
        middle = nn.Sequential(wrap(nn.Conv2d(4, 4, 3)), nn.ReLU(), nn.Flatten(), wrap(nn.Linear(576, 4)))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), middle, nn.Flatten(), nn.LazyLinear(5)).eval()
    net(BATCHES[0])
    adapter = Adapter(net, "slr", lr=0.05, freeze="none")
    adapter.fit(images(24), 2, batch_size=8)
    exported = adapter.export()
    torch.testing.assert_close(exported(BATCHES[0]), adapter.predict(BATCHES[0]), rtol=1e-4, atol=1e-5)
    assert not any("acclimate" in type(m).__module__ for m in exported.modules())


def test_what_is_not_stock_takes_what_the_adapter_takes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.Flatten(), nn.LazyLinear(5)
    ).eval()
    net(BATCHES[0])
    adapter = Adapter(net, "slr", freeze="none", statistics="running", normalize=NORMALIZE)
    adapter.fit(images(24), 2, batch_size=8)
    torch.testing.assert_close(
        adapter.export()(BATCHES[0]), adapter.predict(BATCHES[0]), rtol=1e-5, atol=1e-5
    )


def test_a_network_with_biased_convolutions_and_no_norms_stays_stock() -> None:
    torch.manual_seed(0)
    adapter = Adapter(models.alexnet(num_classes=6), "slr", lr=0.01)
    adapter.fit(images(8, size=64), 2, batch_size=4)
    stock = models.alexnet(num_classes=6)
    stock.load_state_dict(adapter.export().state_dict(), strict=True)
    x = images(4, size=64)
    torch.testing.assert_close(stock.eval()(x), adapter.predict(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_norms_that_were_given_an_affine_keep_it(fast: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.Flatten(), nn.Linear(8 * 14 * 14, 5)
    )
    adapter = Adapter(net, "slr", lr=0.05, freeze="none", statistics="running", fast=fast)
    adapter.fit(images(24), 2, batch_size=8)
    exported = adapter.export()
    error = 1e-6 if fast else 0.0  # some savings round in another order
    torch.testing.assert_close(exported(BATCHES[0]), adapter.predict(BATCHES[0]), rtol=error, atol=error)
    assert exported[1].weight.ne(1).any()


def test_norms_with_an_activation_of_their_own_are_exported_whole() -> None:
    torch.manual_seed(0)
    model = import_timm().create_model("efficientnet_b0", num_classes=5)
    adapter = Adapter(model, "tent", statistics="running", fast=False)
    adapter.fit(images(8, size=32), 1, batch_size=4)
    exported = adapter.export()
    model.load_state_dict(exported.state_dict(), strict=True)
    assert torch.equal(model.eval()(BATCHES[0]), adapter.predict(BATCHES[0]))
