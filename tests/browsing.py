"""Pages in Chromium: opened under observation, read back as people see them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

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
        """What stands under a head, row by row, without the intervals."""
        heads = self.page.locator("#results-table thead th").all_inner_texts()
        place = [re.sub(r"\s*[▾▴]", "", head).replace("\n", " ").strip() for head in heads].index(title)
        cells = self.page.locator(f"#results-table tbody tr > :nth-child({place + 1})").all_inner_texts()
        return [text.partition("\n")[0] for text in cells]


def opened(browser: Browser, path: Path, **options: Any) -> Seen:
    page = browser.new_context(**{"viewport": DESKTOP, **options}).new_page()
    page.set_default_timeout(120_000)  # a browser beside a busy processor takes longer than Playwright's 30 s
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


def number(text: str) -> float:
    return float(text.partition("±")[0].replace("−", "-"))
