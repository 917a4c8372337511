"""Statistics policies against torch's own batch norm, their limits, and what export would bake in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.errors import OptionError
from acclimate.fast.mixture import takes_mixture
from acclimate.models.vision import import_timm
from acclimate.prepare import prepare
from acclimate.statistics import POLICIES, Statistics
from networks import adapted_state, images, resnet, same, state


def norm() -> nn.Sequential:
    torch.manual_seed(0)
    bn = nn.BatchNorm2d(3)
    nn.init.uniform_(bn.weight, 0.5, 1.5)
    nn.init.normal_(bn.bias)
    nn.init.normal_(bn.running_mean)
    nn.init.uniform_(bn.running_var, 0.5, 2)
    return nn.Sequential(bn).eval()


def forward(model: nn.Module, x: Tensor, policy: str, **options: float) -> Tensor:
    with Statistics(model, policy, **options).updating():
        out: Tensor = model(x)
    return out


def in_train_mode(x: Tensor) -> Tensor:
    return norm().train()(x)


@pytest.mark.parametrize(
    ("policy", "options", "expected"),
    [
        ("batch", {}, "batch"),
        ("running", {"momentum": 1.0}, "batch"),
        ("blend", {"pseudo_count": 0.0}, "batch"),
        ("source", {}, "source"),
        ("running", {"momentum": 0.0}, "source"),
        ("blend", {"pseudo_count": 1e12}, "source"),
    ],
)
def test_limits_in_value_and_gradient(policy: str, options: dict[str, float], expected: str) -> None:
    x, y = images(8).requires_grad_(), images(8).requires_grad_()
    weights = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    out = forward(norm(), x, policy, **options)
    reference = in_train_mode(y) if expected == "batch" else norm()(y)
    torch.testing.assert_close(out, reference, rtol=1e-5, atol=1e-5)
    (out * weights).sum().backward()
    (reference * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def by_hand(x: Tensor, bn: nn.BatchNorm2d, mean: Tensor, var: Tensor) -> Tensor:
    scaled = (x - mean.view(1, -1, 1, 1)) / (var.view(1, -1, 1, 1) + bn.eps).sqrt()
    return scaled * bn.weight.view(1, -1, 1, 1) + bn.bias.view(1, -1, 1, 1)


def test_blend_is_schneiders_formula() -> None:
    model, x = norm(), images(8)
    bn = model[0]
    mean = (16 * bn.running_mean + 8 * x.mean((0, 2, 3))) / 24
    var = (16 * bn.running_var + 8 * x.var((0, 2, 3), unbiased=False)) / 24
    expected = by_hand(x, bn, mean, var)
    torch.testing.assert_close(forward(model, x, "blend", pseudo_count=16.0), expected, rtol=1e-5, atol=1e-5)


def test_running_moves_by_its_momentum_and_predicts_with_what_it_holds() -> None:
    model = norm()
    bn = model[0]
    mean, var = bn.running_mean.clone(), bn.running_var.clone()
    statistics = Statistics(model, "running", momentum=0.3)
    for seed in range(3):
        x = images(4, seed=seed)
        mean = 0.7 * mean + 0.3 * x.mean((0, 2, 3))
        var = 0.7 * var + 0.3 * x.var((0, 2, 3), unbiased=False)
        with statistics.updating():
            torch.testing.assert_close(model(x), by_hand(x, bn, mean, var), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bn.running_mean, mean)
    torch.testing.assert_close(model(images(1)), by_hand(images(1), bn, mean, var), rtol=1e-4, atol=1e-5)


def test_batch_keeps_the_plain_mean_of_the_batches_since_the_restart() -> None:
    model = norm()
    statistics = Statistics(model, "batch")
    for start in (0, 10):
        statistics.restart()
        batches = [images(6, seed=start + i) for i in range(4)]
        for x in batches:
            with statistics.updating():
                model(x)
        expected = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
        torch.testing.assert_close(model[0].running_mean, expected)
        expected = torch.stack([x.var((0, 2, 3)) for x in batches]).mean(0)
        torch.testing.assert_close(model[0].running_var, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_predicting_leaves_no_trace(policy: str) -> None:
    prepared = prepare(resnet(), statistics=policy)
    with prepared.statistics.updating():
        prepared.model(images())
    before = state(prepared.model)
    prepared.model(images(8, seed=1))
    prepared.model(images(8, seed=1) * torch.nan)
    assert same(before, state(prepared.model))


@pytest.mark.parametrize("policy", ["stream", "running", "blend", "source"])
def test_single_images_work(policy: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4)
    )
    prepared = prepare(model, statistics=policy, freeze="none")
    assert prepared.statistics.single is None
    with prepared.statistics.updating():
        out = prepared.model(images(1))
    assert out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in prepared.parameters.values())


class Twice(nn.Module):
    """A network that uses one norm two times in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bn = norm()[0]
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(self.bn(x)))


