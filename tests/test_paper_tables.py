"""The paper's tables, from records whose figures are known: often the paper's own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench import compare
from acclimate.bench.presets import PRESETS
from acclimate.errors import InputError, OptionError
from acclimate.report import paper
from acclimate.report.choose import Choice
from acclimate.report.formats import FORMATS
from acclimate.report.gather import gather
from acclimate.report.tables import Entry, Row, Table
from paper_records import HOSTILE, MODIFIED, VISDA, hostile_records, over_seeds, published, record


def latex_rows(table: Table) -> dict[str, str]:
    """Rows of the table's LaTeX by their label and, after the first one, a number."""
    found: dict[str, str] = {}
    for line in FORMATS["latex"]([table]).splitlines():
        if " & " in line and line.endswith(r" \\"):
            label, _, rest = line.strip().removesuffix(r" \\").partition(" & ")
            found[label if label not in found else f"{label} again"] = rest
    return found


def cells(table: Table, label: str) -> list[Any]:
    (row,) = [row for row in table.rows if f"{row.section} {row.label}".strip() == label]
    return list(row.cells)


def test_table_a1_is_the_papers() -> None:
    found = gather(published("imagenet_c_resnet50_severity5_error_bars"))
    rows = latex_rows(paper.table_a1(found))
    assert rows["Gauss"] == (
        r"2.44 & 2.44 & 32.70$\pm$0.10 & 33.96$\pm$0.09 & 38.39$\pm$0.25 & \textbf{39.51}$\pm$0.23 & "
        r"16.04$\pm$0.51 & 33.97$\pm$0.17 & 41.37$\pm$0.09 & \textbf{41.52}$\pm$0.08"
    )
    assert rows["Bright"] == (
        r"58.93 & 58.93 & 68.82$\pm$0.02 & \textbf{68.91}$\pm$0.03 & 68.17$\pm$0.01 & 68.47$\pm$0.05 & "
        r"68.54$\pm$0.06 & \textbf{69.03}$\pm$0.06 & 68.29$\pm$0.09 & 68.72$\pm$0.10"
    )
    short = "Gauss Shot Impulse Defocus Glass Motion Zoom Snow Frost Fog Bright Contrast Elastic Pixel JPEG"
    assert " ".join(list(rows)[2:]) == short
    assert rows["Corruption"] == "No adaptation & PL & TENT & TENT+ & HLR & SLR & TENT & TENT+ & HLR & SLR"
    assert paper.table_a1(found).groups == (("", 3), ("Epoch 1", 4), ("Epoch 5", 4))


def test_table_1_is_the_papers() -> None:
    table = paper.table_1(gather(published("imagenet_c_resnet50_severity5")))
    rows = latex_rows(table)
    assert rows["TENT"].startswith("32.70 & 35.34 & 35.11 & 32.79 & 31.80 & 47.22 & 53.02")
    assert rows["SLR"].startswith(r"\textbf{39.51} & \textbf{42.09} & \textbf{41.58} & \textbf{39.35}")
    assert rows["SLR again"].startswith(r"\textbf{41.52} & 42.90 & \textbf{44.07} & 41.69 & 40.78")
    assert rows["HLR again"].startswith(r"41.37 & \textbf{44.04} & 43.68 & \textbf{41.74} & \textbf{41.09}")
    assert rows["No Adaptation"] == rows["Pseudo Labels"]
    assert rows[r"\textcolor{gray}{Groundtruth}"].startswith(r"\textcolor{gray}{55.68} & ")
    assert [row.section for row in table.rows] == ["", "", *["Epoch 1"] * 4, *["Epoch 5"] * 4, ""]
    assert cells(table, "Epoch 1 TENT+")[10] == Entry(pytest.approx(68.91), best=True)  # Bright


def test_table_2_is_the_papers() -> None:
    figures: dict[str, dict[str, float]] = {}
    for row in compare._published():
        if row["table"] == "input_transformation_resnet50":
            figures.setdefault(row["corruption"], {})[row["method"]] = float(row["value"])
    records = []
    for name, own in figures.items():
        ssim = {"before": own["SSIM"], "after": own["SSIM+IT"]}
        records += [record("slr", own["SLR"], corruption=name)]
        records += [record("slr+it", own["SLR+IT"], corruption=name, ssim=ssim)]
    table = paper.table_2(gather(records))
    rows = latex_rows(table)
    assert rows["SSIM"].startswith(r"0.123 & 0.147 & 0.135 & \textbf{0.623} & \textbf{0.648}")
    assert rows["SSIM+IT"].startswith(r"\textbf{0.173} & \textbf{0.188} & \textbf{0.347} & 0.605 & 0.638")
    assert rows["SLR"].startswith(r"41.59 & 43.49 & 43.90 & 41.70 & \textbf{41.10} & 54.86")
    assert rows["SLR+IT"].startswith(
        r"\textbf{43.09} & \textbf{44.39} & \textbf{64.05} & \textbf{41.98} & 40.99"
    )
    assert [row.rule for row in table.rows] == [False, False, True, False]


