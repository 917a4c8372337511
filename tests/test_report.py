"""Tables, sentences and the protocol say what the records say."""

from __future__ import annotations

import csv
import gzip
import io
import math
import statistics
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acclimate.bench import PRESETS
from acclimate.bench.compare import judge
from acclimate.chance import wilson
from acclimate.cli import app
from acclimate.errors import OptionError
from acclimate.records import Record, read_records
from acclimate.report.document import document, epoch_of
from acclimate.report.formats import FORMATS
from acclimate.report.gather import LAST, ONLINE, gather
from acclimate.report.glance import glance
from acclimate.report.headline import BY_CLASS, headline_tables
from acclimate.report.page import build_page
from acclimate.report.page_data import page_data
from acclimate.report.protocol import cells_file, commands, facts_table, hyperparameters
from acclimate.report.reading import slim
from acclimate.report.tables import Entry, Row, Table, bold_best
from made_records import failed, measured, small, unlabelled

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "benchmarks/results/bench_demo.jsonl.gz"


def cells_of(table: Table) -> dict[str, dict[str, Any]]:
    return {row.label: dict(zip(table.heads[1:], row.cells, strict=True)) for row in table.rows}


def test_the_headline_has_means_over_seeds_and_gains_over_source() -> None:
    (table,) = headline_tables(gather(small()))
    found = cells_of(table)
    assert table.heads == ("method", "mean", "gain", "snow", "fog")
    assert (found["slr"]["fog"].value, found["slr"]["fog"].spread) == (
        52.0,
        pytest.approx(statistics.stdev([50, 54])),
    )
    assert found["slr"]["mean"].value == pytest.approx((52 + 37) / 2)
    assert found["slr"]["mean"].spread == pytest.approx(statistics.stdev([(50 + 38) / 2, (54 + 36) / 2]))
    assert found["slr"]["gain"].value == pytest.approx(44.5 - 35)
    assert found["source"]["fog"].spread is None
    assert found["tent"]["mean"] is None  # it lacks a corruption, so that its mean would be of other things
    best = {(label, head) for label, row in found.items() for head, cell in row.items() if cell and cell.best}
    assert best == {("source", "snow"), ("slr", "fog"), ("slr", "mean")}  # the true labels do not compete


def test_other_passes_and_errors() -> None:
    (online,) = headline_tables(gather(small()), epoch=ONLINE)
    assert cells_of(online)["slr"]["fog"].value == 47.0
    assert cells_of(online)["source"]["fog"].value == 30.0  # one pass stands for all
    (second,) = headline_tables(gather(small()), epoch=2, error=True)
    assert cells_of(second)["slr"]["fog"].value == pytest.approx(100 - 49)
    assert cells_of(second)["slr"]["fog"].best
    (beyond,) = headline_tables(gather(small()), epoch=9)
    assert list(cells_of(beyond)) == ["source"]  # which is always the same
    assert [epoch_of(name) for name in ("online", "after-epoch", "after-epoch-3")] == [ONLINE, LAST, 3]
    with pytest.raises(OptionError, match="protocol must be online"):
        epoch_of("after-epoch-0")


def test_test_and_validation_corruptions_and_clean_data_have_tables_of_their_own() -> None:
    records = [
        *small(),
        measured("slr", 60.0, corruption="spatter"),
        measured("slr", 70.0, corruption=None, severity=None),
    ]
    tables = headline_tables(gather(records))
    assert [table.keys["corruptions"] for table in tables] == ["test", "validation", ""]
    assert tables[2].heads == ("method", "gain", "accuracy")


def test_nothing_is_averaged_over_protocols() -> None:
    records = [*small(), measured("slr", 99.0, epochs=2), measured("slr", 98.0, overrides={"lr": 0.1})]
    rows = {series.variant.label for series in gather(records).series}
    assert {"slr (epochs 5)", "slr (epochs 2)", "slr, lr 0.1 (epochs 5)", "source"} <= rows
    part = measured("slr", 10.0, subset={"classes": 0.5})
    found = gather([*small(), part])
    assert "slr on 0.5 of the classes" in {series.variant.label for series in found.series}
    table, parts = headline_tables(found)
    assert cells_of(table)["slr"]["fog"].value == 52.0
    assert cells_of(parts)["slr on 0.5 of the classes"]["gain"].value == pytest.approx(10 - 30)
    assert len(headline_tables(found, epoch=ONLINE)) == 1  # online, a part is measured on itself only


