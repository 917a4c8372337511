"""What every test runs under."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Some virtual machines announce AMX and then trap on it: a bfloat16 linear layer would kill the test run.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from acclimate.fast import winograd
from acclimate.records import read_records
from acclimate.report.page import build_page
from browsing import CHROMIUM
from corrupted import picture

# A shell in the background lets its children ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """Seed torch alike for every test, whatever ran before it; pytest-randomly seeds the others."""
    torch.manual_seed(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, three images."""
    for number, name in enumerate(("cat/a.JPEG", "cat/b.png", "dog/a.jpg")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(seed=number)).save(path)
    return tmp_path / "images"


@pytest.fixture
def several_threads() -> Iterator[None]:
    """The suite has only one by default."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def always_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it pays or not."""
    monkeypatch.setattr(winograd, "_FEW_TILES", 1)
    monkeypatch.setattr(winograd, "_COVERED", 0.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the committed records."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    records = Path(__file__).parents[1] / "benchmarks/results/bench_demo.jsonl.gz"
    path.write_text(build_page(read_records(records)), encoding="utf-8")
    return path
