"""The doctor's counts against what is known of networks."""

from __future__ import annotations

import io
import itertools
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.tree import Tree
from torch import Tensor, nn
from typer.testing import CliRunner

from acclimate import Adapter, doctor
from acclimate.cli import app
from acclimate.cli.diagnosis import diagnosis_tree
from acclimate.demo.bundle import bundled_images, bundled_model
from acclimate.doctor import diagnose
from acclimate.fast import precision
from acclimate.mean_std import NORMALIZATIONS
from acclimate.models.vision import import_torchvision
from networks import resnet


def test_a_step_of_resnet_50_costs_what_was_counted() -> None:
    found = diagnose(import_torchvision().models.resnet50(weights=None).eval(), size=64)
    # 1.97 forwards; and all of 1,000 classes, so the paper's setting and its frozen top
    assert found.flops_ratio == pytest.approx(1.97, abs=0.01)
    assert (found.outputs, found.setting) == (1000, "paper")
    frozen = {layer.name.partition(".")[0] for layer in found.layers if not layer.adapts}
    assert frozen == {"layer4"}
    assert found.adapting == sum(layer.parameters for layer in found.layers if layer.adapts) == 30592
    assert found.largest_batch is not None


class Blocks(nn.Sequential):
    """As some packages build EfficientNet: blocks in one list, of which the last is a stage of its own."""

    def __init__(self) -> None:
        blocks = [nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.BatchNorm2d(8)) for _ in range(4)]
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 64, 100))


def test_what_is_frozen_is_shown_where_it_begins() -> None:
    found = diagnose(Blocks().eval(), size=8)
    shown = rendered(diagnosis_tree(found))
    assert "stem: 1 × BatchNorm2d, 16 values, adapts" in shown
    assert "blocks.0 to blocks.2: 6 × BatchNorm2d, 96 values, adapts" in shown
    assert "blocks.3: 2 × BatchNorm2d, 32 values, frozen" in shown
    assert "head: 1 × BatchNorm2d, 16 values, frozen" in shown
    assert "the top is frozen from 'blocks.3' on" in shown
    assert "of the learning rate" not in shown  # that is about the doctor's own batch


def rendered(tree: Tree) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tree)
    return console.export_text()


def test_a_step_is_timed_as_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves by one second whenever it is read."""
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    monkeypatch.setattr(doctor, "available_bytes", lambda _: None)
    found = diagnose(bundled_model(), size=8)
    assert (found.step_seconds, found.timed_images, found.largest_batch) == (1, 16, None)
    assert "a step takes 1.00 s for 16 images, 62.5 ms for each, on cpu" in rendered(diagnosis_tree(found))


def test_what_is_quick_is_timed_with_the_default_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", itertools.count(step=0.1).__next__)
    found = diagnose(bundled_model(), size=8)
    assert (found.step_seconds, found.timed_images) == (pytest.approx(0.1), 64)


def test_steps_are_taken_by_the_statistics_that_many_images_get(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, step = [], Adapter.__call__
    monkeypatch.setattr(
        Adapter, "__call__", lambda own, batch: (step(own, batch), asked.append(own.predicts_by))[0]
    )
    found = diagnose(bundled_model(), size=8)
    assert set(asked) == {"batch"}
    assert "statistics of 13 layers: by the size of the first batch" in found.notes


class OneByOne(nn.Sequential):
    """Puts each image through the norm alone, of which batch statistics would have a single value."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([super(OneByOne, self).forward(image[None].mean((2, 3))) for image in images])


def test_a_network_that_cannot_take_batch_statistics_is_diagnosed_with_those_of_few_images() -> None:
    found = diagnose(OneByOne(nn.BatchNorm1d(3), nn.Linear(3, 4)).eval(), size=8)
    assert (found.adapting, found.step_seconds > 0) == (6, True)


def test_no_more_images_are_timed_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = diagnose(bundled_model(), size=8)
    monkeypatch.setattr(doctor, "available_bytes", lambda _: int(2.2 * 5 * roomy.saved_mib * 2**20))
    found = diagnose(bundled_model(), size=8)
    assert (found.largest_batch, found.timed_images) == (5, 5)


def test_memory_kept_grows_with_the_pixels() -> None:
    small, large = (diagnose(bundled_model(), size=size).saved_mib for size in (32, 64))
    assert large == pytest.approx(4 * small, rel=0.05)


def test_weights_are_not_counted_as_activations() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 512), nn.LayerNorm(512), nn.Linear(512, 512))
    found = diagnose(model, size=8)
    assert found.saved_mib < 0.05  # some vectors of 512; a quarter of a matrix of 512 by 512 is 0.25


