"""Draw docs/report.png: the first screen of the report of the committed records, in Chromium."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from acclimate.records import read_records
from acclimate.report.page import build_page

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results" / "bench_demo.jsonl.gz"
TARGET = ROOT / "docs" / "report.png"
WIDTH, HEIGHT = 1280, 1960


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        page_file.write_text(build_page(read_records(RECORDS)), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(page_file.as_uri())
        page.locator("#curves .js-plotly-plot .main-svg").nth(1).wait_for()
        page.wait_for_timeout(1000)
        page.screenshot(path=TARGET)
        browser.close()
    Image.open(TARGET).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
