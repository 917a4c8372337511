"""Charts of the page show what the records say, and nothing is mixed in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from acclimate.records import Record, read_records
from acclimate.report.page import build_page
from browsing import DESKTOP, PHONE, lines, needs_chromium, opened, scrolled
from made_records import measured
from test_report import DEMO


@needs_chromium
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_every_chart_is_drawn_in_any_size_and_scheme(
    browser: Browser, demo: Path, size: Any, scheme: str
) -> None:
    seen = opened(browser, demo, viewport=size, color_scheme=scheme)
    scrolled(seen.page)
    charts = seen.page.locator(".chart")
    assert charts.count() == 8
    assert seen.page.locator(".chart .plot.js-plotly-plot").count() == charts.count()
    assert seen.page.locator(".chart", has_text="nothing was measured").count() == 0
    assert seen.page.evaluate("document.documentElement.scrollWidth") == size["width"]  # only tables scroll
    paper = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")
    seen.page.locator("#theme").click()
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    seen.check()


@needs_chromium
def test_curves_are_those_of_the_records(browser: Browser, demo: Path) -> None:
    seen = opened(browser, demo)
    names = {name: dict(points) for name, points in lines(seen.page, "kappa").items()}
    assert list(names["slr"]) == ["κ = 0", "κ = 0.5", "κ = 0.9", "κ = 0.99"]
    shown = seen.page.locator("#kappa .plot").evaluate("plot => plot.data.map(line => line.x)")
    assert ["no L_div"] in shown
    records = [
        r
        for r in read_records(DEMO)
        if r["cell"]["method"] == "slr" and r["cell"]["overrides"] == {"kappa": 0.5}
    ]
    mean = sum(100 * r["result"]["after_epoch"]["5"]["accuracy"] for r in records) / len(records)
    assert names["slr"]["κ = 0.5"] == pytest.approx(mean, abs=1e-3)


def mixed() -> list[Record]:
    """Two networks, severities and data without corruptions that must not be mixed."""
    where = {"network": "one", "data": "c"}
    parts = {"subset": {"classes": 0.5}}
    return [
        *(measured("source", value, severity=v, **where) for v, value in ((1, 80.0), (5, 20.0))),
        *(measured("slr", value, severity=v, **where) for v, value in ((1, 90.0), (5, 30.0))),
        *(measured("slr", value, severity=v, **where, **parts) for v, value in ((1, 86.0), (5, 24.0))),
        measured("slr", 28.0, **where, overrides={"kappa": 0.5}),
        measured("slr", 11.0, **where, overrides={"kappa": 0.5, "delta": 1.0}),
        measured("tent", 50.0, severity=1, **where),
        *(measured(m, value, network="two", data="c") for m, value in (("source", 25.0), ("slr", 35.0))),
        *(
            measured("source", v, network="one", data=d, corruption=None, severity=None)
            for d, v in (("x", 80.0), ("y", 20.0))
        ),
        *(
            measured("slr", v, network="one", data=d, corruption=None, severity=None)
            for d, v in (("x", 81.0), ("y", 30.0))
        ),
    ]


@pytest.fixture(scope="module")
def mixed_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "report.html"
    path.write_text(build_page(mixed()), encoding="utf-8")
    return path


@needs_chromium
def test_charts_mix_neither_severities_nor_networks(browser: Browser, mixed_page: Path) -> None:
    seen = opened(browser, mixed_page)
    page = seen.page
    assert lines(page, "subsets")["slr"] == [(0.5, 24.0), (1, 30.0)]
    assert lines(page, "subsets")["source"] == [(0, 20.0), (1, 20.0)]
    assert lines(page, "kappa")["slr"] == [("κ = 0.5", 28.0), ("κ = 0.9", 30.0)]
    page.get_by_label("Severity").select_option("all")
    assert seen.column("mean")[:2] == ["50.00", "60.00"]
    assert seen.column("method") == ["source", "slr"]  # TENT lacks a severity
    assert lines(page, "subsets")["slr"] == [(0.5, 55.0), (1, 60.0)]
    assert lines(page, "subsets")["source"][0] == (0, 50.0)
    assert lines(page, "models") == {
        "source": [(0, 20.0), (1, 25.0)],
        "slr": [(0, 30.0), (1, 35.0)],
    }  # severity 5
    assert "that all networks have" in page.locator("#models .note").inner_text()
    assert [y for _, y in lines(page, "curves")["slr"]] == [56.0, 57.0, 58.0, 59.0, 60.0]
    assert "tent" in page.locator("#curves .note").first.inner_text()
    names = list(lines(page, "closer", 1))
    assert names[1:] == ["before: ECE 70.0 %", "after slr: ECE 60.0 %"]
    assert page.locator("#closer .note").first.inner_text() == "At severity 5."
    seen.check()


@needs_chromium
def test_data_without_corruptions_stand_by_themselves(browser: Browser, mixed_page: Path) -> None:
    seen = opened(browser, mixed_page)
    seen.page.get_by_label("Data").select_option("y (no corruption)")
    assert (seen.column("method"), seen.column("accuracy")) == (["source", "slr"], ["20.00", "30.00"])
    assert seen.column("gain") == ["0.00", "+10.00"]
    assert [y for _, y in lines(seen.page, "curves")["slr"]][-1] == 30.0
    assert lines(seen.page, "curves", 1)["slr"][-1] == (3, 30.0)
    assert list(lines(seen.page, "closer", 1))[1:] == ["before: ECE 70.0 %", "after slr: ECE 60.0 %"]
    seen.page.get_by_role("button", name="error", exact=True).click()
    assert seen.column("change") == ["0.00", "−10.00"]
    seen.check()


@needs_chromium
def test_variants_are_shown_on_demand_or_where_there_is_nothing_else(
    browser: Browser, mixed_page: Path, tmp_path: Path
) -> None:
    seen = opened(browser, mixed_page)
    assert seen.column("method") == ["source", "slr"]
    seen.page.get_by_label("variants").check()
    assert "slr on 0.5 of the classes" in seen.column("method")
    seen.page.get_by_label("Protocol").select_option("online")
    assert "slr on 0.5 of the classes" not in seen.column("method")  # measured on its part only
    path = tmp_path / "report.html"
    path.write_text(build_page([measured("slr", 50.0, overrides={"kappa": 0.5})]), encoding="utf-8")
    assert opened(browser, path).column("method") == ["slr, kappa 0.5"]
