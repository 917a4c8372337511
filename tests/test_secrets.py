"""Passwords and signatures in addresses reach no message, record, log or report."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from acclimate.bench.spec import Data
from acclimate.cli import app
from acclimate.demo.bundle import bundled_images
from acclimate.errors import FetchError, OptionError, check_unmasked, masked, shown
from servers import Server, serving

SECRETS = ("hunter2", "0badc0de", base64.b64encode(b"user:hunter2").decode())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("sftp://me:sec@ret@host/grid", "sftp://***@host/grid"),
        ("https://host/a.tar?sig=abc", "https://host/a.tar?***"),
        ("s3://key:with/slash@bucket/a", "s3://***@bucket/a"),
        ("https:/user:pass@host/a?sig=b", "https:/***@host/a?***"),  # as pathlib has it
        ("zip://a::https://user:pass@host/a.zip", "zip://***@host/a.zip"),
        ("https://token@host:80/run@5", "https://***@host:80/run@5"),
        ("http://host:8080/run@5/a", "http://host:8080/run@5/a"),
        ("s3://bucket/run@5/a", "s3://bucket/run@5/a"),
        ("C:/mail@home/a", "C:/mail@home/a"),
        ("/tmp/a?b@c", "/tmp/a?b@c"),
    ],
)
def test_what_is_hidden_of_an_address(address: str, expected: str) -> None:
    assert shown(address) == expected == shown(expected)


def test_what_is_hidden_of_a_text() -> None:
    address = "http://user:hunter2@host/a?sig=0badc0de&v=1"
    text = f"no port in 'hunter2@host' of ('{address}', 0badc0de) or {address}"
    assert masked(text, address) == f"no port in '***@host' of ('{shown(address)}', ***) or {shown(address)}"
    assert masked("no address: 12:30/14:00, a?b, C:/a@b") == "no address: 12:30/14:00, a?b, C:/a@b"


def test_a_masked_address_is_not_tried() -> None:
    check_unmasked("s3://bucket/a")
    check_unmasked("/data/***")
    with pytest.raises(
        OptionError, match=r"https://\*\*\*@host/a was written .* give the whole address again"
    ):
        check_unmasked("https://***@host/a")


@pytest.mark.parametrize("path", ["https://user:hunter2@host/a.tar", "https://host/a.tar?sig=0badc0de"])
def test_a_spec_with_secrets_is_refused_without_repeating_them(path: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        json.dumps({"networks": [{"name": "demo"}], "data": [{"name": "a", "path": path}], "methods": ["bn"]})
    )
    run = CliRunner().invoke(app, ["bench", str(spec), "--out", str(tmp_path / "out")])
    assert run.exit_code == 2
    assert "holds a password or a signature" in run.output
    assert not leaks(tmp_path / "out", run.output)
    assert Data(name="a", path=shown(path)).path == shown(path), "what a record has is a cell"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Images at an address, and a home of one's own for copies of them."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "served").mkdir()
    pixels = (bundled_images()[0][:32] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    with tarfile.open(tmp_path / "served" / "a.tar", "w") as file:
        for number, image in enumerate(pixels):
            content = io.BytesIO()
            Image.fromarray(image).save(content, "PNG")
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(content.getvalue())
            file.addfile(member, io.BytesIO(content.getvalue()))
    with serving(tmp_path / "served") as found:
        yield found


def secret_address(server: Server, name: str) -> str:
    return f"{server.url.replace('://', '://user:hunter2@')}/{name}?sig=0badc0de"


def leaks(folder: Path, said: str) -> list[str]:
    """Where a secret can be found: in what was said, in names of files, in files."""
    found = ["what was said"] if any(secret in said for secret in SECRETS) else []
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        if any(secret in str(path) or secret.encode() in content for secret in SECRETS):
            found.append(str(path))
    return found


ADAPT = ("adapt", "--model", "demo", "--layout", "shards", "--epochs", "1", "--batch-size", "16")


def test_adapting_to_a_secret_address(server: Server, tmp_path: Path) -> None:
    where = secret_address(server, "a.tar")
    run = CliRunner().invoke(app, [*ADAPT, "--data", where, "--log", "tensorboard", "--json"])
    assert run.exit_code == 0, run.output
    assert server.logins == [f"Basic {SECRETS[2]}"]
    page = CliRunner().invoke(app, ["report", "adapted.json", "--out", "report.html"])
    assert page.exit_code == 0, page.output
    assert leaks(tmp_path, run.output + page.output) == []
    record = json.loads(Path("adapted.json").read_text())
    data = dict(record["cell"]["data"])
    assert (data["name"], data["path"]) == ("a.tar", shown(where))

    record["cell"]["data"]["path"] = where  # as somebody's own code may write it
    (tmp_path / "own.json").write_text(json.dumps(record))
    assert CliRunner().invoke(app, ["report", "own.json", "--out", "own.html"]).exit_code == 0
    assert leaks(tmp_path, "") == [str(tmp_path / "own.json")]

    again = CliRunner().invoke(app, [*ADAPT, "--data", data["path"], "--force"])
    assert again.exit_code == 2
    assert "give the whole address again" in again.output


@pytest.mark.parametrize("name", ["missing.tar", "broken.tar"])
@pytest.mark.parametrize("layout", ["shards", "auto"])
def test_errors_of_a_secret_address(name: str, layout: str, server: Server, tmp_path: Path) -> None:
    (server.folder / "broken.tar").write_bytes(b"nothing" * 200)
    run = CliRunner().invoke(app, [*ADAPT, "--layout", layout, "--data", secret_address(server, name)])
    assert run.exit_code == 2
    assert run.output.count("\n") == 1
    assert leaks(tmp_path, run.output) == []


def test_a_grid_with_its_data_at_a_secret_address(server: Server, tmp_path: Path) -> None:
    spec = {"networks": [{"name": "demo"}], "data": [{"name": "a", "path": "b.npz"}], "methods": ["bn"]}
    Path("spec.yaml").write_text(json.dumps(spec))
    root = server.url.replace("://", "://user:hunter2@")
    run = CliRunner().invoke(app, ["bench", "spec.yaml", "--data", root, "--out", "out", "--workers", "1"])
    assert run.exit_code == 1, "this server has no lists of files"
    assert len(list(Path("out").glob("*.json"))) == 3
    assert leaks(tmp_path, run.output) == []


def test_an_error_in_python_hides_them_too(server: Server) -> None:
    from acclimate.data import open_data

    with pytest.raises(FetchError) as caught:
        open_data(secret_address(server, "missing.tar"), "shards")
    assert not any(secret in str(caught.value) for secret in SECRETS)
