"""`acclimate adapt`: a folder in; a delta, weights, predictions and a summary out."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from acclimate import Adapter, corrupt
from acclimate.adapting import adapt_images
from acclimate.bench import Cell
from acclimate.cli import app
from acclimate.demo.bundle import CLASSES, MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateWarning, InputError
from acclimate.inputs import open_images
from acclimate.mean_std import NORMALIZATIONS
from acclimate.outcome import outcome_of
from acclimate.records import read_records

IMAGES = 192


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy images without labels, one of them cut off."""
    folder = tmp_path_factory.mktemp("photos")
    pixels = (bundled_images()[0][:IMAGES] * 255).round().to(torch.uint8)
    noisy = corrupt(pixels, "impulse_noise", 5).permute(0, 2, 3, 1).numpy()
    for number, image in enumerate(noisy):
        Image.fromarray(image).save(folder / f"{number:04d}.png")
    whole = (folder / "0000.png").read_bytes()
    (folder / "broken.png").write_bytes(whole[: len(whole) // 2])
    return folder


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


OPTIONS = ("--model", "demo", "--epochs", 2)


def test_a_folder_becomes_predictions_a_delta_and_weights(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    code, said = run(
        "adapt", *OPTIONS, "--data", folder, "--classes", tmp_path / "names.txt",
        "--out", tmp_path / "a.safetensors", "--export", tmp_path / "stock.safetensors",
        "--predictions", tmp_path / "p.csv",
    )  # fmt: skip
    assert code == 1  # one image was left out
    assert f"{IMAGES} images: the prediction of" in said
    assert "broken.png cannot be read" in said
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert list(rows[0]) == ["file", "index", "class", "confidence", "source_class", "source_confidence"]
    assert [row["file"] for row in rows] == [f"{number:04d}.png" for number in range(IMAGES)]
    labels = [CLASSES[label] for label in bundled_images()[1][:IMAGES]]
    right = {
        column: np.mean([row[column] == label for row, label in zip(rows, labels, strict=True)])
        for column in ("class", "source_class")
    }
    assert right["class"] > right["source_class"] + 0.15
    # the delta is that of the same adaptation in Python, and the weights fit the stock network
    adapter = Adapter.load(tmp_path / "a.safetensors", bundled_model())
    assert adapter.step == 2 * (IMAGES // 64)
    stock = bundled_model()
    stock.load_state_dict(load_file(tmp_path / "stock.safetensors"))
    # the record says the same of both sides, less what needs labels
    (record,) = read_records(tmp_path / "a.json")
    for side, column in ((record["result"]["before"], "source"), (record["result"]["after_epoch"]["2"], "")):
        names = [row["source_class" if column else "class"] for row in rows]
        assert side["histogram"] == [names.count(name) for name in CLASSES]
        sure = [float(row["source_confidence" if column else "confidence"]) for row in rows]
        assert side["confidence"] == pytest.approx(np.mean(sure), abs=1e-5)
        assert "accuracy" not in side
    assert record["spec"]["class_names"] == list(CLASSES)
    assert record["result"]["changed"] == sum(row["class"] != row["source_class"] for row in rows)
    assert record["result"]["steps"]["loss"] == pytest.approx(adapter.history.loss, rel=1e-6)
    assert Cell(**record["cell"]).network.name == "demo"


def test_json_and_arrays(tmp_path: Path) -> None:
    pixels = (bundled_images()[0][:64] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    np.save(tmp_path / "x.npy", pixels)
    code, said = run(
        "adapt", *OPTIONS, "--data", tmp_path / "x.npy", "--out", tmp_path / "a.safetensors", "--json",
        "--input-transform", "--method", "hlr",
    )  # fmt: skip
    assert code == 0
    outcome = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert outcome["images"] == 64
    assert sum(outcome["histogram"][1].values()) == 64
    assert Adapter.load(tmp_path / "a.safetensors", bundled_model()).method.name == "hlr+it"
    assert outcome["written"]["record"] == str(tmp_path / "a.json")
    gallery = read_records(tmp_path / "a.json")[0]["result"]["gallery"]
    assert [item["name"] for item in gallery] == ["00000", "00032", "00063"]
    assert all(item["transformed"].startswith("data:image/png;base64,") for item in gallery)


def test_precision_and_memory_reach_the_adapter_and_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acclimate.fast.precision._best", lambda device: None)  # a device without bfloat16
    np.save(tmp_path / "x.npy", (bundled_images()[0][:64] * 255).byte().permute(0, 2, 3, 1).numpy())
    command = ("adapt", *OPTIONS[:-1], 1, "--data", tmp_path / "x.npy", "--out", tmp_path / "a.safetensors")
    assert run(*command, "--precision", "auto", "--memory", "off")[0] == 0
    loaded = Adapter.load(tmp_path / "a.safetensors", bundled_model())
    assert (loaded.options.precision, loaded.options.memory) == ("auto", "off")
    (record,) = read_records(tmp_path / "a.json")
    assert record["cell"]["overrides"] == {"precision": "auto", "memory": "off"}
    assert (record["spec"]["precision"], record["spec"]["options"]["precision"]) == ("fp32", "auto")
    assert run(*command, "--force")[0] == 0  # the defaults are told by what was used, not by what was asked
    (record,) = read_records(tmp_path / "a.json")
    assert (record["cell"]["overrides"], record["spec"]["options"]["precision"]) == ({}, "fp32")


def test_interrupted_and_resumed_it_ends_where_it_would_have(folder: Path, tmp_path: Path) -> None:
    def command(name: str, *more: str) -> list[str]:
        options = [str(option) for option in OPTIONS[:-1]]
        out, predictions = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.csv"
        return [sys.executable, "-m", "acclimate", "adapt", *options, "6", "--data", str(folder),
                "--out", str(out), "--predictions", str(predictions), *more]  # fmt: skip

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command("a"), env=environment, stderr=subprocess.PIPE)
    while not (tmp_path / "a.safetensors").exists():  # after the first epoch
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "the same command with --resume goes on" in said.replace("\n", " ")
    assert not (tmp_path / "a.csv").exists()
    subprocess.run(command("a", "--resume"), env=environment, capture_output=True, check=False)
    subprocess.run(command("b"), env=environment, capture_output=True, check=False)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "demo", "--method", "slt"], "did you mean 'slr'"),
        (["--model", "demo", "--normalize", "0.5"], "normalize must be MEAN/STD"),
        (["--model", "demo", "--setting", "fewer"], "did you mean 'few'"),
        (["--model", "demo", "--device", "nowhere"], "device 'nowhere' cannot be used"),
        (
            ["--model", "demo", "--precision", "double"],
            "unknown precision 'double': known are 'auto', 'bf16'",
        ),
        (["--model", "demo", "--memory", "lower"], "unknown memory 'lower': did you mean 'low'"),
        (["--model", "demo", "--predictions", "."], "is a folder: expected the name of a file"),
        (["--model", "demo", "--layout", "folders"], "did you mean 'class-folders'"),
        (
            ["--model", "demo", "--normalize", "0.5,0.5,0.5/0.5,0.5,0.5"],
            "a wrong normalisation silently costs",
        ),
        (["--model", "torch.nn:Identity"], "does not say what its input was normalised with"),
        (["--model", "demo", "--classes", "none.txt"], "none.txt cannot be read"),
        (["--model", "demo", "--weights", "none.pt"], "there is no file of weights at none.pt"),
    ],
)
def test_bad_options(folder: Path, tmp_path: Path, options: list[str], message: str) -> None:
    code, said = run("adapt", "--data", folder, "--size", 32, "--out", tmp_path / "a", *options)
    assert code == 2
    assert message in said.replace("\n", " ")


