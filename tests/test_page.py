"""The page in a real browser: it sorts, filters and switches, asks for nothing, and shows names as text."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from acclimate.records import Record, read_records
from acclimate.report.formats import calm
from acclimate.report.page import build_page
from made_records import failed, many, measured, unlabelled
from test_report import HOSTILE

DEMO = Path(__file__).parents[1] / "benchmarks/results/bench_demo.jsonl.gz"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@dataclass
class Seen:
    """A page, and all that it said and asked for."""

    page: Page
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def check(self) -> None:
        assert self.messages == []
        assert [url for url in self.requests if not url.startswith(("data:", "blob:"))] == self.requests[:1]
        assert self.requests[0].startswith("file://")

    def column(self, title: str) -> list[str]:
        """What stands under a head, row by row."""
        heads = self.page.locator("#results-table thead th").all_inner_texts()
        place = [re.sub(r"\s*[▾▴]", "", head).replace("\n", " ").strip() for head in heads].index(title)
        return self.page.locator(f"#results-table tbody tr > :nth-child({place + 1})").all_inner_texts()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Browser, path: Path, **options: Any) -> Seen:
    page = browser.new_context(**{"viewport": DESKTOP, **options}).new_page()
    seen = Seen(page)
    page.on("console", lambda message: seen.messages.append(message.text))
    page.on("pageerror", lambda error: seen.messages.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(path.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-ready]")
    return seen


def scrolled(page: Page) -> None:
    """To every chart: they are drawn when they come into sight."""
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator(".js-plotly-plot .main-svg").first.wait_for()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(build_page(read_records(DEMO)), encoding="utf-8")
    return path


def number(text: str) -> float:
    return float(text.partition("±")[0].replace("−", "-"))


@needs_chromium
def test_a_column_is_sorted(browser: Browser, demo: Path) -> None:
    seen = opened(browser, demo)
    before = seen.column("fog")
    seen.page.get_by_role("button", name="fog", exact=True).click()
    falling = [number(text) for text in seen.column("fog") if text]
    assert falling == sorted(map(number, filter(None, before)), reverse=True)
    assert seen.column("method")[0] == "oracle"
    seen.page.get_by_role("button", name="fog", exact=True).click()
    assert [number(text) for text in seen.column("fog") if text] == falling[::-1]
    seen.page.get_by_role("button", name="fog", exact=True).click()
    assert seen.column("fog") == before
    seen.check()


@needs_chromium
def test_corruptions_are_filtered_and_the_mean_follows(browser: Browser, demo: Path) -> None:
    seen = opened(browser, demo)
    heads = seen.page.locator("#results-table thead th")
    assert heads.count() == 3 + 15
    seen.page.locator("#corruptions summary").click()
    for name in seen.page.locator("#corruptions input:checked").evaluate_all(
        "all => all.map(one => one.value)"
    ):
        if name not in ("fog", "contrast"):
            seen.page.locator(f"#corruptions input[value='{name}']").uncheck()
    assert heads.all_inner_texts()[3:] == ["fog", "contrast"]
    rows = zip(*(seen.column(title) for title in ("mean", "gain", "fog", "contrast")), strict=True)
    shown = [tuple(map(number, row)) for row in rows]
    for mean, gain, fog, contrast in shown:
        assert mean == pytest.approx((fog + contrast) / 2, abs=0.011)
        assert gain == pytest.approx(mean - shown[0][0], abs=0.011)
    seen.page.get_by_role("button", name="validation", exact=True).click()
    assert heads.all_inner_texts()[3:] == ["speckle noise", "gaussian blur", "spatter", "saturate"]
    seen.check()


@needs_chromium
def test_metric_and_protocol_are_switched(browser: Browser, demo: Path) -> None:
    seen = opened(browser, demo)
    accuracy = [number(text) for text in seen.column("fog") if text]
    seen.page.get_by_role("button", name="error", exact=True).click()
    assert [number(text) for text in seen.column("fog") if text] == pytest.approx(
        [100 - v for v in accuracy], abs=0.011
    )
    seen.page.get_by_role("button", name="accuracy", exact=True).click()
    seen.page.get_by_label("Protocol").select_option("online")
    records = [
        r for r in read_records(DEMO) if r["cell"]["corruption"] == "fog" and r["cell"]["method"] == "slr"
    ]
    plain = [
        r
        for r in records
        if not r["cell"]["overrides"] and not r["cell"]["subset"] and r["cell"]["network"]["name"] == "demo"
    ]
    online = sum(100 * r["result"]["online"]["accuracy"] for r in plain) / len(plain)
    shown = dict(zip(seen.column("method"), seen.column("fog"), strict=True))
    assert number(shown["slr"]) == pytest.approx(online, abs=0.006)
    seen.page.get_by_label("Network").select_option("demo-shot")
    assert seen.column("method")[0] == "source"
    seen.check()


@needs_chromium
def test_the_table_is_that_of_the_records_and_the_static_one_the_same(browser: Browser, demo: Path) -> None:
    seen = opened(browser, demo)
    live = seen.page.locator("#results-table tbody tr").all_inner_texts()
    still = opened(browser, demo, java_script_enabled=False)
    static = still.page.locator("#static table").first.locator("tbody tr").all_inner_texts()
    assert [line.replace("+0.00", "0.00") for line in static] == live
    assert still.page.locator("#claims").is_visible()
    assert not still.page.locator("#charts-curves").is_visible()
    assert still.page.locator("noscript").count() == 1


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


def hostile() -> list[Record]:
    records = [
        measured(m, a, network=HOSTILE, data=HOSTILE)
        for m, a in (("source", 30.0), ("slr", 50.0), ("tent", 40.0))
    ]
    records += [measured("slr+it", 60.0, network=HOSTILE, data=HOSTILE, ssim=(0.5, 0.6)), failed(HOSTILE)]
    records[3]["result"]["gallery"][0]["name"] = HOSTILE
    for record in records[:4]:
        record["spec"]["class_names"] = [f"{number}{HOSTILE}" for number in range(10)]
    return [*records, unlabelled(HOSTILE, class_names=[f"{HOSTILE}{n}" for n in range(10)], file=HOSTILE)]


class Tags(HTMLParser):
    """The tags of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)


