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
from acclimate.report.losses import losses_against_confidence
from corrupted import pixels, run


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
