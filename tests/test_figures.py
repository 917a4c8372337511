"""Figures show what the records hold, look as a paper wants them, and say what they lack."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from typer.testing import CliRunner

from acclimate.bench.presets import FRACTIONS
from acclimate.bench.spec import ORACLE
from acclimate.cli import app
from acclimate.corruptions import VALIDATION_NAMES
from acclimate.errors import AcclimateWarning, InputError, OptionError
from acclimate.methods import METHODS
from acclimate.records import Record, pack_records, write_record
from acclimate.report import paper
from acclimate.report.architecture import architecture_figure
from acclimate.report.bars import figure_2
from acclimate.report.choose import Choice
from acclimate.report.curves import figure_3, figure_a2
from acclimate.report.drawn_table import draw_table
from acclimate.report.figures import FIGURES, Request, kind_of, save
from acclimate.report.gather import Gathered, gather
from acclimate.report.losses import losses_figure
from acclimate.report.palette import COLORS, color_of, marker_of
from acclimate.report.style import save_figure
from paper_records import STOCK, hostile_records, over_seeds, record

CLEAN: dict[str, Any] = {"corruption": None, "severity": None}
OTHER = {"name": "densenet121.IMAGENET1K_V1", "weights": None}


def bars(axes: Axes) -> dict[str, list[float]]:
    return {
        str(found.get_label()): [bar.get_height() for bar in found.patches]
        for found in axes.containers
        if isinstance(found, BarContainer)
    }


def spreads(found: ErrorbarContainer) -> list[float]:
    """Half the height of each error bar."""
    (lines,) = found[2]
    return [float(np.ptp(segment[:, 1])) / 2 if len(segment) else 0.0 for segment in lines.get_segments()]


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(found.get_label()): (list(found[0].get_xdata()), list(found[0].get_ydata()))
        for found in axes.containers
        if isinstance(found, ErrorbarContainer)
    }


def some_records() -> list[Record]:
    """Two corruptions, subsets, several κ; enough for every figure of records but SHOT's and VisDA-C's."""
    records = [record("source", 20), record("source", 10, corruption="snow"), record("source", 80, **CLEAN)]
    for number, method in enumerate(("tent", "tent+", "hlr", "slr", "slr+it")):
        ssim = {"before": 0.4, "after": 0.5} if method == "slr+it" else None
        records += over_seeds(method, (40 + number, 1), (35 + number, 2), ssim=ssim)
        records += over_seeds(method, (30 + number, 2), corruption="snow", ssim=ssim)
        records += over_seeds(method, (70 + number, 1), **CLEAN)
    for kind, fraction in itertools.product(("classes", "samples"), FRACTIONS):
        subset = {"classes": None, "samples": None, kind: fraction}
        records += over_seeds("slr", (20 + 20 * fraction, 1), subset=subset)
        records += [record("tent", 60 - 10 * fraction, subset=subset, corruption="snow")]
    for number, name in enumerate(VALIDATION_NAMES[:2]):
        for method in ("hlr", "slr"):
            records += over_seeds(method, (60 + number, 1), corruption=name)
            records += over_seeds(f"{method}-div", (10 + number, 1), corruption=name)
            for kappa in (0.0, 0.99):
                values = (50 + number + kappa, 3)
                records += over_seeds(method, values, corruption=name, overrides={"kappa": kappa})
    return records


def test_figure_2_has_the_means_over_corruptions_and_severities() -> None:
    records = []
    for network, corruption, severity in itertools.product((STOCK, OTHER), ("fog", "snow"), (1, 5)):
        where: dict[str, Any] = {"network": network, "corruption": corruption, "severity": severity}
        base = 40 + 10 * (network is OTHER) + severity + 2 * (corruption == "fog")
        records += [record("source", base - 20, **where), *over_seeds("slr", (base, 2), **where)]
    for data, value in (("imagenet", 70), ("imagenet-r", 30)):
        records += over_seeds("slr", (value, 1), **CLEAN, data={"name": data})
    shifted, renditions, clean = figure_2(gather(records)).axes
    assert bars(shifted) == {
        "No Adaptation": pytest.approx([24, 34]),  # means over severities 1 and 5, fog and snow
        "SLR": pytest.approx([44, 54]),
    }
    (slr,) = [c for c in shifted.containers if isinstance(c, BarContainer) and c.get_label() == "SLR"]
    assert slr.errorbar is not None
    assert spreads(slr.errorbar) == pytest.approx([2, 2])
    assert slr.patches[0].get_facecolor()[:3] == pytest.approx(
        tuple(int(COLORS["slr"][i : i + 2], 16) / 255 for i in (1, 3, 5))
    )
    assert shifted.get_title("left") == "imagenet-c, 2 corruptions at severities 1 to 5"
    assert (renditions.get_title("left"), bars(renditions)) == ("imagenet-r", {"SLR": pytest.approx([30])})
    assert (clean.get_title("left"), bars(clean)) == ("imagenet, clean", {"SLR": pytest.approx([70])})


def test_figure_2_leaves_out_what_has_no_comparable_mean() -> None:
    records = [record("slr", 50), record("slr", 40, corruption="snow"), record("tent", 99)]
    with pytest.warns(AcclimateWarning, match=r"tent of resnet50.* is left out: it has 1 of 2"):
        (axes,) = figure_2(gather(records)).axes
    assert bars(axes) == {"SLR": pytest.approx([45])}
    both = [record("slr", 50), record("slr", 40, corruption="snow"), record("slr", 60, network=OTHER)]
    (axes,) = figure_2(gather(both)).axes  # fog is all that both have
    assert bars(axes) == {"SLR": pytest.approx([50, 60])}
    (axes,) = figure_2(gather(both), Choice(model=OTHER["name"])).axes
    assert bars(axes) == {"SLR": pytest.approx([60])}
    with pytest.raises(OptionError, match="in common: choose one by --model"):
        figure_2(gather([record("slr", 50), record("slr", 60, network=OTHER, corruption="snow")]))


def test_figure_3_has_the_accuracies_by_fraction() -> None:
    figure = figure_3(gather(some_records()))
    top_snow, top_fog, low_snow, low_fog = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["Snow", "Fog", "", ""]
    for axes in (top_fog, low_fog):
        assert lines(axes) == {
            "SLR": ([*FRACTIONS, 1.0], pytest.approx([*(20 + 20 * f for f in FRACTIONS), 43]))
        }
        (found,) = axes.containers
        assert spreads(found) == pytest.approx([1, 1, 1, 1, 1])
    # the whole has three seeds, 30 on the mean; the parts have one of them, which has 28
    expected = pytest.approx([*(60 - 10 * f for f in FRACTIONS), 28])
    for axes in (top_snow, low_snow):
        assert lines(axes)["TENT"] == ([*FRACTIONS, 1.0], expected)
        (source,) = [line for line in axes.lines if line.get_label() == "No Adaptation"]
        assert (source.get_ydata()[0], source.get_linestyle()) == (pytest.approx(10), "--")
    assert [axes.get_xlabel() for axes in (top_fog, low_fog)] == [
        "fraction of classes",
        "fraction of samples",
    ]
    assert top_fog.get_ylim() == low_fog.get_ylim()


def test_figure_a2_has_the_accuracies_by_kappa() -> None:
    figure = figure_a2(gather(some_records()))
    assert [axes.get_title() for axes in figure.axes] == ["(a) HLR", "(b) SLR"]
    for axes in figure.axes:
        assert [text.get_text() for text in axes.get_xticklabels()] == [
            "0", "0.9", "0.99", r"no $L_\mathrm{div}$",
        ]  # fmt: skip
        own = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
        first, without, second, without_too = own
        assert list(first[0].get_ydata()) == pytest.approx([50, 60, 50.99])
        assert list(second[0].get_ydata()) == pytest.approx([51, 61, 51.99])
        assert [round(x) for x in first[0].get_xdata()] == [0, 1, 2]
        assert spreads(first) == pytest.approx([3, 1, 3])
        assert [round(x) for x in without[0].get_xdata()] == [3]
        assert list(without[0].get_ydata()) == pytest.approx([10])
        assert list(without_too[0].get_ydata()) == pytest.approx([11])


def test_the_methods_own_kappa_is_that_of_its_record() -> None:
    records = [record("slr", 60), record("slr", 50, overrides={"kappa": 0.5})]
    records[0]["spec"]["method"] = {"kappa": 0.25}
    (axes,) = figure_a2(gather(records)).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.25", "0.5"]
    assert next(iter(lines(axes).values()))[1] == pytest.approx([60, 50])


@pytest.mark.parametrize(
    ("draw", "what"), [(figure_2, "accuracies"), (figure_3, "a subset"), (figure_a2, "several κ")]
)
def test_figures_say_what_is_missing(draw: Any, what: str) -> None:
    with pytest.raises(InputError, match=f"no .*{what}.*`acclimate bench .*` makes them"):
        draw(gather([record("slr", 50, corruption="spatter")]))


def test_lines_of_several_protocols_are_not_joined() -> None:
    subset = {"classes": 0.5, "samples": None}
    few = record("slr", 50, subset=subset, setting="few")
    with pytest.raises(InputError, match="several protocols"):
        figure_3(gather([few, record("slr", 40, subset=subset)]))


def test_figure_1_has_losses_below_zero_and_their_gradients() -> None:
    left, right = losses_figure().axes
    for line in left.lines:
        assert max(line.get_ydata()) == pytest.approx(0)
    gradients = {line.get_label(): np.asarray(line.get_ydata()) for line in right.lines}
    assert (gradients["hard likelihood ratio (HLR)"] == -1).all()
    entropy, confidence = gradients["entropy (TENT)"], np.asarray(right.lines[0].get_xdata())
    assert confidence[entropy.argmin()] == pytest.approx(0.82, abs=0.01)  # as the paper says


def texts(figure: Figure) -> list[Any]:
    """Where all words of a figure are."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    shown = [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        shown += [child for child in axes.get_children() if isinstance(child, Text)]
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            shown += [axis.label, *(tick.label1 for tick in ticks if tick.label1.get_visible())]
    return [text.get_window_extent(canvas.get_renderer()) for text in shown if text.get_text()]