@pytest.mark.parametrize(
    ("policy", "options"),
    [("batch", {}), ("running", {"momentum": 1.0}), ("blend", {"pseudo_count": 0.0}), ("source", {})],
)
def test_a_layer_that_is_used_twice_has_the_gradient_of_torch(policy: str, options: dict[str, float]) -> None:
    weights = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    reference = Twice().train(policy != "source")
    (reference(images()) * weights).sum().backward()
    prepared = prepare(Twice(), statistics=policy, freeze="none", **options)  # type: ignore[arg-type]
    with prepared.statistics.updating():
        (prepared.model(images()) * weights).sum().backward()
    for name, parameter in prepared.parameters.items():
        expected = reference.get_parameter(name).grad
        assert expected is not None
        assert expected.abs().max() > 1
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-2)


def test_which_policies_need_more_than_one_image() -> None:
    assert 'statistics="stream"' in (prepare(resnet(), statistics="batch").statistics.single or "")
    assert prepare(resnet(), statistics="auto").statistics.single is None
    layer_norm = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.LayerNorm(4))
    assert prepare(layer_norm, freeze="none").statistics.single is None
    untracked = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    assert "without running" in (
        prepare(untracked, freeze="none", statistics="running").statistics.single or ""
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_held_can_be_put_back(policy: str) -> None:
    prepared = prepare(resnet(), statistics=policy)
    for seed in range(3):
        before, steps = state(prepared.model), prepared.statistics.steps
        undo = prepared.statistics.hold()
        with prepared.statistics.updating():
            prepared.model(images(seed=seed))
        undo()
        assert same(before, state(prepared.model))
        assert prepared.statistics.steps == steps
        with prepared.statistics.updating():
            prepared.model(images(seed=seed))


def test_detached_layers_are_as_they_were_found() -> None:
    for policy in POLICIES:
        prepared = prepare(resnet(), statistics=policy)
        with prepared.statistics.detached():
            for module in prepared.model.modules():
                assert not module.training
                assert not module._forward_pre_hooks
                if isinstance(module, nn.BatchNorm2d):
                    assert (module.momentum, module.track_running_stats) == (0.1, True)
        assert prepared.model.bn1.training == (policy in ("auto", "batch"))


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown statistics policy 'btch': did you mean 'batch'"):
        prepare(resnet(), statistics="btch")


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("policy", ["running", "blend", "source"])
def test_lean_norms_mix_as_others_do(policy: str, dtype: torch.dtype, count: int) -> None:
    found = []
    for fast in (True, ["norms"], False):  # by kernels of our own, by torch's, and as they were
        adapter = Adapter(resnet().to(dtype), "tent", statistics=policy, optimizer="sgd", lr=0.01, fast=fast)
        logits = [adapter(images(count, seed).to(dtype)) for seed in range(3)]
        found.append({"predicted": adapter.predict(images(count).to(dtype)), **adapted_state(adapter)})
        found[-1] |= {f"logits {step}": part for step, part in enumerate(logits)}
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for lean in found[:2]:
        for name, value in found[2].items():
            torch.testing.assert_close(lean[name], value, rtol=tolerance, atol=tolerance, msg=name)


class Doubling(nn.BatchNorm2d):
    """Gives its running mean to ``F.batch_norm``, among other things."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class Own(nn.BatchNorm2d):
    """Computes by itself."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        parts = (self.running_mean, (self.running_var + self.eps).rsqrt(), self.weight, self.bias)
        mean, scale, weight, bias = (part.view(1, -1, 1, 1) for part in parts)
        return (x - mean) * scale * weight + bias


@pytest.mark.parametrize(
    ("layer", "takes"),
    [
        (nn.BatchNorm2d(8), True),
        (import_timm().layers.BatchNormAct2d(8, act_layer=nn.ReLU6), True),
        (Doubling(8), True),
        (Own(8), False),
    ],
)
@pytest.mark.parametrize("policy", ["running", "blend"])
def test_foreign_layers_take_a_mixture_as_torchs_do(policy: str, layer: nn.Module, takes: bool) -> None:
    assert isinstance(layer, nn.BatchNorm2d)
    assert takes_mixture(layer.eval()) is takes
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), layer, nn.Flatten(), nn.Linear(8 * 14 * 14, 5))
    fast, plain = (Adapter(net, "tent", statistics=policy, fast=fast, guard=False) for fast in (True, False))
    for seed in range(3):
        batch = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(fast(batch), plain(batch), rtol=1e-4, atol=1e-5)
    for ours, right in zip(*(adapted_state(adapter).values() for adapter in (fast, plain)), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)
