"""The small commands; the large ones are tested with what they call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from acclimate import METHODS
from acclimate.cli import app
from acclimate.corruptions import CORRUPTIONS
from acclimate.report.losses import losses_against_confidence


@pytest.mark.parametrize(("what", "table"), [("methods", METHODS), ("corruptions", CORRUPTIONS)])
def test_list(what: str, table: dict[str, object]) -> None:
    said = CliRunner().invoke(app, ["list", what]).output
    assert [line.split()[0] for line in said.splitlines()] == list(table)
    assert list(json.loads(CliRunner().invoke(app, ["list", what, "--json"]).output)) == list(table)


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
    assert result.exit_code == 1
    assert "cannot be written" in result.output


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