def test_what_was_added_is_shown() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    plain = diagnose(model, size=16)
    assert [(layer.kind, layer.parameters) for layer in plain.layers] == [("added affine", 16)]
    assert plain.adapting == 16
    transforming = diagnose(bundled_model(), "slr+it")
    assert transforming.layers[-1].kind == "input transformation"
    assert transforming.adapting == sum(layer.parameters for layer in transforming.layers if layer.adapts)


def test_nothing_is_kept_where_nothing_is_trained() -> None:
    found = diagnose(bundled_model(), "bn", size=32)
    assert found.saved_mib == 0
    assert found.flops_ratio == pytest.approx(1)
    assert found.largest_batch is None


def test_whether_the_input_fits() -> None:
    images = bundled_images()[0][:32]
    fits = diagnose(bundled_model(), images=images)
    assert "images of 32 fit" in fits.fits[1]
    assert fits.probe is not None
    assert fits.probe.caution is None
    clean = diagnose(bundled_model(), images=images, clean=True)
    assert clean.probe is not None
    assert (clean.probe.verdict, clean.probe.clean) == ("fits", True)
    unfit = diagnose(bundled_model(), size=64, normalize=NORMALIZATIONS["half"])
    assert "a wrong normalisation silently costs accuracy" in unfit.fits[0]
    assert "images of 64 do not fit: images of 32 pixels are expected" in unfit.fits[1]
    silent = diagnose(resnet(), size=32)
    assert silent.fits == (
        "the weights do not say what their input was: give the normalisation, and check the size",
    )


def test_the_doctor_looks_at_images(tmp_path: Path) -> None:
    pixels = (bundled_images()[0][:32] * 255).byte().permute(0, 2, 3, 1).numpy()
    np.save(tmp_path / "x.npy", pixels)
    command = ["doctor", "--model", "demo", "--data", str(tmp_path / "x.npy")]
    shown = " ".join(CliRunner().invoke(app, command).output.replace("│", "").split())
    assert "these images cannot tell whether the normalisation in use is right" in shown
    assert "look at clean ones, like those of training (clean=True, --clean)" in shown
    shown = " ".join(CliRunner().invoke(app, [*command, "--clean"]).output.replace("│", "").split())
    assert "nothing speaks against the normalisation in use; how sure: 9" in shown
    assert "best normalisation first" in shown
    found = json.loads(CliRunner().invoke(app, [*command, "--clean", "--json"]).output)["probe"]
    assert (found["verdict"], found["clean"]) == ("fits", True)
    assert 0.5 < found["sure"] <= 1
    np.save(tmp_path / "x.npy", pixels[:0])
    assert (
        CliRunner().invoke(app, ["doctor", "--model", "demo", "--data", str(tmp_path / "x.npy")]).exit_code
        == 2
    )


def test_what_precision_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: True)
    monkeypatch.setattr(precision, "_cpu_survives_bf16", lambda: True)
    found = diagnose(bundled_model(), "bn", size=32)
    assert (found.device, found.precision, found.precision_fault) == ("cpu", "bf16", None)
    monkeypatch.setattr(precision, "_cpu_survives_bf16", lambda: False)
    found = diagnose(bundled_model(), "bn", size=32)
    assert found.precision == "fp32"
    assert "start Python with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in str(found.precision_fault)
    shown = " ".join(CliRunner().invoke(app, ["doctor", "--model", "demo", "--size", "32"]).output.split())
    assert "precision auto takes fp32 on cpu; the default is fp32" in shown
    assert "caution: this processor announces AMX, but the first product in bfloat16" in shown


def test_the_command() -> None:
    shown = CliRunner().invoke(app, ["doctor", "--model", "demo", "--size", "32"]).output
    assert "SmallResNet: 172,506 parameters, 10 outputs" in shown
    assert "times the operations of a forward pass" in shown
    assert re.search(r"a step takes [\d.]+ m?s for (16|64) images, [\d.]+ m?s for each", shown)
    found = json.loads(
        CliRunner().invoke(app, ["doctor", "--model", "demo", "--size", "32", "--json"]).output
    )
    assert found["adapting"] == 416
    assert found["step_seconds"] > 0
    assert found["timed_images"] in (16, 64)
    failed = CliRunner().invoke(app, ["doctor", "--model", "nothing.there:net"])
    assert failed.exit_code == 2
    assert "cannot import nothing.there" in failed.output
