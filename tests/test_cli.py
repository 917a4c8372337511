"""The small commands; the large ones are tested with what they call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import acclimate
from acclimate import METHODS
from acclimate.bench import PRESETS
from acclimate.cli import app, main
from acclimate.corruptions import CORRUPTIONS, corrupt
from acclimate.data.pictures import read_image
from acclimate.errors import OptionError
from acclimate.methods import SETTINGS
from acclimate.records import write_record
from acclimate.report.losses import losses_against_confidence
from corrupted import files, pixels, run
from made_records import small


@pytest.mark.parametrize(
    ("what", "table"),
    [("methods", METHODS), ("corruptions", CORRUPTIONS), ("presets", PRESETS), ("settings", SETTINGS)],
)
def test_list(what: str, table: dict[str, object]) -> None:
    said = CliRunner().invoke(app, ["list", what]).output
    assert [line.split()[0] for line in said.splitlines()] == list(table)
    assert list(json.loads(CliRunner().invoke(app, ["list", what, "--json"]).output)) == list(table)


def test_list_of_models() -> None:
    models = json.loads(CliRunner().invoke(app, ["list", "models", "--json"]).output)
    assert next(iter(models)) == "demo"
    assert models["resnet50"] == "torchvision: 25,557,032 parameters, 80.9% on ImageNet"
    assert models["resnetv2_50"] == "timm"
    assert set(json.loads(CliRunner().invoke(app, ["list", "models", "densenet", "--json"]).output)) == {
        name for name in models if "densenet" in name
    }
    assert CliRunner().invoke(app, ["list", "models", "no such thing"]).exit_code == 2


def test_list_of_something_unknown() -> None:
    result = CliRunner().invoke(app, ["list", "recipes"])
    assert result.exit_code == 2
    assert "recipes" in result.output


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_losses_are_drawn(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"losses.{suffix}"
    assert CliRunner().invoke(app, ["figures", "losses", "--out", str(out)]).exit_code == 0
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert out.read_bytes().startswith(start)


def test_losses_that_cannot_be_drawn(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["figures", "losses", "--out", str(tmp_path / "a.xyz")])
    assert result.exit_code == 2
    assert "expected a name that ends in" in result.output


def test_gradients_of_the_figure_are_the_closed_forms() -> None:
    confidence, curves = losses_against_confidence()
    p = confidence
    q = 1 - p
    expected = {
        "entropy": -p * q * torch.log(p / q),
        "pseudo_label": -q,
        "hard_likelihood_ratio": -torch.ones_like(p),
        # L = -(p - q) log(p / q), by the derivative of p, which is p q
        "soft_likelihood_ratio": -2 * p * q * torch.log(p / q) - (p - q),
    }
    for name, (_, gradient) in curves.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-8)


def test_contact_sheet(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    code, _ = run("figures", "corruptions", folder / "cat/b.png", "--out", out, "--size", 48, "--tile", 40)
    assert code == 0
    sheet = pixels(out)
    assert sheet.shape[0] > 19 * 40
    assert sheet.shape[1] > 6 * 40
    last = sheet[-12 - 44 : -12 - 4, -12 - 44 : -12 - 4].astype(int)  # saturate, severity 5
    expected = Image.fromarray(corrupt(read_image(folder / "cat/b.png", 48), "saturate", 5))
    shown = np.asarray(expected.resize((40, 40), Image.Resampling.LANCZOS))
    np.testing.assert_array_equal(last, shown)


def test_contact_sheet_errors(folder: Path, tmp_path: Path) -> None:
    assert run("figures", "corruptions", tmp_path / "none.png")[0] == 2
    code, said = run(
        "figures", "corruptions", folder / "cat/b.png", "--out", tmp_path / "a.xyz", "--size", 48
    )
    assert code == 2
    assert "cannot be written" in said


def test_debug_shows_the_error_itself(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown corruption"):
        run("corrupt", folder, tmp_path / "c", "--corruption", "nothing", "--debug")


def test_version() -> None:
    assert run("--version")[1].strip() == acclimate.__version__


WRITING = {
    "adapt": ["--model", "demo", "--data", "x.npz"],
    "demo": [],
    "figures": ["corruptions", "photo.png"],
    "report": ["results"],
    "train-head": ["--model", "demo", "--data", "x.npz"],
}
"""Commands that write one file, and what they need for it. The others go on with a folder."""


def refused(*words: str) -> str:
    """What a command says that ends with bad input and leaves every file as it was."""
    before = files(Path())
    code, said = run(*words)
    assert code == 2, said
    assert files(Path()) == before
    return " ".join(said.split())


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a file of every output's name is, and what the commands read."""
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", images=np.zeros((4, 32, 32, 3), np.uint8), labels=np.arange(4))
    Image.new("RGB", (32, 32)).save("photo.png")
    Path("results").mkdir()
    write_record(Path("results/0.json"), small()[0])
    for name in (
        "adapted.safetensors",
        "acclimate-demo.png",
        "corruptions.png",
        "report.html",
        "head.safetensors",
    ):
        Path(name).write_text("mine")
    return tmp_path


