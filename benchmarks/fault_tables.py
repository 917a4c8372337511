"""Tables of the docs from the records of `fuzz.py`, `faults.py`, `kills.py` and `exits.py`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from pages import table
from records import RESULTS

Row = dict[str, Any]

FUZZ = (
    "Files of every kind that is read: cut, flipped, spliced, rewritten with values that nobody expects, and "
    "made to do harm. *Accepted* are those whose damage did not matter or cannot be seen; *refused* those "
    "that ended in one sentence of acclimate's own. *Other* are all other errors, code that ran, and files "
    "outside of the folder; memory is what a reader took beyond what it has at rest."
)
FAULTS = (
    "Every write, and every moment between two steps, is disturbed once in each way; the same call then goes "
    "on. *Same* are those that ended with the records, bits or files of an undisturbed run."
)
KILLS = (
    "`kill -9` at random moments, again and again, each time resumed; afterwards records, and every bit of "
    "the adapted network, are compared with those of an undisturbed run."
)
EXITS = (
    "`torchrun` with two ranks of `acclimate adapt`, again and again, beside a process that keeps a core "
    "busy. *Right* are the jobs in which each rank ended with the exit code that it should (0 done, 1 a lost "
    "peer, 2 bad input, 130 interrupted or ended by the launcher, -9 killed) and said the sentence for "
    "it, without an abort or a traceback, and within 25 s of a disturbance. *s* is the longest time from it "
    "to the end of the last rank."
)


def fault_sections() -> str:
    """A section for each record that is there."""
    parts = []
    for name, title, text, show in SECTIONS:
        path = RESULTS / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text())
            parts.append("\n\n".join([f"### {title}", text, show(record["rows"]), _protocol(record)]))
    return "\n\n".join(parts) + "\n"


def fuzzed(rows: list[Row]) -> str:
    counts = ("inputs", "accepted", "refused", "other", "hangs", "crashes")
    lines = []
    for row in rows:
        numbers = [f"{row[name]:,}" for name in counts]
        lines.append([row["reader"], *numbers, f"{row['longest s']:.1f}", str(row["peak MiB"])])
    total = ["**all**", *(f"{sum(row[name] for row in rows):,}" for name in counts)]
    worst = [f"{max(row['longest s'] for row in rows):.1f}", str(max(row["peak MiB"] for row in rows))]
    return table(["reader", *counts, "longest s", "peak MiB"], [*lines, [*total, *worst]])


def disturbed(rows: list[Row]) -> str:
    """Work down, ways to be disturbed across; each with how many of its moments ended the same."""
    kinds = list(dict.fromkeys(row["disturbed by"] for row in rows))
    found = {(row["work"], row["disturbed by"]): f"{row['same']} of {row['points']}" for row in rows}
    works = dict.fromkeys(row["work"] for row in rows)
    lines = [[work, *(found.get((work, kind), "") for kind in kinds)] for work in works]
    sums = (sum(row[part] for row in rows) for part in ("same", "points"))
    lines.append(["**all**", " of ".join(f"{total:,}" for total in sums), *[""] * (len(kinds) - 1)])
    return table(["work", *kinds], lines)


def killed(rows: list[Row]) -> str:
    """What was killed, how often, when, and what was there after the last time."""
    lines = []
    rows = [
        row if "what" in row else {"what": "grid", "kept": f"{row['records']} records", **row} for row in rows
    ]
    for what in dict.fromkeys(row["what"] for row in rows):
        own = [row for row in rows if row["what"] == what]
        moments = [row["after s"] for row in own]
        span = f"{min(moments):.1f} to {max(moments):.1f}"
        lines.append([what, str(len(own)), span, own[len(own) // 2]["kept"], own[-1]["kept"]])
    return table(["what", "kills", "after s", "kept after half", "kept after all"], lines)


def ended(rows: list[Row]) -> str:
    """How jobs of several ranks were made to end, and how their ranks did."""
    lines = []
    for kind in dict.fromkeys(row["ended by"] for row in rows):
        own = [row for row in rows if row["ended by"] == kind]
        counts = Counter(", ".join(map(str, sorted(row["codes"]))) for row in own)
        codes = "; ".join(f"{pair} ({count})" for pair, count in sorted(counts.items()))
        disturbed = kind not in ("normal end", "no data for a rank")
        longest = f"{max(row['s'] for row in own):.1f}" if disturbed else ""
        lines.append([kind, str(len(own)), str(sum(row["right"] for row in own)), codes, longest])
    return table(["ended by", "jobs", "right", "exit codes of the ranks (jobs)", "s"], lines)


def _protocol(record: dict[str, Any]) -> str:
    facts = {**record["protocol"], **record["origin"]}
    shown = (f"{name.replace('_', ' ')} {_told(value)}" for name, value in facts.items())
    return f"Protocol: {'; '.join(shown)}."


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


SECTIONS: tuple[tuple[str, str, str, Callable[[list[Row]], str]], ...] = (
    ("fuzz", "Damaged and hostile files", FUZZ, fuzzed),
    ("faults", "Disks and interrupts at any moment", FAULTS, disturbed),
    ("bench_kills", "Killed and gone on", KILLS, killed),
    ("bench_exits", "Jobs of two ranks, to their end", EXITS, ended),
)