def test_tables_of_pseudo_labels_are_the_papers() -> None:
    stock = gather(published("pseudo_labelling_resnet50"))
    assert latex_rows(paper.table_a2(stock))["Contrast"] == (
        r"5.43 & 24.08$\pm$1.36 & 50.98$\pm$2.54 & 50.65$\pm$0.55 & "
        r"29.37$\pm$0.95 & 44.58$\pm$0.38 & 45.64$\pm$0.47"
    )
    assert paper.table_a2(stock).groups[1:] == (
        ("No pseudo labeling: Epoch 5", 3),
        ("Pseudo labeling: Epoch 5", 3),
    )
    epochs = gather(published("pseudo_labelling_modified_resnet50_epochs"))
    assert latex_rows(paper.table_a3(epochs))["Gauss"] == (
        r"2.95 & 31.03$\pm$0.18 & 34.65$\pm$0.28 & 37.21$\pm$0.23 & "
        r"35.26$\pm$0.16 & 35.93$\pm$0.23 & 37.61$\pm$0.30"
    )
    modified = gather(published("pseudo_labelling_modified_resnet50"))
    assert latex_rows(paper.table_a4(modified))["Motion"] == (
        r"15.66 & 51.91$\pm$0.09 & 53.23$\pm$0.05 & 54.00 & 52.24$\pm$0.02 & 51.90$\pm$0.12 & 52.76$\pm$0.09"
    )
    assert "modified network resnet50_shot" in paper.table_a4(modified).title


def test_table_a5_is_the_papers_and_a_mean_over_classes() -> None:
    rows = latex_rows(paper.table_a5(gather(published("visda_c"))))
    assert rows["TENT+"] == r"81.83$\pm$0.16"
    assert rows["SLR"] == r"82.32$\pm$0.16"
    assert rows["No Adaptation"] == "46.10"
    uneven = record("slr", 90, **VISDA)
    uneven["result"]["after_epoch"]["5"]["per_class"] = [1.0, 0.5, None]
    assert latex_rows(paper.table_a5(gather([uneven])))["SLR"] == "75.00"


def test_only_what_was_measured_has_a_place() -> None:
    records = [
        record("source", 10),
        record("source", 20, corruption="snow"),
        *over_seeds("slr", (50, 2), (40, 1)),
        record("hlr", 45, first=43, corruption="snow"),
        record("slr", 99, overrides={"lr": 1}, corruption="frost"),  # another method
        record("slr", 98, corruption="speckle_noise"),  # for choosing
    ]
    table = paper.table_1(gather(records))
    assert table.heads == ("Method", "Snow", "Fog")
    assert [row.label for row in table.rows] == ["No Adaptation", "HLR", "SLR", "HLR", "SLR"]
    assert cells(table, "Epoch 5 SLR") == [None, Entry(pytest.approx(50))]
    assert cells(table, "Epoch 1 HLR") == [Entry(pytest.approx(43)), None]
    assert "1 to 3 seeds" in table.note
    turned = paper.table_a1(gather(records))
    assert turned.groups == (("", 2), ("Epoch 1", 2), ("Epoch 5", 2))
    assert cells(turned, "Fog")[-1] == Entry(pytest.approx(50), pytest.approx(2))


def test_heads_say_the_epochs_of_the_records() -> None:
    table = paper.table_a1(
        gather([record("tent", 30, first=20, last=3), record("slr", 40, first=35, last=3)])
    )
    assert [text for text, _ in table.groups] == ["", "Epoch 1", "Epoch 3"]
    (once,) = paper.table_1(gather([record("slr", 40, last=1)])).rows
    assert once.section == "Epoch 1"
    mixed = paper.table_1(gather([record("slr", 40), record("tent", 30, last=2)]))
    assert {row.section for row in mixed.rows} == {"Epoch 1", "Last epoch"}
    assert "TENT epochs 2; SLR epochs 5" in mixed.note


