"""Fill the page on trust: what the guard looks at, and what `trust.py`, `streams.py` and others measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fault_tables import fault_sections
from pages import DOCS, code, filled, of_which_images, table
from records import RESULTS

from acclimate.guard import SIGNALS

PAGE = DOCS / "trust.md"
Row = dict[str, Any]


def pages() -> dict[Path, str]:
    """What the page should be."""
    text = PAGE.read_text(encoding="utf-8")
    parts = {
        "limits": limits,
        "signals": signals,
        "guard": guard,
        "gate": gate,
        "calibration": calibration,
        "streams": streams,
    }
    for mark, make in parts.items():
        text = filled(text, mark, make())
    return {PAGE: filled(text, "faults", fault_sections())}


def signals() -> str:
    rows = []
    for name, signal in SIGNALS.items():
        bounds = [f"below {signal.low:.3g}"] if signal.low > -1e300 else []
        bounds += [f"above {signal.high:.3g}"] if signal.high < 1e300 else []
        rows.append([code([name]), signal.what, "" if name == "finite" else " or ".join(bounds)])
    return table(["signal", "what it says", "alarm"], rows, words=3)


def _record(name: str) -> Row:
    path = RESULTS / f"{name}.json"
    found: Row = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return found


def _part(name: str) -> list[Row]:
    return [row for row in _record("trust")["rows"] if row["part"] == name]


def _told(record: Row) -> str:
    facts = {**record["protocol"], **record["origin"]}
    plain = {name: value for name, value in facts.items() if not isinstance(value, dict)}
    return (
        "Protocol: " + "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in plain.items()) + "."
    )


def _images() -> str:
    told = of_which_images(_record("trust"))
    return f" Of the network `cifar`: {told}" if told else ""


def limits() -> str:
    """Where the guard lets a network be ruined."""
    record = _record("limits")
    if not record["rows"]:
        return "Nothing yet."
    stream = [row for row in record["rows"] if row["part"] == "sorted"]
    batches = {row["batch"]: [own for own in stream if own["batch"] == row["batch"]] for row in stream}
    shown = "; ".join(
        f"in batches of {batch} " + ", ".join(f"`{row['method']}` {row['accuracy']:.1f}" for row in rows)
        for batch, rows in batches.items()
    )
    alarms = sum(len(row["alarms"]) for row in stream)
    text = (
        f"CIFAR-10's ResNet-20, {record['protocol']['sorted']}; accuracy in %: {shown}; {alarms or 'no'} "
        f"alarms. And learning rates far too high, {record['protocol']['rates']}:"
    )
    rows = [
        [code([row["method"]]), f"{row['times']:,.0f}", f"{row['source']:.1f}", f"{row['bn']:.1f}",
         f"{row['accuracy']:.1f}", code(row["alarms"]) or "none"]
        for row in record["rows"] if row["part"] == "rates"
    ]  # fmt: skip
    heads = ["method", "times the default", "source", "bn", "accuracy % after it", "alarms"]
    return f"{text}\n\n{table(heads, rows)}\n\n{_told(record)}"


def _mean(rows: Iterable[Row], value: Callable[[Row], float]) -> float:
    return statistics.fmean(value(row) for row in rows)


def guard() -> str:
    high, default, cost = _part("too-high"), _part("default"), _part("cost")
    if not high:
        return "Nothing yet."
    rows = []
    for data in dict.fromkeys(row["data"] for row in high):
        for method in dict.fromkeys(row["method"] for row in high):
            own = [row for row in high if (row["data"], row["method"]) == (data, method)]
            rows.append([data, code([method]), *_guarded(own)])
    heads = [
        "network",
        "method",
        "bn",
        "without the guard",
        "worst against bn",
        "with it",
        "worst against bn",
        "alarms",
    ]
    times = _record("trust")["protocol"]["times_too_high"]
    text = [
        f"Learning rates {times:.0f} times the default, severity 5: mean accuracy in % over all nineteen "
        "corruptions of the bundled network and CIFAR-10's four validation corruptions (ResNet-20), the "
        "worst difference to `bn` on any of them, and alarms per run." + _images(),
        table(heads, rows, words=2),
    ]
    alarms = sum(bool(row["alarms"]) for row in default)
    text.append(f"With the defaults, {len(default)} runs gave {alarms} alarms.")
    for row in cost:
        text.append(
            f"What the guard does, timed by itself, is {row['percent']:.3f}% of a step of ResNet-50 with "
            f"batches of {row['batch']}: {row['watching_ms']} ms in every step, and "
            f"{row['copying_ms']} ms for a state in every tenth, beside {row['step_ms']:,.0f} ms."
        )
    return "\n\n".join([*text, _told(_record("trust"))])


def _guarded(rows: Sequence[Row]) -> list[str]:
    shown = [f"{_mean(rows, lambda row: row['bn']):.1f}"]
    for watched in (False, True):
        own = [row for row in rows if row["guard"] == watched]
        if not own:
            shown += ["", ""]
            continue
        worst = min(row["accuracy"] - row["bn"] for row in own)
        shown += [f"{_mean(own, lambda row: row['accuracy']):.1f}", f"{worst:+.1f}"]
    return [*shown, f"{_mean([r for r in rows if r['guard']], lambda row: len(row['alarms'])):.1f}"]


def gate() -> str:
    rows = [row for row in [*_part("too-high"), *_part("default")] if "accepted" in row]
    if not rows:
        return "Nothing yet."
    sorts = {
        "the defaults": [r for r in rows if r["times"] == 1.0 and r["corruption"] != "clean"],
        "the defaults, clean images": [r for r in rows if r["times"] == 1.0 and r["corruption"] == "clean"],
        "rate too high, with the guard": [r for r in rows if r["times"] > 1 and r["guard"]],
        "rate too high, without": [r for r in rows if r["times"] > 1 and not r["guard"]],
    }
    lines = [[name, *_confusion(own)] for name, own in sorts.items()]
    lines.append(["**all**", *_confusion(rows)])
    heads = ["runs", "number", "better, accepted", "better, refused", "worse, accepted", "worse, refused",
             "points lost by wrong decisions"]  # fmt: skip
    text = (
        "The truth is the accuracy of the adapted network against that of the source on the same images, for "
        "every run of the tables above; equal counts as better. The last column is what wrong decisions "
        "cost, as a mean over all runs." + _images()
    )
    return f"{text}\n\n{table(heads, lines)}"


def _confusion(rows: Sequence[Row]) -> list[str]:
    better = [row["accuracy"] >= row["source"] for row in rows]
    cells = [
        sum(b == wanted and row["accepted"] == said for b, row in zip(better, rows, strict=True))
        for wanted in (True, False)
        for said in (True, False)
    ]
    lost = [
        abs(row["accuracy"] - row["source"]) if row["accepted"] != b else 0.0
        for b, row in zip(better, rows, strict=True)
    ]
    return [f"{len(rows)}", *(f"{count}" for count in cells), f"{statistics.fmean(lost):.2f}" if rows else ""]


def calibration() -> str:
    rows = [row for row in _part("default") if "ece" in row]
    if not rows:
        return "Nothing yet."
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows if row["data"] == data):
            own = [row for row in rows if (row["data"], row["method"]) == (data, method)]
            before, after = (_mean(own, lambda row, i=i: row["ece"][i]) for i in (0, 1))
            logs = [_mean(own, lambda row, i=i: row["nll"][i]) for i in (0, 1)]
            better = sum(row["ece"][1] < row["ece"][0] for row in own)
            same = sum(row["ece"][1] == row["ece"][0] for row in own)
            figures = [_mean(own, lambda row: row["temperature"]), before, after, *logs]
            shown = [f"{figure:.{digits}f}" for figure, digits in zip(figures, (2, 1, 1, 3, 3), strict=True)]
            counts = [str(count) for count in (better, same, len(own) - better - same)]
            lines.append([data, code([method]), *shown, *counts])
    heads = [
        "network",
        "method",
        "temperature",
        "ECE before",
        "after",
        "NLL before",
        "after",
        "better",
        "same",
        "worse",
    ]
    return f"Runs with the defaults, means; ECE in %.{_images()}\n\n" + table(heads, lines, words=2)


def streams() -> str:
    record = _record("streams")
    rows = record["rows"]
    if not rows:
        return "Nothing yet."
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for stream in dict.fromkeys(row["stream"] for row in rows):
        cells = [
            _stream_cell([r for r in rows if (r["stream"], r["method"]) == (stream, method)], record)
            for method in methods
        ]
        lines.append([stream, record["protocol"]["streams"][stream], *cells])
    text = (
        "Online accuracy in % of the bundled network, mean over three corruptions, with the defaults. † "
        "marks that the predictions of at least one run have collapsed (less than half of the entropy that "
        "the labels have), and a number in brackets how many of its runs had alarms."
    )
    heads = ["stream", "what", *(code([method]) for method in methods)]
    return f"{text}\n\n{table(heads, lines, words=2)}\n\n{_told(record)}"


def _stream_cell(rows: Sequence[Row], record: Row) -> str:
    fallen = any(row["evenness"] < record["protocol"]["collapsed"] for row in rows)
    alarms = sum(bool(row["alarms"]) for row in rows)
    mark = ("†" if fallen else "") + (f" ({alarms})" if alarms else "")
    return f"{_mean(rows, lambda row: row['accuracy']):.1f}{mark}"
