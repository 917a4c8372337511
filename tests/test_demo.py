"""The bundle is what it says it is, and the demo runs and shows adaptation at work."""

from __future__ import annotations

import io
import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors import safe_open
from typer.testing import CliRunner

from acclimate import Adapter
from acclimate.cli import app
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.demo.measure import CORRUPTIONS, METHODS, QUICK_CORRUPTIONS, Cell, accuracy, shifted_images
from acclimate.demo.show import demo_table


def test_the_bundle_is_small_balanced_and_as_accurate_as_it_says() -> None:
    folder = resources.files("acclimate.demo")
    files = [folder / "fashion_resnet.safetensors", folder / "fashion_images.npz"]
    assert sum(len(file.read_bytes()) for file in files) < 3_000_000
    with resources.as_file(files[0]) as path, safe_open(path, "pt") as file:
        stated = float(file.metadata()["accuracy_2000"])
    images, labels = bundled_images()
    assert images.shape == (2000, 3, 32, 32)
    assert labels.bincount().tolist() == [200] * 10
    logits = Adapter(bundled_model(), "source", normalize=(MEAN, STD)).predict(images, batch_size=500)
    assert accuracy(logits, labels) == pytest.approx(stated, abs=0.06)


def test_the_demo_shows_adaptation_at_work(tmp_path: Path) -> None:
    out = tmp_path / "demo.png"
    result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(next(line for line in result.output.splitlines() if line.startswith("[{")))
    assert {row["method"] for row in rows} == set(METHODS)
    assert {row["corruption"] for row in rows} == set(QUICK_CORRUPTIONS) < set(CORRUPTIONS)
    means = {m: sum(r["accuracy"][-1] for r in rows if r["method"] == m) / 2 for m in METHODS}
    assert means["source"] + 10 < means["bn"] < means["slr"]
    assert "acclimate.Adapter(model" in result.output
    with Image.open(out) as picture:
        assert picture.width > 1000


def test_the_demo_takes_other_corruptions_and_refuses_unknown_ones(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--corruption", "snoww", "--out", str(tmp_path / "a.png")])
    assert result.exit_code == 2
    assert "did you mean 'snow'" in result.output
    result = CliRunner().invoke(app, ["demo", "--corruption", ",", "--out", str(tmp_path / "a.png")])
    assert result.exit_code == 2


def test_the_table_shows_what_is_known_and_a_loss_as_a_loss() -> None:
    nothing = (torch.zeros(1),) * 3
    cells = [Cell("source", "fog", (50.0,), (1,), 1.0, nothing)]
    cells += [Cell("bn", "fog", (44.0,), (1,), 1.0, nothing)]
    console = Console(width=80, file=io.StringIO(), markup=False)
    cells += [Cell(method, "fog", (50.0, 44.0), (1,), 1.0, nothing) for method in METHODS[2:]]
    console.print(demo_table(cells[:3], ["fog", "snow"]))
    assert "…" in console.file.getvalue()
    assert "gain" not in console.file.getvalue()
    console.print(demo_table(cells, ["fog"]))
    assert "-6.0" in console.file.getvalue()
    assert "bold" not in console.file.getvalue()


def test_the_exported_network_is_as_accurate_as_the_adapter() -> None:
    _, shifted, labels = shifted_images(1000, "impulse_noise")
    adapter = Adapter(bundled_model(), "slr", normalize=(MEAN, STD))
    adapter.fit(shifted, 2)
    own = accuracy(adapter.predict(shifted, batch_size=64), labels)
    with torch.no_grad():
        normalised = (shifted - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        stock = accuracy(adapter.export()(normalised), labels)
    assert stock == pytest.approx(own, abs=2)
    assert own > 60


def test_images_as_the_network_sees_them() -> None:
    images = bundled_images()[0][:4]
    plain, transforming = (Adapter(bundled_model(), m, normalize=(MEAN, STD)) for m in ("slr", "slr+it"))
    assert torch.equal(plain.transformed(images), images)
    assert torch.equal(transforming.transformed(images), images)  # the identity at the start
    transforming.fit(bundled_images()[0][:128], 1)
    assert not torch.equal(transforming.transformed(images), images)
