"""Stability, the gate and temperatures: what is said of accuracy without a label, where it is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import acclimate
from acclimate import Adapter
from acclimate.bench.cell import run_cell
from acclimate.bench.spec import Cell, Data, Network
from acclimate.cli import app
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateWarning
from acclimate.gate import judge
from acclimate.one_call import judged
from acclimate.stability import Views, second_view, temperature_for
from networks import NORMALIZE, images, resnet


def logits_of(classes: list[int], count: int = 4, sure: float = 5.0) -> Tensor:
    return sure * torch.nn.functional.one_hot(torch.tensor(classes), count).double()


def test_a_second_view_is_mirrored_and_moved_by_hand() -> None:
    rows = torch.arange(16.0).view(1, 1, 4, 4)
    mirrored = rows.flip(3)[0, 0]
    expected = torch.stack([mirrored[max(i - 1, 0)][[0, 0, 1, 2]] for i in range(4)])
    assert torch.equal(second_view(rows)[0, 0], expected)
    assert second_view(torch.rand(2, 3, 224, 224)).shape == (2, 3, 224, 224)
    vectors = torch.rand(4, 10)
    assert torch.equal(second_view(vectors), vectors)


def test_agreement_and_evenness_are_counted() -> None:
    views = Views(logits_of([0, 1, 2, 3]), logits_of([0, 1, 2, 0]))
    assert views.agreement == 0.75
    assert views.evenness() == pytest.approx(1.0)
    assert Views(logits_of([0, 0, 1, 1]), logits_of([0, 0, 1, 1])).evenness() == pytest.approx(0.5)
    assert Views(logits_of([2, 2, 2, 2]), logits_of([2, 2, 2, 2])).evenness() == 0.0


def test_evenness_is_that_of_the_prior_if_one_is_known() -> None:
    views = Views(logits_of([0, 0, 0, 1] * 8), logits_of([0, 0, 0, 1] * 8))
    assert views.evenness() < 0.5
    assert views.evenness(torch.tensor([0.75, 0.25 - 2e-9, 1e-9, 1e-9])) == pytest.approx(1.0, abs=1e-3)


def test_a_network_that_says_the_same_of_everything_is_refused() -> None:
    source = Views(logits_of([0, 1, 2, 3] * 5), logits_of([0, 1, 2, 0] * 5))
    collapsed = Views(logits_of([0] * 20), logits_of([0] * 20))
    verdict = judge(source, collapsed)
    assert not verdict.accepted
    assert (
        "refused: the adapted network agrees with itself on 100.0% of 20 images, evenness 0.00"
        in verdict.reason
    )
    assert judge(collapsed, source).accepted
    assert judge(source, source).accepted


@pytest.mark.parametrize(("classes", "is_sure"), [(10, True), (1000, False)])
def test_a_refusal_at_many_classes_says_that_it_may_be_wrong(classes: int, is_sure: bool) -> None:
    logits = 5 * torch.randn(100, classes, generator=torch.Generator().manual_seed(0))
    source, adapted = Views(logits, logits), Views(logits, logits.roll(1, 0))
    verdict = judge(source, adapted)
    assert not verdict.accepted
    assert ("probably better" in verdict.reason) == is_sure
    assert ("measure with some labels" in verdict.reason) == (not is_sure)


def test_a_temperature_brings_the_mean_confidence_to_what_is_asked() -> None:
    logits = 4 * torch.randn(200, 10, generator=torch.Generator().manual_seed(0))
    for wanted in (0.3, 0.5, 0.6):
        temperature = temperature_for(logits, wanted)
        mean = (logits.double() / temperature).softmax(1).amax(1).mean().item()
        assert mean == pytest.approx(wanted, abs=1e-9)
    assert temperature_for(logits, 1.0) == 1.0  # nothing is made more confident


def test_calibration_changes_confidences_and_no_prediction(tmp_path: Path) -> None:
    adapter = Adapter(resnet(), "slr", normalize=NORMALIZE, calibrate=True)
    plain = Adapter(resnet(), "slr", normalize=NORMALIZE)
    data = images(48)
    for one in (adapter, plain):
        one.fit(data, 1, batch_size=16, progress=False)
    before = plain.predict(data, batch_size=16)
    assert adapter.temperature >= 1.0
    assert torch.equal(adapter.predict(data, batch_size=16), before / adapter.temperature)
    adapter.temperature = 2.0
    adapter.save(tmp_path / "delta")
    assert Adapter.load(tmp_path / "delta", resnet()).temperature == 2.0
    adapter.reset()
    assert adapter.temperature == 1.0


def test_views_are_of_at_most_so_many_images() -> None:
    views = Adapter(resnet(), "bn", normalize=NORMALIZE).views(images(70), batch_size=16, images=40)
    assert views.logits.shape == views.others.shape == (40, 5)


@pytest.fixture(scope="module")
def fog() -> Tensor:
    return acclimate.corrupt(bundled_images()[0][:256], "fog", severity=5)


def test_adaptation_that_helps_is_accepted_and_one_that_ruins_is_refused(fog: Tensor) -> None:
    model = bundled_model()
    result = acclimate.adapt(model, fog, epochs=2, normalize=(MEAN, STD), progress=False)
    assert result.verdict is not None
    assert result.verdict.accepted
    with pytest.warns(AcclimateWarning, match="refused"):
        ruined = acclimate.adapt(
            model, fog, epochs=2, normalize=(MEAN, STD), progress=False, guard=False, lr=1.0
        )
    assert ruined.verdict is not None
    assert not ruined.verdict.accepted
    assert judged(*[Adapter(model, "source", normalize=(MEAN, STD))] * 2, fog) is None


def test_the_command_refuses_what_is_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a learning rate that no option of the command can give; an older export would look new."""
    import numpy as np

    from acclimate import methods

    clean = bundled_images()[0][:128]
    np.save(tmp_path / "images.npy", (clean * 255).round().byte().permute(0, 2, 3, 1).numpy())
    ruin = methods.Setting("a learning rate that ruins", {"slr": {"lr": 1.0}})
    monkeypatch.setattr(methods, "SETTINGS", {**methods.SETTINGS, "few": ruin})
    monkeypatch.chdir(tmp_path)
    words = [
        "adapt",
        "--model",
        "demo",
        "--data",
        "images.npy",
        "--epochs",
        "2",
        "--no-guard",
        "--json",
        "--calibrate",
    ]
    words += ["--gate", "refuse", "--export", "net.safetensors", "--predictions", "p.csv", "--force"]
    (tmp_path / "net.safetensors").write_bytes(b"of an earlier run")
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1, ran.output
    told = json.loads(ran.stdout)
    assert told["refused"]
    assert told["written"] == {"out": "adapted.safetensors", "predictions": "p.csv", "record": "adapted.json"}
    assert all((tmp_path / name).exists() for name in told["written"].values())
    assert not told["verdict"]["accepted"]
    assert told["changed"] == 0  # what is given out is what the source says
    assert any("they are what is given here, and nothing was exported" in text for text in told["cautions"])
    assert not (tmp_path / "net.safetensors").exists()
    assert (tmp_path / "adapted.safetensors").exists()  # nothing that was computed is lost
    record = json.loads((tmp_path / "adapted.json").read_text())
    assert record["result"]["verdict"]["accepted"] is False
    assert CliRunner().invoke(app, [*words[:5], "--gate", "perhaps"]).exit_code == 2


def test_a_record_has_the_calibration_that_was_asked_for() -> None:
    cell = Cell(
        network=Network(name="demo"),
        data=Data(name="demo", path="acclimate.demo.bundle:bundled_images", limit=128),
        corruption="contrast", severity=5, method="slr", epochs=1,
        overrides={"calibrate": True, "guard": True},
    )  # fmt: skip
    result = run_cell(cell, Path())["result"]
    assert result["alarms"] == []
    found, plain = result["calibrated"], result["after_epoch"]["1"]
    assert found["temperature"] >= 1.0
    assert found["ece"] <= plain["ece"]
    assert math.isfinite(found["nll"])
