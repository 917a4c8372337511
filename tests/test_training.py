"""SHOT's head: what it is, that it can be copied, saved and adapted, and its training."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from acclimate import Adapter
from acclimate.cli import app
from acclimate.data import ImageSet
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.demo.measure import accuracy
from acclimate.errors import InputError, ModelError, OptionError
from acclimate.models.heads import attach_head, head_in, head_name
from acclimate.models.load import load_model
from acclimate.models.vision import import_torchvision
from acclimate.training import Recipe, train

NORMALIZE = (MEAN, STD)


def bundled(first: int, last: int, step: int = 1) -> ImageSet:
    images, labels = bundled_images()
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))[first:last:step]
    pixels = (images[order] * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return ImageSet(pixels.__getitem__, [str(int(i)) for i in order], labels=labels[order])


def test_the_head_is_shots() -> None:
    torch.manual_seed(0)
    model = attach_head(nn.Sequential(nn.Flatten(), nn.Linear(12, 10)), classes=3, bottleneck=5).eval()
    x = torch.rand(7, 12)
    head = model[1]
    narrow = head.norm(F.linear(x, head.bottleneck.weight, head.bottleneck.bias))
    magnitude = head.classifier.parametrizations.weight.original0
    direction = head.classifier.parametrizations.weight.original1
    weight = magnitude * direction / direction.norm(dim=1, keepdim=True)
    torch.testing.assert_close(model(x), narrow @ weight.T + head.classifier.bias)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))


@pytest.mark.parametrize("name", ["resnet50", "resnet101"])
def test_networks_of_the_paper(name: str) -> None:
    model = attach_head(import_torchvision().models.get_model(name, weights=None), classes=12).eval()
    assert head_name(model) == "fc.classifier"
    assert model.fc.bottleneck.weight.shape == (256, 2048)
    adapter = Adapter(model, "slr")
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 12)
    # the head lies above the frozen top: only its statistics adapt
    assert not any(
        "fc." in key and "running" not in key and "num_batches" not in key for key in adapter.adapting
    )
    assert "model.fc.norm.running_mean" in adapter.adapting


def test_the_same_seed_gives_the_same_head() -> None:
    states = [attach_head(bundled_model(), 4, seed=seed).state_dict() for seed in (1, 1, 2)]
    key = "linear.bottleneck.weight"
    assert torch.equal(states[0][key], states[1][key])
    assert not torch.equal(states[0][key], states[2][key])


def test_networks_that_cannot_have_a_head() -> None:
    with pytest.raises(ModelError, match="has no linear classifier"):
        attach_head(nn.Sequential(nn.Conv2d(3, 4, 3)), 3)
    with pytest.raises(ModelError, match="at least 2 classes, got 1"):
        attach_head(bundled_model(), 1)


def test_weights_with_a_head_bring_it_along(tmp_path: Path) -> None:
    model = attach_head(bundled_model(), classes=7, bottleneck=16)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    assert head_in(model.state_dict()) == ("linear", 7, 16)
    assert head_in(bundled_model().state_dict()) is None
    again = load_model("demo", tmp_path / "w.safetensors")
    x = torch.rand(4, 3, 32, 32)
    assert torch.equal(again(x), model.eval()(x))


def test_a_new_head_learns_what_the_old_one_knew(tmp_path: Path) -> None:
    source, rest = bundled(0, 1500), bundled(1500, 2000)
    assert rest.labels is not None
    images = rest.batch(range(500))
    own = accuracy(Adapter(bundled_model(), "source", normalize=NORMALIZE).predict(images), rest.labels)
    model = attach_head(bundled_model(), classes=10)
    start = accuracy(Adapter(model, "source", normalize=NORMALIZE).predict(images), rest.labels)
    losses: list[float] = []
    recipe = Recipe(epochs=3, flip=False)
    train(
        model, source, tmp_path / "w.safetensors", recipe, normalize=NORMALIZE,
        progress=lambda step, total, loss: losses.append(loss),
    )  # fmt: skip
    again = load_model("demo", tmp_path / "w.safetensors")
    end = accuracy(Adapter(again, "source", normalize=NORMALIZE).predict(images), rest.labels)
    assert start < 25
    assert end > own - 2
    assert len(losses) == 3 * (1500 // 64)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.safetensors"]


@pytest.mark.parametrize("at", [2, 4, 5])
def test_stopped_and_resumed_it_gives_the_same_weights(tmp_path: Path, at: int) -> None:
    source, recipe = bundled(0, 70), Recipe(epochs=3, batch_size=16, size=28)

    def run(out: Path, *, stop: int | None = None, resume: bool = False) -> None:
        def progress(step: int, total: int, loss: float) -> None:
            if step == stop:
                raise KeyboardInterrupt

        model = attach_head(bundled_model(), classes=10, bottleneck=8)
        train(model, source, out, recipe, normalize=NORMALIZE, resume=resume, progress=progress)

    run(tmp_path / "a.safetensors")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b.safetensors", stop=at)
    assert not (tmp_path / "b.safetensors").exists()
    run(tmp_path / "b.safetensors", resume=True)
    one, other = (load_file(tmp_path / f"{name}.safetensors") for name in "ab")
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert not (tmp_path / "b.training.safetensors").exists()


def test_other_trainings_are_not_resumed(tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    model = attach_head(bundled_model(), classes=10, bottleneck=8)

    def stop(step: int, total: int, loss: float) -> None:
        raise KeyboardInterrupt

    recipe = Recipe(batch_size=16)
    with pytest.raises(KeyboardInterrupt):
        train(model, bundled(0, 40), out, recipe, normalize=NORMALIZE, progress=stop)
    with pytest.raises(OptionError, match=r"epochs must be a whole number of at least 1, got 1\.5"):
        train(model, bundled(0, 40), out, Recipe(epochs=1.5))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="other images"):
        train(model, bundled(1, 41), out, recipe, normalize=NORMALIZE, resume=True)
    (tmp_path / "a.training.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is damaged, or not what a training kept"):
        train(model, bundled(0, 40), out, recipe, normalize=NORMALIZE, resume=True)


def test_images_that_cannot_train(tmp_path: Path) -> None:
    images = bundled(0, 40)
    with pytest.raises(InputError, match="needs labelled images"):
        train(bundled_model(), ImageSet(images.read, images.names), tmp_path / "a")
    with pytest.raises(InputError, match="40 images do not fill a batch of 64"):
        train(bundled_model(), images, tmp_path / "a")


def test_the_command(tmp_path: Path) -> None:
    images = bundled(0, 80)
    assert images.labels is not None
    pixels = np.stack([images.read(i) for i in range(80)])
    np.savez(tmp_path / "x.npz", images=pixels, labels=images.labels.numpy())
    command = ["train-head", "--model", "demo", "--data", str(tmp_path / "x.npz"), "--epochs", "1"]
    command += ["--batch-size", "16", "--bottleneck", "8", "--out", str(tmp_path / "h.safetensors")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "SHOT's head, 10 classes" in result.output
    assert load_model("demo", tmp_path / "h.safetensors")(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert CliRunner().invoke(app, command).exit_code == 2  # it is there
    np.save(tmp_path / "y.npy", pixels)
    command[4] = str(tmp_path / "y.npy")
    result = CliRunner().invoke(app, [*command, "--force"])
    assert result.exit_code == 2
    assert "has no labels" in result.output


def test_ctrl_c_within_a_step_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, recipe = bundled(0, 48), Recipe(epochs=1, batch_size=16, seed=20_261_116)

    def run(out: Path, *, interrupt: bool = False, resume: bool = False) -> None:
        model = attach_head(bundled_model(), classes=10, bottleneck=8)
        if interrupt:
            hook = model.layer3.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGINT))
        try:
            train(model, source, out, recipe, normalize=NORMALIZE, resume=resume)
        finally:
            if interrupt:
                hook.remove()

    run(tmp_path / "a.safetensors")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b.safetensors", interrupt=True)
    run(tmp_path / "b.safetensors", resume=True)
    one, other = (load_file(tmp_path / f"{name}.safetensors") for name in "ab")
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_other_normalisations_and_weights_are_not_resumed(tmp_path: Path) -> None:
    out, recipe = tmp_path / "a.safetensors", Recipe(batch_size=16)

    def stop(step: int, total: int, loss: float) -> None:
        raise KeyboardInterrupt

    def run(bottleneck: int = 8, normalize: Any = NORMALIZE, **options: Any) -> None:
        model = attach_head(bundled_model(), classes=10, bottleneck=bottleneck)
        train(model, bundled(0, 40), out, recipe, normalize=normalize, **options)

    with pytest.raises(KeyboardInterrupt):
        run(progress=stop)
    with pytest.raises(OptionError, match="another normalisation"):
        run(normalize=((0.5,) * 3, (0.5,) * 3), resume=True)
    with pytest.raises(OptionError, match="other weights or another bottleneck"):
        run(bottleneck=4, resume=True)
