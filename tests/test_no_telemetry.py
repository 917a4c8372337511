"""Nothing connects to anywhere unless it is asked to: commands run where every attempt is written down.

What is watched is every socket that Python opens, in the process itself and in those that it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from acclimate.bench import on_ray
from acclimate.data.hub import open_hub
from acclimate.data.request import Request
from acclimate.demo.bundle import bundled_images
from acclimate.errors import AcclimateError
from acclimate.models.hubs import from_hugging_face

_WATCH = """
import os, sys

def watch(event, given):
    asks = event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
    sends = event in ("socket.connect", "socket.sendto") and isinstance(given[1], tuple)  # not to a file
    if asks or sends:
        with open(os.environ["ATTEMPTS"], "a") as file:
            print(event, given[0] if asks else given[1], file=file)
        raise ConnectionError("no connection can be made here")

sys.addaudithook(watch)
"""
_RUN = """
import sys
from acclimate.cli import main
from acclimate.demo.measure import measure

list(measure(["contrast"], ["bn", "slr+it"], count=32, epochs=1))
for words in {commands!r}:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, str]:
    """An environment in which attempts to connect are written down, and fail."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(_WATCH)
    (tmp_path / "attempts").touch()
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path / "watch"), os.environ.get("PYTHONPATH")])),
        "ATTEMPTS": str(tmp_path / "attempts"),
        "HOME": str(tmp_path),
    }
    return {**os.environ, **own}


def run(script: str, folder: Path, environment: dict[str, str]) -> list[str]:
    """The attempts of a script, which must succeed."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Path(environment["ATTEMPTS"]).read_text().splitlines()


def test_the_watch_sees_what_connects(tmp_path: Path, watched: dict[str, str]) -> None:
    script = """
import subprocess, sys, urllib.request
try:
    urllib.request.urlopen("http://acclimate.invalid/")
except OSError:
    pass
subprocess.run([sys.executable, "-c", "import socket; socket.socket().connect_ex(('127.0.0.1', 9))"])
"""
    assert len(run(script, tmp_path, watched)) == 2


def test_no_command_connects_unasked(tmp_path: Path, watched: dict[str, str]) -> None:
    (tmp_path / "photos").mkdir()
    pixels = (bundled_images()[0][:24] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "photos" / f"{number}.png")
    data = {"name": "demo", "path": "acclimate.demo.bundle:bundled_images", "limit": 24}
    spec = {"networks": [{"name": "demo"}], "data": [data], "methods": ["bn"], "seeds": [0, 1]}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    commands = [
        "list models",
        "doctor --model demo --data photos",
        "adapt --model demo --data photos --epochs 1 --batch-size 8 --log tensorboard",
        "predict --model demo --data photos",
        "corrupt photos corrupted --corruption contrast --severity 1 --workers 1",
        "bench spec.yaml --out records --workers 1",
        "report records adapted.json --out report.html",
    ]
    words = [command.split() for command in commands]
    assert run(_RUN.format(commands=words), tmp_path, watched) == []


def test_libraries_that_count_their_use_are_asked_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RAY_USAGE_STATS_ENABLED", "HF_HUB_DISABLE_TELEMETRY")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)

    class Ray:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_: object) -> None:
            assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
            raise ConnectionError("nobody is there")

    with pytest.raises(AcclimateError, match="there is no Ray cluster"), on_ray._connected(Ray, "auto"):
        pass
    for ask in (lambda: open_hub(Request("hf:./none", None)), lambda: from_hugging_face("./none")):
        monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
        with pytest.raises(AcclimateError):
            ask()
        assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    with pytest.raises(AcclimateError):
        from_hugging_face("./none")
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "0", "what the user has said stays"