def test_records_that_are_there_twice_or_do_not_belong_together_are_told_of() -> None:
    again = measured("slr", 70.0)
    found = gather([*small(), again])
    assert any("more than once: 1;" in note for note in found.notes)
    assert cells_of(headline_tables(found)[0])["slr"]["fog"].value == (70 + 54) / 2
    other = measured("tent", 60.0, seed=3)
    other["spec"]["weights"] = "another"
    assert any("2 different weights are called net." in note for note in gather([*small(), other]).notes)


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("bn", {"cell": {"batch_size": 2}}),
        ("slr", {"cell": {"batch_size": 2}}),
        (
            "source",
            {"spec": {"options": {"normalize": [[0.5], [0.5]], "freeze": "auto", "statistics": "batch"}}},
        ),
        ("source", {"spec": {"images": 10}}),
        ("source", {"spec": {"weights": "another"}}),
        ("source", {"spec": {"data": "another"}}),
    ],
)
@pytest.mark.parametrize("corruption", ["fog", None])
def test_runs_that_differ_in_more_than_their_seed_are_not_one(
    method: str, change: dict[str, dict[str, Any]], corruption: str | None
) -> None:
    severity = corruption and 5
    one, other = (measured(method, value, corruption=corruption, severity=severity) for value in (90.0, 10.0))
    for part, values in change.items():
        other[part] |= values
    found = [series.accuracies(LAST) for series in gather([one, other]).series]
    assert sorted(value for runs in found for value in runs.values()) == [10.0, 90.0]
    assert len(found) == 2


def test_the_same_run_on_another_device_is_told_of() -> None:
    found = gather([measured("slr", 90.0), measured("slr", 80.0, device="cuda")])
    assert [list(series.accuracies(LAST).values()) for series in found.series] == [[80.0]]
    assert any("device, threads" in note for note in found.notes)


def test_different_experiments_are_not_held_against_the_paper() -> None:
    where = {"network": "resnet50.IMAGENET1K_V1", "data": "imagenet-c"}
    records = [
        measured("slr", 50.0, **where),
        measured("slr", 10.0, **where, images=10, batch_size=8, seed=1),
    ]
    text = document(records, "csv")
    assert "are of different experiments" in text
    assert "Published figures" not in text
    text = document([measured("slr", 40.0, **where), measured("slr", 50.0, **where)], "csv")
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["table"].startswith("Published")]
    (found,) = [
        r["value"] for r in rows if r["column"] == "measured" and (r["method"], r["epoch"]) == ("SLR", "5")
    ][:1]
    assert float(found) == 50.0  # the last of the two


def test_variants_alone_are_results_too() -> None:
    records = [measured("slr", 50.0 + kappa, overrides={"kappa": kappa}) for kappa in (0.0, 0.5)]
    (table,) = headline_tables(gather(records))
    assert cells_of(table)["slr, kappa 0.5"]["fog"].value == 50.5
    assert "slr, kappa 0.5" in document(records, "csv")


def test_visda_c_is_the_mean_over_classes_everywhere() -> None:
    record = measured("slr", 90.0, data="visda-c", corruption=None, severity=None)
    for values in (record["result"]["online"], *record["result"]["after_epoch"].values()):
        values["per_class"] = [1.0, 0.0, *[None] * 8]
    (table,) = headline_tables(gather([slim(record)]))
    assert cells_of(table)["slr"]["accuracy"].value == 50.0
    assert table.note == BY_CLASS


def test_records_of_python_and_odd_ones_can_be_reported() -> None:
    """What `adapt_images` writes where it is not told what was asked for, and values that are no numbers."""
    bare = unlabelled()
    bare["cell"] = {"method": "slr+it", "epochs": 5, "batch_size": 64, "seed": 0}
    bare["result"]["before"]["confidence"] = bare["result"]["before"]["bins"][13][1] = None
    del bare["result"]["cautions"]
    odd = measured("slr+it", 50.0, ssim=(0.5, 0.6))
    odd["result"]["ssim"]["after"] = odd["result"]["gallery"][0]["clean"] = None
    odd["result"]["steps"]["loss"][1] = None
    foreign = measured("slr", 40.0)
    foreign["cell"]["corruption"] = "rain"
    records = [slim(record) for record in (bare, odd, foreign)]
    page = build_page(records)
    assert "a network on images" in page
    assert "not a number before" in page
    for kind in FORMATS:
        assert "rain" in document(records, kind)


