"""The real ImageNet networks of the benchmarks, where their weights are at hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acclimate import Adapter
from acclimate.data import Crop
from acclimate.errors import ModelError
from acclimate.inputs import trained_crop
from acclimate.models.load import load_model
from acclimate.normalization import normalization_of
from acclimate.prepare import prepare
from acclimate.recording import spec_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
imagenet = pytest.importorskip("imagenet")
SIZES = {"lite0": 224, "lite1": 240, "lite2": 260}
LITE = importlib.util.find_spec("efficientnet_lite_pytorch") is not None
needs_lite = pytest.mark.skipif(not LITE, reason="benchmarks/networks.txt is not installed")
needs_images = pytest.mark.skipif(not imagenet.IMAGES.exists(), reason=f"no images at {imagenet.IMAGES}")
needs_resnet = pytest.mark.skipif(
    not (imagenet.DATA / "imagenet_resnet50.safetensors").exists(), reason=f"no weights at {imagenet.DATA}"
)


def made(name: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """As a command makes it in the project's root."""
    monkeypatch.chdir(Path(__file__).parents[1])
    return load_model(f"benchmarks.imagenet:{name}")


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Of a fiftieth of the images, normalised and cropped as the network says."""
    images = imagenet.open_images(trained_crop(model))
    chosen = range(0, len(images), 50)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in normalization_of(model, None))
    parts = [chosen[start : start + 20] for start in range(0, len(chosen), 20)]
    right = [model((images.batch(p) - mean) / std).argmax(1).eq(images.labels[list(p)]) for p in parts]
    return 100 * torch.cat(right).double().mean().item()


@needs_resnet
def test_resnet_50_says_its_input_and_is_compared_with_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("resnet50", monkeypatch)
    mean, std = normalization_of(model, None)
    assert [round(255 * value, 3) for value in mean] == [123.68, 116.779, 103.939]
    assert std == (0.229, 0.224, 0.225)
    assert (trained_crop(model).size, model.paper_name) == (224, "resnet50")
    frozen = prepare(model).frozen
    assert len(frozen) == 10
    assert all(name.startswith("layer4.") for name in frozen)


@needs_resnet
@needs_images
def test_resnet_50_is_right_about_three_images_in_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """74.2% of 500 images: of 100, fewer than 60 or more than 88 are chance in one run of a thousand."""
    assert 60 <= accuracy(made("resnet50", monkeypatch)) <= 88


@needs_lite
@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_efficientnet_lite_says_its_input_and_freezes_its_last_stage_and_head(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = made(name, monkeypatch)
    assert normalization_of(model, None) == ((127 / 255,) * 3, (128 / 255,) * 3)
    assert trained_crop(model).size == size
    last = len(model._blocks) - 1  # its last stage has a single block, in all of them
    stages = [block._block_args.output_filters for block in model._blocks]
    assert stages.index(stages[last]) == last
    assert prepare(model).frozen == (*(f"_blocks.{last}._bn{i}" for i in range(3)), "_bn1")


@needs_lite
@needs_images
def test_efficientnet_lite_0_is_right_about_three_images_in_four(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 60 <= accuracy(made("lite0", monkeypatch)) <= 88


@needs_lite
@needs_images
def test_a_record_says_nothing_of_the_paper_where_the_paper_has_no_such_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made("lite0", monkeypatch)
    images = imagenet.open_images(trained_crop(model)).subset(range(4))
    adapter = Adapter(model, "bn")
    told = {
        name: spec_of(adapter, network, images, setting="paper", adapted_to=4, protocol=("online",))
        for name, network in (("lite", model), ("named", _named(model)))
    }
    assert "paper_name" not in told["lite"]
    assert told["named"]["paper_name"] == "resnet50"


def _named(model: nn.Module) -> nn.Module:
    model = nn.Sequential(model)
    model.paper_name = "resnet50"  # type: ignore[assignment]
    return model


@needs_images
def test_labels_of_the_images_are_ranks_of_their_folders() -> None:
    images = imagenet.open_images(Crop(224))
    folders = sorted(path.name for path in imagenet.IMAGES.iterdir())
    assert (len(folders), len(images)) == (1000, 5000)
    assert [folders[label] for label in images.labels.tolist()] == [
        name.split("/")[0] for name in images.names
    ]
    assert images.read(0).shape == (224, 224, 3)


def test_weights_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "DATA", tmp_path)
    with pytest.raises(ModelError, match=r"no weights of ResNet-50 at .*: put imagenet_resnet50.safetensors"):
        imagenet.resnet50()
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ModelError, match=r"Lite1 needs the package .*networks\.txt"):
        imagenet.lite1()