def test_names_add_no_tag() -> None:
    tame = json.loads(json.dumps(hostile()).replace(json.dumps(HOSTILE)[1:-1], "x"))
    counts = []
    for page in (build_page(hostile()), build_page(tame)):
        tags = Tags()
        tags.feed(page)
        counts.append(tags.found)
    assert counts[0] == counts[1]


@needs_chromium
def test_names_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(build_page(hostile()), encoding="utf-8")
    for size in (DESKTOP, PHONE):
        seen = opened(browser, path, viewport=size)
        scrolled(seen.page)
        assert calm(HOSTILE) in seen.page.locator("h1").inner_text()
        assert calm(HOSTILE) in seen.page.locator("#failures").inner_text()
        assert calm(HOSTILE) in (seen.page.locator("#gallery img").first.get_attribute("alt") or "")
        ticks = seen.page.locator("#closer .xaxislayer-above text").first.text_content() or ""
        assert ticks.startswith('0<script>alert("1")<')
        assert seen.page.evaluate("document.documentElement.scrollWidth") == size["width"]
        seen.check()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A page of 10,000 records, and the seconds it took."""
    path = tmp_path_factory.mktemp("large") / "report.html"
    records = many(10_000)
    begun = time.perf_counter()
    path.write_text(build_page(records), encoding="utf-8")
    return path, time.perf_counter() - begun


def test_a_page_of_ten_thousand_records_is_made_soon_and_small(large: tuple[Path, float]) -> None:
    path, seconds = large
    assert seconds < 20
    assert path.stat().st_size < 15 * 2**20


@needs_chromium
def test_a_page_of_ten_thousand_records_can_soon_be_used(browser: Browser, large: tuple[Path, float]) -> None:
    begun = time.perf_counter()
    seen = opened(browser, large[0])
    seen.page.get_by_role("button", name="fog", exact=True).click()
    assert time.perf_counter() - begun < 3
    assert seen.column("fog")[0]
    seen.check()


def test_an_adaptation_without_labels_has_a_page_too() -> None:
    page = build_page([unlabelled()])
    assert 'id="charts-unlabelled"' in page
    assert 'id="results"' not in page
    assert "acclimate adapt --model net" in page
    assert "Caution: the predictions fall on few classes." in page


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


def lines(page: Page, section: str, number: int = 0) -> dict[str, list[tuple[Any, float]]]:
    """What a chart shows, by the name of the line."""
    chart = page.locator(f"#{section} .chart").nth(number)
    chart.scroll_into_view_if_needed()
    page.locator(f"#{section} .chart:not([data-stale]) .main-svg").first.wait_for()
    page.wait_for_function("chart => !chart.dataset.stale", arg=chart.element_handle())
    found = chart.locator(".plot").evaluate(
        "plot => plot.data.filter(line => line.showlegend !== false).map(line => [line.name, line.x, line.y])"
    )
    return {name: list(zip(x, y, strict=True)) for name, x, y in found}


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
