"""`acclimate predict`: new images by what an adaptation left, as the exported network predicts them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from acclimate import Adapter, adapt, corrupt
from acclimate.cli import app
from acclimate.demo.bundle import CLASSES, MEAN, STD, bundled_images, bundled_model
from acclimate.errors import DeltaError, InputError, ModelError, OptionError
from acclimate.inputs import open_images
from acclimate.predicting import PredictOutcome, format_outcome, load_adapted, predict_images
from networks import BATCHES, NORMALIZE, adapted_state, images, resnet, same

SEEN, NEW = range(128), range(128, 170)


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def saved(folder: Path, rows: range) -> Path:
    """Noisy images of the bundled data, as files."""
    folder.mkdir()
    pixels = (bundled_images()[0] * 255).round().to(torch.uint8)[rows.start : rows.stop]
    for number, image in zip(rows, corrupt(pixels, "impulse_noise", 5).permute(0, 2, 3, 1), strict=True):
        Image.fromarray(image.numpy()).save(folder / f"{number:04d}.png")
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `acclimate adapt` left of some images, and with new ones, one of them cut off."""
    lab = tmp_path_factory.mktemp("lab")
    command = ("adapt", "--model", "demo", "--epochs", 1, "--data", saved(lab / "seen", SEEN))
    files = ("--out", lab / "a.safetensors", "--export", lab / "stock.safetensors")
    assert run(*command, *files, "--predictions", lab / "seen.csv")[0] == 0
    transformed = ("--out", lab / "it.safetensors", "--export", lab / "whole.safetensors")
    assert run(*command, *transformed, "--input-transform")[0] == 0
    whole = (saved(lab / "new", NEW) / f"{NEW.start:04d}.png").read_bytes()
    (lab / "new/broken.png").write_bytes(whole[: len(whole) // 2])
    return lab


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def pixels_of(folder: Path) -> Tensor:
    files = sorted(path for path in folder.glob("0*.png"))
    return torch.stack([torch.from_numpy(np.array(Image.open(f))) for f in files]).permute(0, 3, 1, 2) / 255


def by_plain_torch(weights: Path, pixels: Tensor) -> Tensor:
    """Logits of the exported network in evaluation mode, all images at once."""
    stock = bundled_model()
    stock.load_state_dict(load_file(weights), strict=True)
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (MEAN, STD))
    with torch.no_grad():
        logits: Tensor = stock.eval()((pixels - mean) / std)
    return logits


@pytest.mark.parametrize("adapted", ["a.safetensors", "stock.safetensors"])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_predictions_are_those_of_the_exported_network(
    adapted: str, batch_size: int, lab: Path, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    table = tmp_path / "p.csv"
    code, said, _ = run(
        "predict", "--model", "demo", "--data", lab / "new", "--adapted", lab / adapted,
        "--predictions", table, "--batch-size", batch_size, "--classes", tmp_path / "names.txt",
    )  # fmt: skip
    assert code == 1  # one image was left out
    assert "broken.png cannot be read" in said
    assert "statistics of the predictions: target, those that are exported" in said
    expected = by_plain_torch(lab / "stock.safetensors", pixels_of(lab / "new"))
    sure, top = expected.softmax(1).max(1)
    found = rows_of(table)
    assert list(found[0]) == ["file", "index", "class", "confidence", "statistics"]
    assert [row["file"] for row in found] == [f"{number:04d}.png" for number in NEW]
    assert [row["class"] for row in found] == [CLASSES[i] for i in top]
    assert [float(row["confidence"]) for row in found] == pytest.approx(sure.tolist(), abs=1e-5)
    assert {row["statistics"] for row in found} == {"target"}


@pytest.mark.parametrize("adapted", ["a.safetensors", "stock.safetensors"])
def test_logits_are_those_of_the_exported_network_whatever_comes_beside(adapted: str, lab: Path) -> None:
    network = load_adapted(lab / adapted, "demo")
    new = open_images(network.network, lab / "new")[0]
    adapter = network.adapter or Adapter(network.network, "source", normalize=(MEAN, STD))
    expected = by_plain_torch(lab / "stock.safetensors", pixels_of(lab / "new"))
    together = adapter.predict(new, statistics="target")
    assert torch.allclose(together, expected, rtol=0, atol=1e-5)
    alone = torch.cat([adapter.predict(new.batch([i]), statistics="target") for i in range(len(new))])
    assert torch.allclose(alone, expected, rtol=0, atol=1e-5)
    by_batch = adapter.predict(new)  # which is what this guards against
    assert torch.allclose(by_batch, expected, atol=1e-5) == (network.adapter is None)


def test_an_image_is_predicted_the_same_in_any_company(lab: Path, tmp_path: Path) -> None:
    """A part of the images, in a folder of their own."""
    part = tmp_path / "part"
    part.mkdir()
    for number in list(NEW)[::3]:
        (part / f"{number:04d}.png").write_bytes((lab / f"new/{number:04d}.png").read_bytes())
    tables = []
    for folder in (lab / "new", part):
        tables.append(tmp_path / f"{folder.name}.csv")
        files = ("--adapted", lab / "a.safetensors", "--predictions", tables[-1])
        run("predict", "--model", "demo", "--data", folder, *files)
    whole = {row["file"]: row for row in rows_of(tables[0])}
    found = rows_of(tables[1])
    assert len(found) == len(list(NEW)[::3])
    for row in found:
        assert row["class"] == whole[row["file"]]["class"]
        assert float(row["confidence"]) == pytest.approx(float(whole[row["file"]]["confidence"]), abs=2e-6)


def test_batch_statistics_are_those_of_adapt(lab: Path, tmp_path: Path) -> None:
    """The images that were adapted to, with the statistics that `adapt` has: the table that `adapt` wrote."""
    files = ("--adapted", lab / "a.safetensors", "--predictions", tmp_path / "p.csv")
    code, said, _ = run(
        "predict", "--model", "demo", "--data", lab / "seen", *files, "--statistics", "batch", "--json"
    )
    assert code == 0
    columns = ("file", "class", "confidence", "statistics")
    tables = [[[row[name] for name in columns] for row in rows_of(p)] for p in (lab / "seen.csv", files[-1])]  # type: ignore[arg-type]
    assert tables[0] == tables[1]
    assert {row[-1] for row in tables[1]} == {"batch"}
    outcome = json.loads(said)
    assert (outcome["statistics"], outcome["images"], outcome["adapted_by"]) == ("batch", len(SEEN), "slr")
    assert outcome["written"] == {"predictions": str(tmp_path / "p.csv")}
    assert sum(outcome["histogram"].values()) == len(SEEN)


def test_exported_weights_with_batch_statistics(lab: Path) -> None:
    network = load_adapted(lab / "stock.safetensors", "demo")
    seen = open_images(network.network, lab / "seen")[0]
    outcome = predict_images(network, seen, statistics="batch")
    assert (outcome.statistics, outcome.adapted_by) == ("batch", None)
    by_delta = predict_images(load_adapted(lab / "a.safetensors", "demo"), seen, statistics="batch")
    assert outcome.histogram == by_delta.histogram
    assert outcome.confidence == pytest.approx(by_delta.confidence, abs=1e-6)


def test_batch_statistics_of_few_images_are_theirs_too(lab: Path) -> None:
    """Of exported weights and fewer images than make `auto` take the batch's: by torch in training mode."""
    network = load_adapted(lab / "stock.safetensors", "demo")
    new = open_images(network.network, lab / "new")[0].subset(list(range(12)))
    outcome = predict_images(network, new, statistics="batch")
    stock = bundled_model()
    stock.load_state_dict(load_file(lab / "stock.safetensors"))
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (MEAN, STD))
    with torch.no_grad():
        logits = stock.train()((new.batch(list(range(12))) - mean) / std)
    assert outcome.statistics == "batch"
    assert outcome.confidence == pytest.approx(logits.softmax(1).amax(1).mean().item(), abs=1e-5)


def test_a_device_that_is_not_there_is_an_option_error(lab: Path, tmp_path: Path) -> None:
    for adapted in ("a.safetensors", "stock.safetensors"):
        with pytest.raises(OptionError, match="device 'foo' cannot be used"):
            load_adapted(lab / adapted, "demo", device="foo")
    command = ("predict", "--model", "demo", "--data", lab / "new", "--adapted", lab / "stock.safetensors")
    code, _, said = run(*command, "--device", "foo", "--predictions", tmp_path / "p.csv")
    assert (code, "device 'foo' cannot be used" in said) == (2, True)


def test_files_that_were_left_out_are_named_with_a_reason_they_share() -> None:
    outcome = PredictOutcome(None, 3, "target", 0.5, {"cat": 3})
    said = format_outcome(
        outcome, {"b.png": "an empty file", "a.png": "an empty file", "c.png": "c.png is cut"}
    )
    assert said.splitlines()[-2:] == [
        "left out: 2 files, 'a.png', 'b.png': an empty file",
        "left out: c.png is cut",
    ]


def test_an_input_transformation_is_part_of_the_delta_only(lab: Path, tmp_path: Path) -> None:
    command = ("predict", "--model", "demo", "--data", lab / "new", "--predictions", tmp_path / "p.csv")
    code, _, said = run(*command, "--adapted", lab / "whole.safetensors")
    assert code == 2
    assert "which no stock network has: give the delta that `acclimate adapt` wrote to --out" in said
    assert not (tmp_path / "p.csv").exists()
    assert run(*command, "--adapted", lab / "it.safetensors")[0] == 1
    adapter = Adapter.load(lab / "it.safetensors", bundled_model())
    with torch.no_grad():
        expected = adapter.export()(pixels_of(lab / "new"))
    assert [row["class"] for row in rows_of(tmp_path / "p.csv")] == [
        str(i) for i in expected.argmax(1).tolist()
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.write_text("{}"), "is neither a delta nor weights"),
        (lambda path: path.write_bytes(b""), "is neither a delta nor weights"),
        (
            lambda path: save_file({"a": torch.ones(2)}, path),
            "has the weights of another network than SmallRes",
        ),
        (
            lambda path: save_file(resnet().state_dict(), path),
            "has the weights of another network than SmallR",
        ),
        (lambda path: Adapter(resnet()).save(path), "this delta belongs to another model"),
        (lambda path: _delta_of_other_weights(path), "the same architecture with other weights"),
        (lambda path: torch.save({"a": 1}, path), "is damaged, or not a safetensors file"),
    ],
)
def test_files_that_do_not_fit_get_one_sentence(make: Any, message: str, lab: Path, tmp_path: Path) -> None:
    path, table = tmp_path / "x.safetensors", tmp_path / "p.csv"
    make(path)
    code, _, said = run(
        "predict", "--model", "demo", "--data", lab / "new", "--adapted", path, "--predictions", table
    )
    assert code == 2
    assert message in said
    assert said.startswith("error: ")
    assert not table.exists()