DRAWN: dict[str, Callable[[Gathered], Figure]] = {
    "figure-1": lambda found: losses_figure(),
    "figure-2": figure_2,
    "figure-3": figure_3,
    "figure-a1": lambda found: architecture_figure(),
    "figure-a2": figure_a2,
    "table-1": lambda found: draw_table(paper.table_1(found)),
    "table-a1": lambda found: draw_table(paper.table_a1(found)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_leaves_its_figure_and_none_lies_on_another(name: str) -> None:
    figure = DRAWN[name](gather(some_records()))
    width, height = figure.get_size_inches() * figure.dpi
    found = texts(figure)
    assert len(found) > 10
    for box in found:
        assert box.x0 > -1
        assert box.x1 < width + 1
        assert box.y0 > -1
        assert box.y1 < height + 1
    for one, other in itertools.combinations(found, 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        down = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert min(across, down) < 2.5, (one, other)  # pixels


@pytest.mark.parametrize("name", DRAWN)
def test_pdfs_have_one_page_and_embedded_truetype_fonts(name: str, tmp_path: Path) -> None:
    figure = DRAWN[name](gather(some_records()))
    save_figure(figure, tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert b"/Type3" not in content
    assert b"/FontFile2" in content
    assert figure.get_figwidth() <= 6.9 + 1e-6
    save_figure(DRAWN[name](gather(some_records())), tmp_path / "b.pdf")
    assert (tmp_path / "b.pdf").read_bytes() == content  # the same records, the same file


def test_hostile_names_are_drawn(tmp_path: Path) -> None:
    found = gather(hostile_records())
    for name in paper.__all__:
        save(getattr(paper, name)(found), tmp_path / f"{name}.pdf")
    save_figure(figure_2(found), tmp_path / "bars.png")
    dollars = {"network": {**STOCK, "name": r"$\frac$ $"}, "data": {"name": r"$\x$"}}
    save_figure(figure_2(gather([record("slr", 5, **dollars)])), tmp_path / "bars.svg")
    assert all(path.stat().st_size > 1000 for path in tmp_path.iterdir())


def test_every_method_has_its_own_colour_and_marker() -> None:
    assert {*METHODS, ORACLE, "slr+it"} <= set(COLORS)
    assert len(set(COLORS.values())) == len(COLORS)
    assert len({marker_of(name) for name in COLORS}) == len(COLORS)
    extended = ["hlr+shot", "slr+shot", "slr+it", "hlr", "slr", "shot"]
    assert len({color_of(name) for name in extended}) == len(extended)
    assert all(re.fullmatch("#[0-9a-f]{6}", color_of(name)) for name in (*extended, "mine", "tent++it", ""))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A file of records."""
    folder = tmp_path / "records"
    folder.mkdir()
    for number, one in enumerate(some_records()):
        write_record(folder / f"{number}.json", one)
    pack_records(folder, tmp_path / "results.jsonl.gz")
    return tmp_path / "results.jsonl.gz"


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["figures", *map(str, words)])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("name", ["figure-2", "figure-3", "figure-a2", "table-1", "table-2", "table-a1"])
def test_figures_of_records_are_written(
    name: str, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(name, results) == (0, f"{name}.pdf")
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        assert run(name, results, "--out", f"a{suffix}")[0] == 0
        assert (tmp_path / f"a{suffix}").read_bytes().startswith(start)


def test_tables_are_written_as_text(results: Path, tmp_path: Path) -> None:
    for suffix in (".tex", ".md", ".csv", ".json"):
        assert run("table-a1", results, "--out", tmp_path / f"a{suffix}")[0] == 0
    assert r"\textbf{43.00}$\pm$1.00" in (tmp_path / "a.tex").read_text("utf-8")
    assert "**43.00** ± 1.00" in (tmp_path / "a.md").read_text("utf-8")
    assert "Epoch 5: SLR" in (tmp_path / "a.csv").read_text("utf-8")
    (table,) = json.loads((tmp_path / "a.json").read_text("utf-8"))
    values = {(f["row"], f["column"]): f["value"] for f in table["figures"]}
    assert values["Fog", "Epoch 5: SLR"] == pytest.approx(43)
    code, said = run("figure-2", results, "--out", tmp_path / "a.tex")
    assert (code, "ends in '.pdf', '.png', '.svg'" in said) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["figur-3"], "unknown figure 'figur-3': did you mean 'figure-3'"),
        (["table-1"], "table-1 is made of records: name the folders or files of `acclimate bench`"),
        (["table-1", "nowhere"], "there is nothing at nowhere"),
        (["corruptions"], "corruptions is made of one image, got 0"),
        (["losses", "x.jsonl"], "losses is made of nothing but itself"),
        (["losses", "--model", "demo"], "losses has no --model"),
        (["table-1", "x", "--tile", "40"], "table-1 has no --tile"),
    ],
)
def test_what_cannot_be_made_is_said(words: list[str], message: str) -> None:
    code, said = run(*words)
    assert code == 2
    assert message in said


def test_help_lists_every_name_with_a_line() -> None:
    said = run("--help")[1]
    for name, kind in FIGURES.items():
        assert f"{name}: {kind.summary.split()[0]}" in said
    with pytest.raises(OptionError, match="known are"):
        kind_of("xyzzy")


def test_names_of_before_still_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("losses") == (0, "losses.png")
    Image.fromarray(np.full((40, 40, 3), 99, np.uint8)).save("photo.png")
    assert run("corruptions", "photo.png", "--size", 32, "--tile", 16)[0] == 0
    with Image.open("corruptions.png") as sheet:
        assert sheet.format == "PNG"
    made = FIGURES["figure-a1"].make(Request())
    save(made, tmp_path / "a.jpg")
    with Image.open("a.jpg") as picture:
        assert picture.size[0] == 2070