def test_bad_data_and_outputs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("adapt", "--model", "demo", "--data", tmp_path / "empty")[0] == 2
    with pytest.raises(InputError, match="expected a name for each of 10 outputs, got 2"):
        adapt_images(
            bundled_model(),
            open_images(bundled_model(), folder)[0],
            normalize=(MEAN, STD),
            classes=["a", "b"],
        )
    Image.new("RGB", (32, 32)).save(tmp_path / "empty/one.png")
    with pytest.raises(InputError, match="at least 2 images, got 1"):
        adapt_images(bundled_model(), open_images(bundled_model(), tmp_path / "empty")[0])
    code, said = run(
        "adapt", *OPTIONS, "--data", folder, "--out", tmp_path / "a", "--predictions", tmp_path / "no/p.csv"
    )
    assert code == 2
    assert "p.csv cannot be written: there is no folder" in said.replace("\n", " ")
    assert not (tmp_path / "a").exists()  # told before any work


def test_what_is_there_is_not_replaced_unasked(folder: Path, tmp_path: Path) -> None:
    out, weights = tmp_path / "a.safetensors", tmp_path / "w.safetensors"
    save_file(bundled_model().state_dict(), weights)
    command = ("adapt", "--model", "demo", "--epochs", 1, "--data", folder, "--out", out)

    def refused(*more: object) -> str:
        kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
        code, said = run(*command, *more)
        assert code == 2
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept
        return " ".join(said.split())

    assert "must be different files" in refused("--predictions", out)
    assert "--resume goes on with what is there, --force begins anew" in refused("--resume", "--force")
    assert "would replace what is read" in refused("--weights", weights, "--export", weights)
    assert "w.safetensors is there: --force replaces it" in refused("--export", weights)
    assert run(*command)[0] == 1  # with the broken image left out
    assert "--resume goes on from it, --force replaces it" in refused()
    assert "other method, setting or hyperparameters (slr)" in refused("--resume", "--method", "tent")
    assert "other normalisation, classes or seed" in refused("--resume", "--seed", 9)
    assert "other precision, memory or ranks" in refused("--resume", "--memory", "off")
    other = tmp_path.parent / "other"
    other.mkdir()
    for number in range(3):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(other / f"{number}.png")
    assert "with other images" in refused("--resume", "--data", other)
    assert "says 32 by 32 pixels, but the images have 16 by 16" in refused("--resume", "--size", 16)
    assert run(*command, "--force", "--method", "tent")[0] == 1
    assert Adapter.load(out, bundled_model()).method.name == "tent"


