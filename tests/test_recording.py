"""What records keep: curves, pictures, and what is seen without labels."""

from __future__ import annotations

import base64
import io
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate import Adapter, corrupt
from acclimate.bench.cell import run_cell
from acclimate.bench.spec import Cell, Data, Network
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.metrics import measure, observe, structural_similarity
from acclimate.recording import curves, picture

DEMO = Data(name="demo", path="acclimate.demo.bundle:bundled_images", limit=96)


def cell(**changes: Any) -> Cell:
    own: dict[str, Any] = {"method": "slr", "corruption": "contrast", "severity": 5, "setting": "few"}
    return Cell(network=Network(name="demo"), data=DEMO, epochs=2, batch_size=32, **{**own, **changes})


def pixels_of(text: str, kind: str = "png") -> np.ndarray:
    head, _, content = text.partition(";base64,")
    assert head == f"data:image/{kind}"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_a_gallery_shows_clean_shifted_and_transformed_images() -> None:
    record = run_cell(cell(method="slr+it"), Path())
    rows = torch.linspace(0, 1999, 96).round().long()
    gallery = record["result"]["gallery"]
    middle = 48
    assert [item["name"] for item in gallery] == [str(int(rows[i])) for i in (0, middle, 95)]
    clean, shifted, made = (pixels_of(gallery[1][kind]) for kind in ("clean", "shifted", "transformed"))
    images = (bundled_images()[0][rows] * 255).round().byte().permute(0, 2, 3, 1).numpy()
    assert np.array_equal(clean, images[middle])
    assert np.array_equal(shifted, corrupt(images, "contrast", 5)[middle])
    assert made.shape == shifted.shape
    assert not np.array_equal(made, shifted)
    one, other = (torch.from_numpy(x / 255).permute(2, 0, 1)[None] for x in (clean, shifted))
    assert gallery[1]["ssim"][0] == pytest.approx(structural_similarity(one, other).item(), abs=1e-6)


def test_pictures_of_large_images_are_small() -> None:
    drawn = pixels_of(picture(torch.rand(3, 300, 200)), "jpeg")
    assert drawn.shape == (128, 85, 3)
    assert pixels_of(picture(torch.full((1, 8, 8), 2.0))).tolist() == [[255] * 8] * 8


def test_accuracy_over_steps_is_that_of_the_logits_before_each_update() -> None:
    record = run_cell(cell(), Path())
    steps, online = record["result"]["steps"], record["result"]["online"]
    first = [value for value, epoch in zip(steps["accuracy"], steps["epoch"], strict=True) if epoch == 1]
    assert len(steps["accuracy"]) == len(steps["step"]) == 2 * len(first)
    assert statistics.fmean(first) == pytest.approx(online["accuracy"])


def test_long_curves_are_thinned_and_their_accuracy_averaged_between_points() -> None:
    adapter = Adapter(bundled_model(), "tent", normalize=(MEAN, STD))
    for name in ("loss", "confidence", "class_entropy", "lr", "epoch"):
        getattr(adapter.history, name).extend(range(1000))
    found = curves(adapter, [float(i % 2) for i in range(1000)])
    assert found["step"][0] == 1
    assert found["step"][-1] == 1000
    assert len(found["step"]) <= 65
    assert set(found["accuracy"][1:-1]) == {0.5}
    assert found["loss"] == [step - 1 for step in found["step"]]


def test_what_is_seen_without_labels_is_what_is_measured_with_them() -> None:
    logits = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    seen, known = observe(logits), measure(logits, torch.randint(7, (200,)))
    assert (seen.histogram, seen.logit_norm) == (known.histogram, known.logit_norm)
    assert [item[:2] for item in seen.bins] == [item[:2] for item in known.bins]
    assert seen.confidence == pytest.approx(sum(n * mean for n, mean, _ in known.bins) / 200)