@pytest.mark.parametrize("value", [None, float("nan"), "much", 7.0])
def test_records_without_usable_accuracies_are_left_out_and_told_of(value: Any) -> None:
    odd = measured("tent", 50.0, seed=9)
    odd["result"]["after_epoch"]["3"]["accuracy"] = value
    found = gather([*small(), odd])
    assert any("left out: 1 (net tent on data fog 5 …)" in note for note in found.notes)
    assert document([*small(), odd], "markdown") == document(small(), "markdown")
    broken = {**failed(""), "error": "out of memory"}
    assert "out of memory" in build_page([*small(), odd, broken])


def test_images_that_were_left_out_are_told_of() -> None:
    record = unlabelled()
    record["result"]["left_out"] = {"broken.png": "truncated"}
    (first, *_) = glance(gather([record]), [])
    assert "could not be read and were left out: 1" in first.text


def test_networks_whose_files_have_the_same_name_are_told_apart() -> None:
    records = [measured("slr", value, seed=int(value)) for value in (20.0, 40.0)]
    for record, folder in zip(records, ("a", "b"), strict=True):
        record["cell"]["network"]["weights"] = f"{folder}/best.pth"
        record["spec"]["weights"] = folder
    assert gather(records).networks == ["best, a/best.pth, weights a", "best, b/best.pth, weights b"]


def test_similarity_in_the_gallery_is_the_mean_over_seeds() -> None:
    records = [measured("slr+it", 50.0, seed=seed, ssim=(0.5, after)) for seed, after in ((1, 0.6), (2, 0.4))]
    assert "SSIM to clean 0.500 → 0.500 (+0.000), mean over 2 seeds" in build_page(records)


def test_figures_that_look_the_same_are_equally_good() -> None:
    rows = [Row(name, (Entry(value), None)) for name, value in (("a", 1.001), ("b", 1.004), ("c", 0.5))]
    assert [row.cells[0].best for row in bold_best(rows)] == [True, True, False]  # type: ignore[union-attr]
    assert [row.cells[0].best for row in bold_best(rows, lowest=True)] == [False, False, True]  # type: ignore[union-attr]
    wide = [Row("a", (Entry(1.0), Entry(3.0), Entry(2.0)))]
    marked = bold_best(wide, columns=[0, 2], along="rows")[0].cells
    assert [cell.best for cell in marked] == [False, False, True]  # type: ignore[union-attr]


def test_the_first_sentences_say_what_worked_and_what_did_not() -> None:
    records = [*small(), measured("slr-div", 20.0, histogram=[991, *[1] * 9])]
    told = {sentence.text: sentence.kind for sentence in glance(gather(records), judge(records))}
    (best,) = [text for text in told if "is best" in text]
    assert best.startswith("net on data: slr is best over 2 test corruptions at severity 5, 44.50 ± 0.71 %")
    assert best.endswith("against 35.00 % without adaptation (+9.50, 95%: +1.9 to +17.1).")
    assert not any("loses to no adaptation" in text for text in told)  # 37 against 40 % may be chance
    (fallen,) = [text for text in told if "collapsed" in text]
    assert "slr-div on fog" in fallen
    assert told[fallen] == "bad"
    assert any(
        text.startswith("Calibration error (ECE) 55.0 % without adaptation, 45.5 % with slr") for text in told
    )


def said_of(*accuracies: tuple[str, float], images: int = 1000) -> tuple[str, list[str]]:
    """The kind of the first sentence and all texts, of single runs of these methods."""
    told = glance(gather([measured(method, value, images=images) for method, value in accuracies]), [])
    return told[0].kind, [sentence.text for sentence in told]


def test_best_is_said_of_what_is_best_by_more_than_chance() -> None:
    kind, (first, *_) = said_of(("source", 30.0), ("tent", 45.0), ("slr", 52.0))
    assert (kind, "slr is best over 1 test corruption" in first) == ("good", True)
    kind, (first, *_) = said_of(("source", 30.0), ("tent", 45.0), ("hlr", 50.0), ("slr", 52.0))
    assert kind == "good"
    assert "slr is highest" in first
    assert first.endswith("(+22.00, 95%: +17.7 to +26.1); within chance of it: hlr (50.00 %).")
    kind, (first, *_) = said_of(("source", 50.0), ("slr", 52.0))
    assert kind == "note"
    assert "no gain is more than chance" in first
    assert first.endswith("(+2.00, 95%: −2.4 to +6.4, within chance).")
    # the same figures of more images are no chance
    assert "slr is best" in said_of(("source", 50.0), ("slr", 52.0), images=100_000)[1][0]
    assert "best" not in " ".join(said_of(("source", 50.0), ("slr", 49.0))[1])