def test_a_finished_run_that_is_resumed_only_predicts(folder: Path, tmp_path: Path) -> None:
    command = (
        "adapt",
        "--model",
        "demo",
        "--epochs",
        1,
        "--data",
        folder,
        "--out",
        tmp_path / "a.safetensors",
    )
    run(*command, "--predictions", tmp_path / "p.csv")
    kept = (tmp_path / "a.safetensors").read_bytes()
    code, said = run(*command, "--predictions", tmp_path / "q.csv", "--resume")
    assert code == 1
    assert "this fit was complete" in said
    assert (tmp_path / "a.safetensors").read_bytes() == kept
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "q.csv").read_text()


def test_names_of_outputs(folder: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    command = ("adapt", "--model", "demo", "--epochs", 1, "--data", folder, "--out", tmp_path / "a")
    names.write_text("\n".join(["cat"] * 10))
    code, said = run(*command, "--classes", names)
    assert (code, "names 'cat' more than once" in said) == (2, True)
    names.write_text("\ufeff" + "\n".join(CLASSES))
    assert run(*command, "--classes", names, "--predictions", tmp_path / "p.csv")[0] == 1
    assert "\ufeff" not in (tmp_path / "p.csv").read_text()


def test_an_export_that_is_not_stock_says_so(folder: Path, tmp_path: Path) -> None:
    code, said = run(
        "adapt", *OPTIONS[:-1], 1, "--data", folder, "--out", tmp_path / "a",
        "--export", tmp_path / "e.safetensors", "--input-transform",
    )  # fmt: skip
    assert code == 1
    assert "e.safetensors does not load into the stock class" in said.replace("\n", " ")


def test_only_json_goes_to_the_standard_output(tmp_path: Path) -> None:
    pixels = (bundled_images()[0][:64, :1] * 255).round().to(torch.uint8)[:, 0].numpy()
    np.save(tmp_path / "labels.npy", np.zeros(3, dtype=np.int64))  # of something else: nobody asks for labels
    np.save(tmp_path / "x.npy", np.repeat(pixels[..., None], 3, axis=3))
    command = [sys.executable, "-m", "acclimate", "adapt", "--model", "demo", "--epochs", "1", "--json"]
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "x.npy"), "--out", str(tmp_path / "a")],
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["images"], found["method"], found["failed"]) == (64, "slr", {})


def test_images_that_the_network_cannot_take(tmp_path: Path) -> None:
    np.save(tmp_path / "grey.npy", np.zeros((8, 32, 32, 1), dtype=np.uint8))
    for command in ("adapt", "doctor"):
        code, said = run(command, "--model", "demo", "--data", tmp_path / "grey.npy")
        assert code == 2
        assert "cannot take images of the shape (1, 32, 32)" in said.replace("\n", " ")


