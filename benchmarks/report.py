"""The report of 10,000 records: how long it takes to make, how large it is, how soon it can be used."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright
from records import write

from acclimate.records import read_records
from acclimate.report.page import build_page
from acclimate.report.reading import slim

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browsing import CHROMIUM
from made_records import many

COUNT, ROUNDS = 10_000, 5


def seconds_to_use(page: Path) -> float:
    """From opening the page to the table sorted by a column, median of several."""
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(ROUNDS):
            tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            begun = time.perf_counter()
            tab.goto(page.as_uri())
            tab.get_by_role("button", name="fog", exact=True).click()
            tab.locator("#results-table [aria-sort=descending]").wait_for()
            found.append(time.perf_counter() - begun)
        browser.close()
    return statistics.median(found)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, page = Path(folder) / "records.jsonl", Path(folder) / "report.html"
        source.write_text("".join(json.dumps(record) + "\n" for record in many(COUNT)))
        begun = time.perf_counter()
        records = read_records(source, keep=slim)
        read = time.perf_counter() - begun
        page.write_text(build_page(records), encoding="utf-8")
        whole = time.perf_counter() - begun
        row = {
            "records": COUNT,
            "MB of records": round(source.stat().st_size / 1e6, 1),
            "s to read": round(read, 1),
            "s in all": round(whole, 1),
            "MB of the page": round(page.stat().st_size / 1e6, 1),
            "s until sorted in the browser": round(seconds_to_use(page), 2),
        }
    print(row)
    write("report", {"rounds in the browser": ROUNDS, "classes": 10}, [row])


if __name__ == "__main__":
    main()
