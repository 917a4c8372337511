"""Fill the page on clusters: what the presets ask for, and what `cluster.py` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pages import DOCS, code, filled, table
from records import RESULTS

from acclimate.bench import PRESETS, Cell

PAGE = DOCS / "cluster.md"
IMAGES = {
    "imagenet-c": 50_000,
    "imagenet-r": 30_000,
    "imagenet": 50_000,
    "visda-c": 55_388,
    "cifar-10-c": 10_000,
    "cifar-100-c": 10_000,
}
"""Of the published data sets, of which a cell of a corruption and severity sees as many."""
SCALING = (
    "The same cells of the bundled network, one thread for each process, on two cores: what the estimator "
    "said before, and what they took. Ranks share the batches of one cell, workers the cells."
)
SPEED = 1000  # images per second, in the last column


def pages() -> dict[Path, str]:
    """What the page should be."""
    text = filled(PAGE.read_text(encoding="utf-8"), "grids", grids())
    return {PAGE: filled(text, "cluster", measured())}


def grids() -> str:
    """A row for each preset of published data."""
    rows = []
    for name, preset in PRESETS.items():
        cells = list(preset.cells())
        if cells[0].data.name not in IMAGES:
            continue
        passes = sum(_passes(cell) for cell in cells)
        networks = len({(cell.network.name, cell.network.weights) for cell in cells})
        rows.append(
            [code([name]), f"{networks}", f"{len(cells):,}", f"{passes / 1e6:,.0f}", f"{_hours(passes):,.0f}"]
        )
    heads = ["experiment", "networks", "cells", "million passes", f"hours at {SPEED:,} passes/s"]
    return table(heads, rows)


def _passes(cell: Cell) -> float:
    images = IMAGES[cell.data.name]
    if not cell.learns:
        return images
    part = 1.0 if cell.subset is None else (cell.subset.classes or 1.0) * (cell.subset.samples or 1.0)
    evaluations = len({*cell.evaluate, cell.epochs}) if cell.evaluate else cell.epochs
    return images * (cell.epochs * part + evaluations)


def _hours(passes: float) -> float:
    return passes / SPEED / 3600


def measured() -> str:
    """What the record says."""
    path = RESULTS / "cluster.json"
    if not path.exists():
        return "Nothing yet."
    record = json.loads(path.read_text())
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        parts.setdefault(row["part"], []).append(row)
    told = []
    if "scaling" in parts:
        told += [SCALING, _scaling(parts["scaling"])]
    for row in parts.get("ray", []):
        told.append(
            f"{row['cells']} cells on a local Ray cluster of {row['workers']} workers, one of them "
            f"killed after {row['killed_after_records']} records: {row['failed']} failed, and the records "
            f"{_equal(row)} those of one process."
        )
    for row in parts.get("shards", []):
        told.append(
            f"{row['cells']} cells in {row['shards']} shards, merged: the records {_equal(row)} those of one "
            "process."
        )
    facts = {**record["protocol"], **record["origin"]}
    told.append("Protocol: " + "; ".join(f"{name} {value}" for name, value in facts.items()) + ".")
    return "\n\n".join(told)


def _equal(row: dict[str, Any]) -> str:
    return "equal" if row["equal_to_one_process"] else "do not equal"


def _scaling(rows: list[dict[str, Any]]) -> str:
    shown = []
    for row in rows:
        alone = next(other for other in rows if other["what"] == row["what"] and other["count"] == 1)
        error = 100 * (row["estimated_s"] / row["measured_s"] - 1)
        speedup = alone["measured_s"] / row["measured_s"]
        shown.append(
            [
                f"{row['count']} {row['what'] if row['count'] > 1 else row['what'].removesuffix('s')}",
                f"{row['cells']}",
                f"{row['estimated_s']:.0f}",
                f"{row['measured_s']:.0f}",
                f"{error:+.0f} %",
                f"{speedup:.2f}×",
            ]
        )
    heads = ["by", "cells", "estimated s", "measured s", "error", "faster than one"]
    return table(heads, shown)