def test_weights_of_ones_own_may_be_normalised_otherwise(folder: Path, tmp_path: Path) -> None:
    """The metadata are those of the published weights: they do not forbid, and the probe looks."""
    state = bundled_model().state_dict()
    # these expect bytes, and remember images of which no mean was taken off
    state["bn1.running_mean"] += state["conv1.weight"].sum((1, 2, 3)) * MEAN[0] / STD[0]
    state["conv1.weight"] /= 255 * STD[0]
    save_file(state, tmp_path / "w.safetensors")
    command = (
        "adapt",
        "--model",
        "demo",
        "--weights",
        tmp_path / "w.safetensors",
        "--data",
        folder,
        "--method",
        "bn",
    )
    said = run(*command, "--out", tmp_path / "a")[1].replace("\n", " ")
    assert "the normalisation in use is doubtful; how sure: more than 99%" in said
    assert "and 'bytes' fits better; as they may be corrupted, look at clean ones" in said
    code, said = run(*command, "--out", tmp_path / "b", "--normalize", "bytes")
    assert code == 1
    assert "doubtful" not in said


def test_a_wrong_normalisation_is_told_where_the_weights_are_silent(folder: Path) -> None:
    model = bundled_model()
    images = open_images(model, folder)[0]
    model.pretrained_cfg = {}
    right, wrong = (
        adapt_images(model, images, method="bn", epochs=1, normalize=normalize).cautions
        for normalize in ((MEAN, STD), NORMALIZATIONS["bytes"])
    )
    assert right == []
    assert "the normalisation in use is doubtful" in wrong[0]


def test_a_collapse_is_told() -> None:
    before = torch.eye(10).repeat(10, 1)
    after = torch.zeros(100, 10)
    after[:, 3] = 5
    outcome = outcome_of(before, after, [str(i) for i in range(10)])
    assert outcome.changed == 90
    assert "may be a collapse" in outcome.cautions[0]
    assert outcome_of(before, before, [str(i) for i in range(10)]).cautions == []
    # nor does it hide where the source was there before
    assert "as they did before" in outcome_of(after, after, [str(i) for i in range(10)]).cautions[0]


def test_enlarged_images_are_told(folder: Path, tmp_path: Path) -> None:
    model = bundled_model()
    model.pretrained_cfg = {}
    with pytest.warns(AcclimateWarning, match="images of 32 by 32 pixels are enlarged to 224"):
        images = open_images(model, folder)[0]
    assert images[0].shape == (3, 224, 224)
    assert open_images(model, folder, size=0)[0][0].shape == (3, 32, 32)
    assert repr(images) == f"ImageSet(unlabelled, {IMAGES} images, no labels)"


def test_images_of_another_size_are_refused_unless_the_weights_are_others(
    folder: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "small.npy", np.zeros((4, 24, 24, 3), np.uint8))
    with pytest.raises(InputError, match=r"says 32 by 32 pixels, but the images have 24 by 24"):
        open_images(bundled_model(), tmp_path / "small.npy")
    model = bundled_model()
    model.pretrained_cfg = {**model.pretrained_cfg, "assumed": True}
    with pytest.warns(AcclimateWarning, match="24 by 24"):
        open_images(model, tmp_path / "small.npy")


def test_a_network_that_says_no_size_is_told_of_when_images_are_enlarged(folder: Path) -> None:
    model = bundled_model()
    model.pretrained_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    with pytest.warns(AcclimateWarning, match="enlarged to 224"):
        open_images(model, folder)


def test_the_first_image_may_be_the_broken_one(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    for name in "bc":
        Image.new("RGB", (32, 32)).save(tmp_path / f"{name}.png")
    images, failed = open_images(nn.Identity(), tmp_path)
    assert (list(images.names), list(failed)) == (["b.png", "c.png"], ["a.png"])


def test_the_root_of_imagenet_is_its_validation_images(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            (tmp_path / split / wnid).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / split / wnid / f"{split}.png")
    images, _ = open_images(bundled_model(), tmp_path)
    assert list(images.names) == ["n01440764/val.png", "n01443537/val.png"]


def test_what_is_to_be_told_is_told_once(folder: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    save_file(bundled_model().state_dict(), weights)
    command = (
        "--model",
        "demo",
        "--weights",
        weights,
        "--normalize",
        "half",
        "--epochs",
        1,
        "--data",
        folder,
    )
    _, said = run("adapt", *command, "--out", tmp_path / "a.safetensors")
    assert said.count("the images are normalised with mean") == 1
