"""Render what `normalisation.py` measured: how often the probe of the normalisation is wrong."""

from __future__ import annotations

import json
from typing import Any

from pages import table
from records import RESULTS

Row = dict[str, Any]


def normalisation() -> str:
    path = RESULTS / "normalisation.json"
    if not path.exists():
        return "Nothing yet."
    record = json.loads(path.read_text())
    rows: list[Row] = record["rows"]
    shifted = [row for row in rows if row["corruption"] != "clean"]
    clean = [row for row in rows if row["known_clean"]]
    lines = []
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [[row for row in part if row["network"] == name] for part in (clean, shifted)]
        lines.append(_line(name, *own))
    lines.append(_line("**all**", clean, shifted))
    heads = [
        "network", "clean: wrong given, named", "clean: wrong advice", "corrupted: cells",
        "wrong given, named", "all wrong ones named", "wrong advice", "wrong by the closest divergence",
    ]  # fmt: skip
    protocol = record["protocol"]
    text = (
        f"On {protocol['images']} images, clean (`clean=True`) and under nineteen corruptions of five "
        "severities (not known to be clean). *Named*: of the common normalisations that the network was not "
        "trained with, given one after the other, those that are called wrong or doubtful. *Wrong advice*: "
        "cells in which the right one is called so, or one that is not right is said to fit better. The last "
        "column is what a rule would have got wrong that names the normalisation which brings the images "
        "closest to what is remembered, with the right one given."
    )
    origin = "; ".join(f"{name} {value}" for name, value in record["origin"].items())
    return f"{text}\n\n{table(heads, lines)}\n\nLimits set on {protocol['limits_set_on']}; {origin}."


def _line(name: str, clean: list[Row], shifted: list[Row]) -> list[str]:
    named = sum(len(row["named"]) for row in shifted)
    wrong = sum(bool(row["wrong_advice"]) for row in shifted)
    return [
        name,
        f"{sum(len(row['named']) for row in clean)} of {sum(row['of'] for row in clean)}",
        f"{sum(bool(row['wrong_advice']) for row in clean)}",
        f"{len(shifted)}",
        f"{_percent(named, sum(row['of'] for row in shifted))}",
        f"{_percent(sum(len(row['named']) == row['of'] for row in shifted), len(shifted))}",
        f"{wrong} ({_percent(wrong, len(shifted))})",
        f"{sum(row['closest'] is not None for row in shifted)}",
    ]


def _percent(count: int, of: int) -> str:
    return f"{100 * count / max(1, of):.1f}%"
