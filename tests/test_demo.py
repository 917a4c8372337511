"""The bundle is what it says it is, and the demo runs and shows adaptation at work."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import torch
from safetensors import safe_open

from acclimate import Adapter
from acclimate.demo.__main__ import accuracy, corruptions, main
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model


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


def test_the_demo_prints_a_table_in_which_adaptation_wins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["demo", "--quick"])
    main()
    shown = capsys.readouterr().out
    rows = dict(re.findall(r"│ (\S+) +│ +([\d.]+) │", shown))
    assert float(rows["source"]) < float(rows["bn"]) < float(rows["slr"])
    assert "acclimate.Adapter(model" in shown


def test_the_exported_network_is_as_accurate_as_the_adapter() -> None:
    images, labels = (part[:1000] for part in bundled_images())
    shifted = corruptions(images)["noise"]
    adapter = Adapter(bundled_model(), "slr", normalize=(MEAN, STD))
    adapter.fit(shifted, 2)
    own = accuracy(adapter.predict(shifted, batch_size=64), labels)
    with torch.no_grad():
        normalised = (shifted - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        stock = accuracy(adapter.export()(normalised), labels)
    assert stock == pytest.approx(own, abs=2)
    assert own > 60