def _delta_of_other_weights(path: Path) -> None:
    model = bundled_model()
    with torch.no_grad():
        model.conv1.weight.mul_(2)
    Adapter(model).save(path)


def test_a_delta_that_is_cut_off_is_told_of_as_a_delta(lab: Path, tmp_path: Path) -> None:
    whole = (lab / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[:-100])
    with pytest.raises(DeltaError, match="is not a whole safetensors file"):
        load_adapted(tmp_path / "a.safetensors", "demo")
    (tmp_path / "a.safetensors").write_bytes(whole[:100])  # of which nobody can say what it was
    with pytest.raises(ModelError, match="is damaged, or not a safetensors file"):
        load_adapted(tmp_path / "a.safetensors", "demo")
    with pytest.raises(ModelError, match="unknown model"):
        load_adapted(lab / "stock.safetensors", "demmo")


def test_what_is_mistyped_is_told_before_any_work(lab: Path, tmp_path: Path) -> None:
    command = ("predict", "--model", "demo", "--data", lab / "new", "--adapted", lab / "a.safetensors")
    table = tmp_path / "p.csv"
    for more, message in (
        (("--predictions", tmp_path / "p.xlsx"), "--predictions must end in .csv"),
        (("--predictions", table, "--statistics", "traget"), "did you mean 'target'"),
        (("--predictions", tmp_path / "no/p.csv"), "there is no folder"),
        (("--predictions", table, "--normalize", "imagenet"), "normalis"),
    ):
        code, _, said = run(*command, *more)
        assert (code, message in said) == (2, True), said
    table.write_text("kept")
    assert "p.csv is there: --force replaces it" in run(*command, "--predictions", table)[2]
    assert table.read_text() == "kept"
    assert run(*command, "--predictions", table, "--force")[0] == 1