@pytest.mark.parametrize("name", WRITING)
def test_what_is_there_is_not_replaced_unasked(name: str, there: Path) -> None:
    said = refused(name, *WRITING[name])
    assert "is there: " in said
    assert said.endswith("--force replaces it")
    read = next((word for word in WRITING[name] if Path(word).is_file()), None)
    if read is not None:
        said = refused(name, *WRITING[name], "--out", read, "--force")
        assert "would replace what is read" in said or "--out must end in .safetensors" in said


def test_what_is_forced_is_replaced(there: Path) -> None:
    assert run("report", *WRITING["report"], "--force")[0] == 0
    assert "<html" in Path("report.html").read_text()
    assert run("figures", "losses", "--out", "corruptions.png", "--force")[0] == 0
    assert Path("corruptions.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["adapt", "--model", "resnet5O", "--data", "x.npz"],
            "unknown model 'resnet5O': did you mean 'resnet",
        ),
        (["adapt", "--model", "demo", "--data", "y.npz"], "there is no file y.npz"),
        (["adapt", "--model", "demo", "--data", "photos"], "there is nothing at photos"),
        (["adapt", "--model", "demo", "--data", "y", "--layout", "unlabelled"], "there is no folder y"),
        (["demo", "--corruption", "snoww"], "did you mean 'snow'"),
        (["figures", "corruptions", "photos.png"], "there is nothing at photos.png"),
        (["report", "result"], "there is nothing at result"),
        (["train-head", "--model", "demoo", "--data", "x.npz"], "unknown model 'demoo'"),
        (["train-head", "--model", "demo", "--data", "photos"], "there is nothing at photos"),
    ],
)
def test_what_is_mistyped_is_told_before_what_is_there(words: list[str], message: str, there: Path) -> None:
    """Who is told of the file first forces, and then is told of the rest."""
    assert message in refused(*words)


def test_resuming_replaces_nothing_where_there_is_nothing_to_go_on_from(there: Path) -> None:
    Path("p.csv").write_text("mine")
    words = ["adapt", *WRITING["adapt"], "--out", "new.safetensors", "--predictions", "p.csv", "--resume"]
    assert "p.csv is there: --force replaces it" in refused(*words)


def test_an_export_that_is_not_safetensors_is_refused_before_the_work(there: Path) -> None:
    said = refused("adapt", *WRITING["adapt"], "--out", "new.safetensors", "--export", "net.pth")
    assert "expected a name.safetensors, got net.pth" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adapt", "--data", "x"], "Missing option '--model'"),
        (["adapt", "--model", "demo", "--data", "x", "--batch-size", "1"], "greater than or equal to 2"),
        (["demoo"], "No such command 'demoo'"),
        (["doctor", "--model", "demo", "--deep"], "No such option: --deep"),
    ],
)
def test_usage_errors_are_one_line(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["acclimate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("words", "code"), [([], 2), (["list", "methods"], 0), (["list", "nothing"], 2)])
def test_the_exit_code_of_the_command_is_that_of_the_program(
    words: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["acclimate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert "error:  " not in capsys.readouterr().err


def test_only_what_draws_takes_the_time_to_import_matplotlib() -> None:
    code = "import sys, acclimate.cli; print(sorted({'matplotlib', 'ray'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
