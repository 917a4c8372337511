"""Networks in half precision adapt to the same bits as in float32, and are given back in half precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate import Adapter
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateWarning, DeltaError, ModelError
from acclimate.probe import probe_normalization
from networks import BATCHES, NORMALIZE, adapted_state, resnet, same, state

HALVES = (torch.float16, torch.bfloat16)
CONV = nn.Conv2d


def stack(norm: Callable[[], nn.Module], *, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return nn.Sequential(CONV(3, 8, 3), norm(), nn.ReLU(), CONV(8, 8, 3), norm(), *head)


def mixed(kind: torch.dtype) -> nn.Module:
    """Convolutions and the classifier in half precision, norms in float32, as some checkpoints are."""
    model = resnet()
    for module in model.modules():
        if isinstance(module, (CONV, nn.Linear)):
            module.to(kind)
    return model


def assert_same_as_in_float32(
    model: nn.Module, method: str, tmp_path: Path | None = None, **options: object
) -> Adapter:
    """Online calls of both, to the bit, and what is true of every network in half precision."""
    given = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    before = state(model)
    half = Adapter(model, method, **options)  # type: ignore[arg-type]
    full = Adapter(copy.deepcopy(model).float(), method, **options)  # type: ignore[arg-type]
    for images in BATCHES:
        found, expected = half(images), full(images)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)
    assert half.adapting == full.adapting
    assert same(adapted_state(half), adapted_state(full))
    assert same(state(model), before)
    assert {t.dtype for t in adapted_state(half).values() if t.is_floating_point()} <= {torch.float32}
    exported = half.export().state_dict()
    assert {name: exported[name].dtype for name in given if name in exported} == {
        name: kind for name, kind in given.items() if name in exported
    }
    assert given.keys() - exported.keys() == set() or half.method.input_transform
    half.reset()
    if exported.keys() == given.keys():
        assert same(state(half.export()), before)
    assert torch.equal(half(BATCHES[0]), Adapter(model, method, **options)(BATCHES[0]))  # type: ignore[arg-type]
    return half


@pytest.mark.parametrize("kind", HALVES, ids=str)
@pytest.mark.parametrize("policy", ["batch", "running", "blend", "source"])
@pytest.mark.parametrize("fast", [True, False])
def test_every_policy_gives_the_bits_of_float32(kind: torch.dtype, policy: str, fast: bool) -> None:
    assert_same_as_in_float32(resnet().to(kind), "slr", statistics=policy, fast=fast)


@pytest.mark.parametrize("method", ["source", "bn", "tent", "tent+", "pl", "hlr", "slr-div", "slr+it"])
def test_every_family_of_methods_gives_the_bits_of_float32(method: str) -> None:
    assert_same_as_in_float32(resnet().half(), method, normalize=NORMALIZE)


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.GroupNorm(2, 8),
        lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        lambda: nn.InstanceNorm2d(8),
        lambda: nn.BatchNorm2d(8, affine=False),
        lambda: nn.BatchNorm2d(8, track_running_stats=False),
        nn.Identity,
    ],
    ids=["group", "instance, tracked", "instance", "no affine", "no statistics", "no norm"],
)
@pytest.mark.parametrize("fast", [True, False])
def test_other_norms_and_none_give_the_bits_of_float32(norm: Callable[[], nn.Module], fast: bool) -> None:
    assert_same_as_in_float32(stack(norm).bfloat16(), "slr", fast=fast, freeze="none")


@pytest.mark.parametrize("policy", ["batch", "running", "blend"])
def test_half_convolutions_with_norms_in_float32(policy: str) -> None:
    adapter = assert_same_as_in_float32(mixed(torch.float16), "slr", statistics=policy)
    kinds = {name: t.dtype for name, t in adapter.export().state_dict().items() if t.is_floating_point()}
    assert set(kinds.values()) == {torch.float16, torch.float32}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_precision_means_what_it_means_for_a_network_in_float32(precision: str) -> None:
    options = {"precision": precision, "normalize": NORMALIZE}
    half, full = Adapter(resnet().half(), **options), Adapter(resnet().half().float(), **options)  # type: ignore[arg-type]
    assert torch.equal(half(BATCHES[0]), full(BATCHES[0]))
    assert torch.equal(half.predict(BATCHES[1]), full.predict(BATCHES[1]))


def test_epochs_labels_of_shot_and_recomputed_stages() -> None:
    images = torch.cat(BATCHES)
    half, full = (
        Adapter(model, "slr+shot", memory="low") for model in (resnet().half(), resnet().half().float())
    )
    for adapter in (half, full):
        adapter.fit(images, epochs=2, batch_size=16)
    assert half.history.loss == full.history.loss
    assert torch.equal(half.predict(images), full.predict(images))
    assert half.calibrate(images.half()) == full.calibrate(images.half())


@pytest.mark.parametrize("kind", HALVES, ids=str)
def test_images_may_be_in_either_type(kind: torch.dtype) -> None:
    adapter = Adapter(resnet().to(kind), normalize=NORMALIZE)
    rounded = BATCHES[0].to(kind)
    assert torch.equal(adapter.predict(rounded), adapter.predict(rounded.float()))
    assert torch.equal(adapter(rounded), Adapter(resnet().to(kind), normalize=NORMALIZE)(rounded.float()))


def test_a_delta_goes_on_to_the_same_bits_and_is_of_these_weights_only(tmp_path: Path) -> None:
    adapter = Adapter(resnet().half(), "slr", normalize=NORMALIZE)
    adapter(BATCHES[0])
    adapter.save(tmp_path / "a.safetensors")
    loaded = Adapter.load(tmp_path / "a.safetensors", resnet().half())
    assert torch.equal(loaded(BATCHES[1]), adapter(BATCHES[1]))
    assert same(adapted_state(loaded), adapted_state(adapter))
    with pytest.raises(DeltaError, match="the same architecture with other weights"):
        Adapter.load(tmp_path / "a.safetensors", resnet().bfloat16())


@pytest.mark.parametrize(
    "norm", [lambda: nn.BatchNorm2d(8), nn.Identity], ids=["batch norm", "folded affine"]
)
def test_the_export_is_the_adapted_network_rounded_once(norm: Callable[[], nn.Module]) -> None:
    adapter = Adapter(stack(norm).half(), "slr", freeze="none", normalize=NORMALIZE)
    full = Adapter(stack(norm).half().float(), "slr", freeze="none", normalize=NORMALIZE)
    for images in BATCHES:
        adapter(images), full(images)
    found, expected = adapter.export().state_dict(), full.export().half().state_dict()
    assert same(found, expected)
    stock = stack(norm).half()
    stock.load_state_dict(found, strict=True)


def test_what_goes_before_the_network_is_exported_in_its_type() -> None:
    adapter = Adapter(resnet().half(), "slr+it", normalize=NORMALIZE)
    adapter(BATCHES[0])
    kinds = {t.dtype for t in adapter.export().state_dict().values() if t.is_floating_point()}
    assert kinds == {torch.float16}


def test_statistics_beyond_the_range_of_float16_are_told_of() -> None:
    adapter = Adapter(stack(lambda: nn.BatchNorm2d(8)).half(), "bn", statistics="batch", guard=False)
    adapter(BATCHES[0] * 1e5)
    with pytest.warns(AcclimateWarning, match=r"1\.running_.* too large for the type they came in"):
        exported = adapter.export()
    variance: Tensor = exported[1].running_var  # type: ignore[index, assignment]
    assert variance.isfinite().all()
    assert variance.max() == torch.finfo(torch.float16).max


def test_tensors_that_layers_share_stay_shared() -> None:
    model = stack(lambda: nn.BatchNorm2d(8)).half()
    model[4].running_mean = model[1].running_mean
    model[4].weight = model[1].weight
    adapter = Adapter(model, "slr", freeze="none")
    for one in (adapter._engine.prepared.model, adapter.export()):
        assert one[1].weight is one[4].weight  # type: ignore[index]
        assert one[1].running_mean is one[4].running_mean  # type: ignore[index]


def test_notes_say_what_it_costs_and_only_where_there_is_something_to_say() -> None:
    (note,) = (text for text in Adapter(mixed(torch.bfloat16)).notes if "bfloat16" in text)
    assert note.endswith(
        "tensors are bfloat16: they compute in float32, in a copy that takes twice their memory, and what "
        "adapts stays in float32 until export gives it back in bfloat16"
    )
    assert not any("float" in text for text in Adapter(resnet()).notes)


class Casts(nn.Module):
    """A network whose own code casts."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet().half()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x.half()).float()
        return found