def test_a_loss_is_told_if_it_is_more_than_chance() -> None:
    records = [measured(m, v, corruption=c) for m, v, c in (("source", 40.0, "snow"), ("slr", 30.0, "snow"))]
    records += [measured("source", 30.0), measured("slr", 60.0)]
    told = {sentence.text: sentence.kind for sentence in glance(gather(records), [])}
    assert told["slr loses to no adaptation on snow −10.00."] == "bad"


def test_means_over_classes_have_no_interval_and_no_best() -> None:
    where = {"data": "visda-c", "corruption": None, "severity": None}
    records = [measured(method, value, **where) for method, value in (("source", 40.0), ("slr", 60.0))]
    (table,) = headline_tables(gather(records))
    assert cells_of(table)["slr"]["accuracy"].interval is None
    first = glance(gather(records), [])[0].text
    assert "slr is highest, 60.00 %" in first
    assert "best" not in first


def test_tables_have_intervals_and_mark_what_is_within_chance() -> None:
    records = [measured(m, v) for m, v in (("source", 30.0), ("tent", 45.0), ("hlr", 50.0), ("slr", 52.0))]
    (table,) = headline_tables(gather(records))
    found = cells_of(table)
    assert found["slr"]["fog"].interval == pytest.approx([100 * end for end in wilson(0.52, 1000)])
    assert [found[m]["fog"].chance for m in ("source", "tent", "hlr", "slr")] == [False, False, True, True]
    assert [found[m]["fog"].best for m in ("hlr", "slr")] == [False, True]
    assert found["source"]["gain"].interval is None
    gain = found["tent"]["gain"]
    low, high = (wilson(share, 1000) for share in (0.3, 0.45))
    assert gain.interval == pytest.approx(
        (
            15 - 100 * math.hypot(0.45 - high[0], low[1] - 0.3),
            15 + 100 * math.hypot(high[1] - 0.45, 0.3 - low[0]),
        )
    )
    assert not gain.chance
    (errors,) = headline_tables(gather(records), error=True)
    assert cells_of(errors)["slr"]["fog"].interval == pytest.approx([100 * end for end in wilson(0.48, 1000)])
    assert "Bold is the lowest" in errors.note
    alone = [measured(m, v) for m, v in (("source", 30.0), ("slr", 52.0))]
    assert not cells_of(headline_tables(gather(alone))[0])["slr"]["fog"].chance


def test_a_mean_is_as_doubtful_as_its_parts_and_its_seeds() -> None:
    (table,) = headline_tables(gather(small()))
    low, high = cells_of(table)["source"]["mean"].interval
    ends = [wilson(share, 1000) for share in (0.3, 0.4)]
    assert (low, high) == pytest.approx([50 * sum(side) for side in zip(*ends, strict=True)])
    seeds = cells_of(table)["slr"]["mean"].interval
    assert 12.7 * statistics.stdev([44, 45]) / math.sqrt(2) < (seeds[1] - seeds[0]) / 2 < 8  # and the images


def test_a_clean_loss_is_no_success() -> None:
    records = [measured(m, a, corruption=None, severity=None) for m, a in (("source", 90.0), ("slr", 88.0))]
    (first, *_) = glance(gather(records), [])
    assert first.kind == "bad"
    assert "nothing beats no adaptation, 90.00 %; slr comes nearest with 88.00 %" in first.text


def test_an_adaptation_without_labels_is_told_of() -> None:
    (first, *_) = glance(gather([unlabelled()]), [])
    assert "250 predictions (25.0 %) changed, mean confidence 0.500 before and 0.750 after" in first.text
    assert first.kind == "bad"  # there is a caution


def test_alarms_of_the_guard_are_told_of() -> None:
    quiet, alarmed = measured("slr", 50.0), measured("slr", 54.0, seed=2021)
    quiet["result"]["alarms"] = []
    assert any("watched 1 run and saw nothing" in told.text for told in glance(gather([quiet]), []))
    alarmed["result"]["alarms"] = [
        {
            "step": 3,
            "signal": "stride",
            "value": 0.2,
            "limit": 0.1,
            "action": "went back",
            "message": "<moved>",
        }
    ]
    told = [sentence.text for sentence in glance(gather([quiet, alarmed]), [])]
    assert any("stepped in 1 time, in 1 of 2 runs" in text for text in told)
    assert "| net slr | data fog 5 | 2021 | stride |" in document([quiet, alarmed], "markdown")
    assert "&lt;moved&gt;" in build_page([quiet, alarmed])
    assert not any("guard" in sentence.text for sentence in glance(gather([measured("slr", 1.0)]), []))


