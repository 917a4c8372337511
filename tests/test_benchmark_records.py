"""Records of the benchmarks bear out what is said of them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from acclimate.corruptions import CORRUPTIONS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PUBLISHED_ACCURACY = {
    "clean": 91.7, "gaussian_noise": 24.2, "shot_noise": 30.3, "impulse_noise": 22.4, "defocus_blur": 58.5,
    "glass_blur": 41.8, "motion_blur": 59.8, "zoom_blur": 59.2, "snow": 69.2, "frost": 53.8, "fog": 65.5,
    "brightness": 86.9, "contrast": 26.6, "elastic_transform": 69.6, "pixelate": 39.3,
    "jpeg_compression": 70.3, "speckle_noise": 35.0, "gaussian_blur": 40.7, "spatter": 70.8, "saturate": 84.4,
}  # fmt: skip
"""In %, of the unadapted ResNet-20 on CIFAR-10 by the published CIFAR-C generator at severity 5."""


def test_accuracies_on_corrupted_images_are_those_of_the_published_generator() -> None:
    """Within a point of each figure, on all of CIFAR-10's test images."""
    record = json.loads((RESULTS / "corruptions_accuracy.json").read_text())
    rows = {row["corruption"].removesuffix(" (photographs)"): row for row in record["rows"]}
    assert record["protocol"]["data"] == "CIFAR-10 test set (lossless)"
    assert (record["protocol"]["images"], record["protocol"]["severity"]) == (10_000, 5)
    assert PUBLISHED_ACCURACY.keys() == {"clean", *CORRUPTIONS}
    for name, published in PUBLISHED_ACCURACY.items():
        assert rows[name]["published"] == published, name
        assert rows[name]["acclimate"] == pytest.approx(published, abs=1), name


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_good"/>
<testcase classname="tests.test_a" name="test_slow"><skipped message="no data"/></testcase>
<testcase classname="tests.test_a" name="test_bad"><failure message="1 != 2"/></testcase>
<testcase classname="tests.test_b" name="test_worse"><error message="no fixture"/></testcase>
</testsuite></testsuites>"""


def test_the_log_of_the_suite_counts_what_pytest_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(RESULTS.parent)
    report = tmp_path / "report.xml"
    report.write_text(JUNIT)
    assert importlib.import_module("suite").counted(report) == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "failures": ["tests.test_a::test_bad", "tests.test_b::test_worse"],
    }


def test_every_line_of_the_suites_log_can_be_repeated() -> None:
    log = RESULTS / "suite.jsonl"
    for line in log.read_text().splitlines() if log.exists() else []:
        run = json.loads(line)
        assert {"date", "commit", "seed", "busy", "seconds"} <= run.keys()
        assert "died" in run or run["failed"] == 0 or run["failures"]
