"""Tables of records in every format, and the command that writes them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acclimate.cli import app
from acclimate.errors import InputError
from acclimate.records import Record, read_records
from acclimate.report.document import document
from acclimate.report.formats import FORMATS
from acclimate.report.gather import gather
from acclimate.report.page_data import page_data
from acclimate.report.reading import slim
from made_records import HOSTILE, failed, measured, small, unlabelled

ROOT = Path(__file__).parents[1]


def test_every_format_has_every_figure() -> None:
    records = [*small(), unlabelled()]
    found = {
        row["row"] + " " + row["column"]: row for row in csv.DictReader(io.StringIO(document(records, "csv")))
    }
    assert float(found["slr fog"]["value"]) == 52.0
    assert float(found["slr fog"]["std"]) == pytest.approx(8**0.5)
    assert found["slr fog"]["network"] == "net"
    assert float(found["net on photos predictions changed, %"]["value"]) == 25.0
    tables = json.loads(document(records, "json"))
    assert any(fact["row"] == "slr" and fact["value"] == 52.0 for fact in tables[0]["figures"])
    assert float(found["slr fog"]["low"]) < 49 < 55 < float(found["slr fog"]["high"])
    assert (found["slr fog"]["best"], found["slr fog"]["chance"]) == ("False", "True")
    assert (found["slr mean"]["best"], found["slr mean"]["chance"]) == ("True", "False")
    assert "| **52.00** ± 2.83 (26.4 to 77.6) ≈ |" in document(records, "markdown")
    assert r"\textbf{52.00}$\pm$2.83 {\scriptsize (26.4 to 77.6) $\approx$}" in document(records, "latex")


def compiled(text: str, folder: Path) -> int:
    """Pages of a document with these tables."""
    packages = r"\usepackage[T1]{fontenc}\usepackage{booktabs,graphicx,xcolor}"
    head = rf"\documentclass{{article}}{packages}\begin{{document}}"
    (folder / "a.tex").write_text(f"{head}\n{text}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-1500:]
    return (folder / "a.pdf").read_bytes().count(b"/Type /Page\n")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_whatever_names_there_are(tmp_path: Path) -> None:
    records = [*small(), measured("slr", 11.0, network=HOSTILE, data=HOSTILE), unlabelled(HOSTILE)]
    compiled(document(records, "latex"), tmp_path)
    assert (tmp_path / "a.pdf").stat().st_size > 10_000


def test_markdown_shows_hostile_names_as_text() -> None:
    text = document([measured("slr", 11.0, network=HOSTILE)], "markdown")
    assert "<script>" not in text
    assert r"\<script\>" in text


def test_a_formula_in_a_name_is_not_one_in_a_table() -> None:
    text = document([measured("slr", 50.0, network='=HYPERLINK("x")')], "csv")
    (row, *_) = csv.DictReader(io.StringIO(text))
    assert row["network"].startswith("'=")


def test_an_epoch_that_nobody_reached_is_an_error() -> None:
    with pytest.raises(InputError, match="no run was measured after epoch 9"):
        document([*small(), measured("bn", 50.0)], "csv", epoch=9)


def test_slim_records_give_the_same_report() -> None:
    records = read_records(ROOT / "benchmarks/results/bench_imagenet.jsonl.gz")
    whole = document(records, "json"), page_data(gather(records))
    kept = [slim(record) for record in records]
    assert (document(kept, "json"), page_data(gather(kept))) == whole
    assert len(json.dumps(kept)) < 120_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is nothing at nowhere"),
        (["r", "--format", "pdf"], "unknown format 'pdf': known are"),
        (["r", "--out", "a.docx"], "does not say what it is to be"),
        (["r", "--out", "no/a.html"], "there is no folder no"),
        (["r", "--format", "csv", "--metric", "acuracy"], "did you mean 'accuracy'"),
        (["r", "--format", "csv", "--protocol", "later"], "protocol must be online"),
        (["r", "--metric", "error"], "the page has switches for both"),
        (["r", "--format", "csv", "--out", "a.html"], "--format says csv, and a.html says html"),
        (["bad.json"], "bad.json, line 1: no record"),
    ],
)
def test_what_cannot_be_reported(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(small(), tmp_path / "r")
    Path("bad.json").write_text("{}")
    result = CliRunner().invoke(app, ["report", *words])
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


def put(records: list[Record], folder: Path) -> None:
    folder.mkdir()
    for number, record in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(record))


def test_the_command_writes_what_the_name_says(tmp_path: Path) -> None:
    put([*small(), failed("out of memory")], tmp_path / "r")
    for name, kind in (("a.md", "markdown"), ("a.tex", "latex"), ("a.csv", "csv"), ("a.json", "json")):
        assert (
            CliRunner().invoke(app, ["report", str(tmp_path / "r"), "--out", str(tmp_path / name)]).exit_code
            == 0
        )
        assert (tmp_path / name).read_text("utf-8") == document([*small(), failed("out of memory")], kind)
    said = CliRunner().invoke(app, ["report", str(tmp_path / "r"), "--format", "csv", "--metric", "error"])
    assert said.exit_code == 0
    assert said.output == document([*small(), failed("out of memory")], "csv", error=True)
    assert FORMATS.keys() == {"markdown", "latex", "csv", "json"}


def test_a_report_of_failures_only_says_so(tmp_path: Path) -> None:
    put([failed("out of memory")], tmp_path / "r")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "r"), "--format", "csv"])
    assert result.exit_code == 2
    assert "all cells failed" in result.output