def test_the_command_is_that_of_the_preset_if_all_of_it_is_there(tmp_path: Path) -> None:
    cells = list(PRESETS["demo"].cells())
    assert commands(gather(_as_records(cells)))[0] == "acclimate bench demo --out again"
    some = gather(_as_records(cells[:3]))
    assert commands(some)[0] == "acclimate bench cells.jsonl.gz --out again"
    packed = b64decode(cells_file(some).partition(",")[2])
    assert len(gzip.decompress(packed).splitlines()) == 3
    (tmp_path / "cells.jsonl.gz").write_bytes(packed)
    result = CliRunner().invoke(app, ["bench", str(tmp_path / "cells.jsonl.gz"), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if "seed" in line] == [
        cell.label for cell in cells[:3]
    ]
    made = unlabelled("my photos")
    made["cell"]["overrides"] = {"precision": "bf16"}
    assert commands(gather([made]))[0].endswith(" --precision bf16")
    adapt = commands(gather([unlabelled("my photos")]))
    assert adapt[0].startswith(
        "acclimate adapt --model net --data 'my photos.npz' --method slr+it --epochs 5"
    )


def _as_records(cells: list[Any]) -> list[Record]:
    template = measured("slr", 50.0)
    return [{**template, "cell": cell.model_dump(mode="json")} for cell in cells]


def test_the_protocol_has_all_that_was_used() -> None:
    facts = {row.label: row.cells[0] for row in facts_table(gather(small())).rows}
    assert facts["seeds"] == "2020; 2021"
    assert facts["networks"] == "net (weights w)"
    assert facts["acclimate"] == "1, commit c0ffee"
    table = hyperparameters(gather([*small(), measured("slr", 11.0, seed=4, overrides={"kappa": 0.5})]))
    found = {row.label: dict(zip(table.heads[1:], row.cells, strict=True)) for row in table.rows}
    assert found["slr (paper)"]["lr"] == "0.0006"
    assert found["slr (paper)"]["freeze"] == "top"
    assert "slr (paper) kappa=0.5" in found
    assert "source (paper)" not in found


def test_what_the_charts_are_drawn_from() -> None:
    data = page_data(gather([*small(), unlabelled(class_names=list("abcdefghij"))]))
    slr = next(s for s in data["series"] if data["rows"][s["r"]]["label"] == "slr" and s["s"] == [2020, 2021])
    assert slr["a"] == {
        "0": [33.0, 31.0],
        **{str(e): [38.0 - 5 + e, 36.0 - 5 + e] for e in range(1, 6)},
        "-1": [38.0, 36.0],
    }
    assert slr["bins"] == [[12, 50.0, 85.0, 37.0], [13, 50.0, 95.0, 37.0]]
    assert slr["hist"] == [10.0] * 10
    assert slr["steps"]["accuracy"] == [10.0, 20.0, 30.0]
    assert slr["steps"]["class_entropy"] == pytest.approx([99.89, 95.54, 91.2], abs=0.01)
    assert data["unlabelled"][0]["names"] == list("abcdefghij")


def test_the_committed_records_give_the_committed_table() -> None:
    """The report and the documents count by different code."""
    records = read_records(DEMO)
    shown = (ROOT / "docs/results.md").read_text("utf-8")
    table = next(
        t
        for t in headline_tables(gather(records))
        if t.keys["network"] == "demo" and t.keys["corruptions"] == "test"
    )
    line = next(line for line in shown.splitlines() if line.startswith("| `slr+it` | "))
    figures = line.split(" | ")[1:]
    row = cells_of(table)["slr+it"]
    assert figures[:15] == [f"{row[head].plain} ± {row[head].spread:.2f}" for head in table.heads[3:]]
    assert figures[15] == row["mean"].plain


def test_a_collapse_is_marked_on_the_page() -> None:
    page = build_page([*small(), measured("slr-div", 20.0, histogram=[991, *[1] * 9])])
    table = page.partition("<figcaption>Collapsed</figcaption>")[2].partition("</figure>")[0]
    assert "slr-div" in table
    assert "net on data fog 5" in table
    data = page_data(gather([*small(), measured("slr-div", 20.0, histogram=[991, *[1] * 9])]))
    assert min(series["even"] for series in data["series"]) < 0.05


def test_an_adaptation_beyond_those_with_charts_is_told_of() -> None:
    assert "Charts of the first 20." in build_page([unlabelled(f"photos {i}") for i in range(21)])