def test_a_best_figure_is_best_of_its_section_only() -> None:
    records = [
        record("oracle", 90),
        record("source", 5),
        record("tent", 30, first=70),
        record("slr", 30, first=60),
    ]
    table = paper.table_1(gather(records))
    best = {f"{row.section} {row.label}".strip() for row in table.rows if row.cells[0].best}  # type: ignore[union-attr]
    assert best == {"Epoch 1 TENT", "Epoch 5 TENT", "Epoch 5 SLR"}


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("table_1", "imagenet-c"),
        ("table_2", "input-transformation"),
        ("table_a1", "imagenet-c"),
        ("table_a2", "shot"),
        ("table_a3", "shot"),
        ("table_a4", "shot"),
        ("table_a5", "visda-c"),
    ],
)
def test_what_is_missing_is_told_in_a_sentence(name: str, preset: str) -> None:
    found = gather([record("slr", 50, corruption="spatter")])
    assert preset in PRESETS
    with pytest.raises(InputError, match=rf"^the records have no .*: `acclimate bench {preset}` makes them$"):
        getattr(paper, name)(found)


def test_among_several_one_is_asked_for() -> None:
    other = {"name": "densenet121.IMAGENET1K_V1", "weights": None}
    found = gather([record("slr", 50), record("slr", 60, network=other), record("slr", 70, network=MODIFIED)])
    with pytest.raises(OptionError, match=r"--model one of 'densenet121.*', 'resnet50.IMAGENET1K_V1'$"):
        paper.table_1(found)
    chosen = paper.table_1(found, Choice(model="densenet121.IMAGENET1K_V1"))
    assert cells(chosen, "Epoch 5 SLR") == [Entry(pytest.approx(60))]
    assert paper.table_1(gather([record("slr", 70, network=MODIFIED)])).keys["network"] == "resnet50_shot"
    with pytest.raises(OptionError, match="'x' was not measured for this"):
        paper.table_1(found, Choice(model="x"))


def test_severity_five_or_the_only_one() -> None:
    several = gather([record("slr", 50 + s, severity=s) for s in (3, 4, 5)])
    assert cells(paper.table_1(several), "Epoch 5 SLR") == [Entry(pytest.approx(55))]
    assert cells(paper.table_1(several, Choice(severity=3)), "Epoch 5 SLR") == [Entry(pytest.approx(53))]
    assert paper.table_1(gather([record("slr", 50, severity=2)])).keys["severity"] == 2
    with pytest.raises(OptionError, match="--severity one of 1, 2"):
        paper.table_1(gather([record("slr", 50, severity=s) for s in (1, 2)]))
    with pytest.raises(OptionError, match="--data one of 'cifar-10-c', 'imagenet-c'"):
        paper.table_1(gather([record("slr", 50), record("slr", 50, data={"name": "cifar-10-c"})]))


def test_protocols_are_not_mixed() -> None:
    found = gather([record("slr", 50), record("slr", 60, setting="few")])
    with pytest.raises(
        InputError, match=r"slr on fog was measured by several protocols \(setting few; setting paper"
    ):
        paper.table_1(found)


def test_markdown_and_html_survive_any_name() -> None:
    table = paper.table_1(gather(hostile_records()), Choice(data=HOSTILE))
    assert "<script>" not in FORMATS["markdown"]([table]).replace("\\<script\\>", "")
    assert len(FORMATS["json"]([table])) > 300


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_whatever_the_names(tmp_path: Path) -> None:
    found = gather(hostile_records())
    tables = [getattr(paper, name)(found) for name in paper.__all__]
    every = "".join(map(chr, range(32, 0x250)))
    tables.append(
        Table(every, (HOSTILE, HOSTILE), tuple(Row(f"{c}x", ("*",)) for c in "[*水-"), note=HOSTILE)
    )
    head = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs,graphicx,xcolor}"
    body = FORMATS["latex"](tables).replace(r"\end{table}", r"\end{table}\clearpage")
    path = tmp_path / "tables.tex"
    path.write_text(rf"{head}\begin{{document}}{chr(10)}{body}\end{{document}}", encoding="utf-8")
    command = ["pdflatex", "-draftmode", "-interaction=nonstopmode", "-halt-on-error", path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, re.findall(r"^!.*\n.*\n.*", said, re.M)