def test_a_network_that_casts_by_itself_is_told_what_to_do() -> None:
    with pytest.raises(ModelError, match=r'take the cast out of its forward, or give precision="fp16"'):
        Adapter(Casts()).predict(BATCHES[0])
    assert Adapter(Casts(), precision="fp16")(BATCHES[0]).dtype == torch.float32


def test_adapt_in_one_call() -> None:
    images = torch.cat(BATCHES)
    half, full = (
        acclimate.adapt(model, images, epochs=1, batch_size=16, normalize=NORMALIZE)
        for model in (resnet().half(), resnet().half().float())
    )
    assert torch.equal(half.logits, full.logits)
    assert torch.equal(half.source_logits, full.source_logits)
    assert half.verdict == full.verdict


def test_images_are_probed_in_float32(tmp_path: Path) -> None:
    pixels, _ = bundled_images()
    half = bundled_model().half()
    probes = [probe_normalization(one, pixels[:32], None) for one in (half, copy.deepcopy(half).float())]
    assert probes[0] == probes[1]
    np.save(tmp_path / "x.npy", (pixels[:64] * 255).byte().permute(0, 2, 3, 1).numpy())
    results = [
        acclimate.adapt(one, tmp_path / "x.npy", epochs=1, normalize=(MEAN, STD))
        for one in (half, copy.deepcopy(half).float())
    ]
    assert torch.equal(results[0].logits, results[1].logits)
