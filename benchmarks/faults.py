"""Every write of everything that can go on is disturbed once in each way; then it goes on, and is compared.

python benchmarks/faults.py [--lines 500]

A full disk, a read-only one, Ctrl-C and a kill, at every write and between all steps of a grid, a merge,
`fit` saved after every step, `adapt`, `train-head`, `corrupt` and `fetch`; and Ctrl-C at many lines of a fit.
"""

from __future__ import annotations

import argparse
import collections
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from records import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fault_tasks import TASKS
from faults import KINDS, Task, operations, outcome
from signals import begun, bits, fitted, interrupted, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=500, help="lines of a fit at which Ctrl-C comes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, task in TASKS.items():
            rows += disturbed_rows(name, task, Path(scratch))
        rows.append(line_row(given.lines, Path(scratch)))
    points, bad = sum(row["points"] for row in rows), sum(row["differing"] + row["errors"] for row in rows)
    print(f"{points} points, {bad} of them bad")
    write("faults", {"points": points, "kinds": list(KINDS)}, rows)
    assert not bad


def disturbed_rows(name: str, task: Task, scratch: Path) -> list[dict[str, Any]]:
    """A row for each way to be disturbed."""
    whole = scratch / f"{name} whole"
    seen = operations(task, whole).seen
    expected = task.result(whole)
    rows = []
    for kind in KINDS:
        began, found = time.monotonic(), collections.Counter[str]()
        for at in range(len(seen)):
            try:
                found["same" if outcome(task, scratch / name, at, kind) == expected else "differing"] += 1
            except Exception as error:
                found["errors"] += 1
                print(f"{name}, {kind} at {at} ({seen[at]}): {type(error).__name__}: {error}", flush=True)
        rows.append(row_of(name, kind, len(seen), found, began))
    return rows


def line_row(count: int, scratch: Path) -> dict[str, Any]:
    """Ctrl-C between two lines of a fit: gone on with in the process, and from the file."""
    adapter = begun()
    there = lines(lambda: fitted(adapter, scratch / "whole.safetensors"))
    expected, began, found = bits(adapter), time.monotonic(), collections.Counter[str]()
    points = range(0, there, max(1, there // count))
    for at in points:
        got = interrupted(at, scratch / "d.safetensors")
        found["same" if got == (expected, expected) else "differing"] += 1
        if got != (expected, expected):
            print(f"differing after a Ctrl-C at line {at} of {there}", flush=True)
    return row_of("fit, line by line", "Ctrl-C", len(points), found, began)


def row_of(
    name: str, kind: str, points: int, found: collections.Counter[str], began: float
) -> dict[str, Any]:
    row = {
        "work": name, "disturbed by": kind, "points": points, "same": found["same"],
        "differing": found["differing"], "errors": found["errors"], "s": round(time.monotonic() - began, 1),
    }  # fmt: skip
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
