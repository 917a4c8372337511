"""What every test runs under."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Some virtual machines announce AMX and then trap on it: a bfloat16 linear layer would kill the test run.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
from PIL import Image

from corrupted import picture

# A shell in the background lets its children ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, three images."""
    for number, name in enumerate(("cat/a.JPEG", "cat/b.png", "dog/a.jpg")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(seed=number)).save(path)
    return tmp_path / "images"