@pytest.mark.parametrize(
    ("option", "name", "suffix"),
    [
        ("--export", "w.pt", ".safetensors"),
        ("--out", "a.pt", ".safetensors"),
        ("--predictions", "p.json", ".csv"),
    ],
)
def test_adapt_refuses_names_of_other_formats_before_it_loads_anything(
    option: str, name: str, suffix: str, tmp_path: Path
) -> None:
    outputs = {"--out": tmp_path / "a.safetensors", option: tmp_path / name}
    words = [word for pair in outputs.items() for word in pair]
    code, _, said = run("adapt", "--model", "no_such:network", "--data", tmp_path, *words)
    assert code == 2
    assert suffix in said
    assert name in said
    assert list(tmp_path.iterdir()) == []


def test_a_delta_of_images_that_came_normalised(lab: Path, tmp_path: Path) -> None:
    """Adapted in Python to float tensors, as they are; then told what pixels are normalised with."""
    model = bundled_model()
    model.pretrained_cfg = {}
    pixels = pixels_of(lab / "seen")
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (MEAN, STD))
    outside, inside = Adapter(model), Adapter(model, normalize=(MEAN, STD))
    outside.fit((pixels - mean) / std, epochs=1)
    inside.fit(pixels, epochs=1)
    outside.save(tmp_path / "outside.safetensors")
    inside.save(tmp_path / "inside.safetensors")
    torch.save(model.state_dict(), tmp_path / "source.pth")
    found = []
    for name, normalize in (("outside", (MEAN, STD)), ("inside", None), ("inside", (MEAN, STD))):
        adapted = load_adapted(tmp_path / f"{name}.safetensors", "demo", tmp_path / "source.pth")
        images = open_images(adapted.network, lab / "new")[0]
        found.append(predict_images(adapted, images, normalize=normalize))
    assert found[0] == found[1] == found[2]
    with pytest.raises(OptionError, match="was adapted with the normalisation"):
        predict_images(adapted, images, normalize="half")


