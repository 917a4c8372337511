"""Render what `small_batches.py` measured: what small batches gain on the source, and where they lose."""

from __future__ import annotations

import json
from typing import Any

from pages import table
from records import RESULTS

Row = dict[str, Any]
_ALLOWED = -1.0  # points below the source


def small_batches() -> str:
    path = RESULTS / "small_batches.json"
    if not path.exists():
        return "Nothing yet."
    record = json.loads(path.read_text())
    rows: list[Row] = record["rows"]
    lines = []
    for row in rows:
        whole = next(
            (r for r in rows if _of(r) == _of(row) and (r["method"], r["batch"]) == ("bn", 64)), None
        )
        if row["method"] != "source":
            lines.append(_line(row, whole, record["protocol"]["kinds"]))
    heads = [
        "network", "stream", "method", "batch", "mean gain", "lowest gain (95%)", "of", "kinds below −1",
        "kinds where `bn` 64 gains", "of which less than half",
    ]  # fmt: skip
    images = ", ".join(
        f"{name} {count:,}" for name, count in {r["network"]: r["images"] for r in rows}.items()
    )
    told = (
        "Points gained on the source's accuracy, online, over 13 kinds of images: clean ones and the four "
        f"validation corruptions at severities 1, 3 and 5. Images of each kind: {images}. *Less than half*: "
        "kinds in which less than half is gained of what `bn` gains with batches of 64, which take a batch's "
        "own statistics."
    )
    origin = "; ".join(f"{name} {value}" for name, value in record["origin"].items())
    return (
        f"{told}\n\n{table(heads, lines, words=4)}\n\nProtocol: seed {record['protocol']['seed']}; {origin}."
    )


def _of(row: Row) -> tuple[Any, ...]:
    return row["network"], row["stream"], row["images"]


def _line(row: Row, whole: Row | None, kinds: list[str]) -> list[str]:
    gains = row["gain"]
    lowest = min(range(len(gains)), key=gains.__getitem__)
    low, high = row["interval"][lowest]
    best = [] if whole is None else [(g, b) for g, b in zip(gains, whole["gain"], strict=True) if b > 0]
    return [
        row["network"], row["stream"], f"`{row['method']}`", str(row["batch"]),
        f"{sum(gains) / len(gains):+.1f}", f"{gains[lowest]:+.1f} ({low:+.1f} to {high:+.1f})", kinds[lowest],
        str(sum(gain < _ALLOWED for gain in gains)), str(len(best)),
        str(sum(gain < 0.5 * reached for gain, reached in best)),
    ]  # fmt: skip