@pytest.mark.parametrize("method", ["slr", "slr+it", "bn", "source"])
@pytest.mark.parametrize("policy", ["batch", "running", "blend", "source"])
@pytest.mark.parametrize("fast", [True, False])
def test_target_statistics_are_those_of_export(method: str, policy: str, fast: bool) -> None:
    adapter, other = (
        Adapter(resnet(), method, statistics=policy, normalize=NORMALIZE, fast=fast) for _ in range(2)
    )
    for batch in BATCHES:
        adapter(batch), other(batch)
    before = adapted_state(adapter)
    batch = images(9, seed=7)
    found = adapter.predict(batch, statistics="target")
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in NORMALIZE)
    with torch.no_grad():
        expected = adapter.export()(batch if method == "slr+it" else (batch - mean) / std)
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    alone = torch.cat([adapter.predict(image[None], statistics="target") for image in batch])
    assert torch.allclose(found, alone, rtol=0, atol=1e-6)
    is_of_batch = policy in ("batch", "blend") and method != "source"
    assert adapter.predicts_by == (
        "batch" if is_of_batch else "target" if policy == "running" and method != "source" else "source"
    )
    assert torch.allclose(found, adapter.predict(batch), rtol=0, atol=1e-5) != is_of_batch
    assert same(adapted_state(adapter), before)  # no trace
    assert torch.equal(adapter(BATCHES[0]), other(BATCHES[0]))


def test_statistics_where_there_are_none_and_names_that_are_unknown() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(1568, 5))
    adapter = Adapter(model, "tent", freeze="none")
    adapter(BATCHES[0])
    assert adapter.predicts_by == "target"
    assert torch.equal(adapter.predict(BATCHES[1]), adapter.predict(BATCHES[1], statistics="target"))
    with pytest.raises(OptionError, match="unknown statistics of predictions 'running'"):
        adapter.predict(BATCHES[0], statistics="running")
    with pytest.raises(InputError, match="a batch of one image"):
        Adapter(resnet(), statistics="batch").predict(BATCHES[0][:1])


def test_a_result_says_by_which_statistics_it_predicts() -> None:
    data = torch.cat(BATCHES)
    result = adapt(resnet(), data, epochs=1, gate="off", normalize=NORMALIZE)
    assert result.statistics == result.outcome().statistics == "batch"
    assert "predictions by statistics: batch" in str(result)
    result = adapt(resnet(), data, epochs=1, gate="off", normalize=NORMALIZE, statistics="running")
    assert result.statistics == "target"


def test_a_result_stays_as_it_was_whatever_its_adapter_does() -> None:
    data = torch.cat(BATCHES)[:16]
    result = adapt(resnet(), data, epochs=2, batch_size=8, gate="off", normalize=NORMALIZE)
    assert (result.statistics, result.steps, len(result.history.loss)) == ("target", 4, 4)  # of a stream
    said, predictions = str(result), result.predictions
    for change in (result.adapter.reset, lambda: result.adapter(torch.cat([data] * 4))):
        change()
        assert (str(result), result.statistics, len(result.history.loss)) == (said, "target", 4)
        assert torch.equal(result.predictions, predictions)
    assert result.adapter.predicts_by == "batch"
