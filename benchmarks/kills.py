"""A grid is killed at ten random moments and resumed: its records must be those of an undisturbed run.

python benchmarks/kills.py
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import write

from acclimate.records import finished, same

KILLS, SEED = 10, 0
COMMAND = [
    sys.executable, "-m", "acclimate", "bench", "demo", "--limit", "128", "--epochs", "2",
    "--methods", "source,bn,tent,slr,slr+it", "--corruptions", "contrast,fog,spatter", "--seeds", "2020,2021",
    "--workers", "2", "--resume",
]  # fmt: skip


def run(out: Path, seconds: float | None = None) -> float:
    """Run the grid, or kill it and its processes after some seconds; how long it took."""
    started = time.monotonic()
    with subprocess.Popen(
        [*COMMAND, "--out", out], stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            assert process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # cells are killed midway
    return time.monotonic() - started


def main() -> None:
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as scratch:
        whole, broken = Path(scratch) / "whole", Path(scratch) / "broken"
        seconds = run(whole)
        rows = []
        for number in range(KILLS):
            moment = rng.uniform(0, 0.5 * seconds)
            run(broken, moment)
            rows.append({"kill": number + 1, "after s": round(moment, 1), "records": len(finished(broken))})
            print(rows[-1], flush=True)
        run(broken)
        one, other = finished(whole), finished(broken)
        equal = one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    print(f"{len(one)} records, equal: {equal}")
    write("bench_kills", {"cells": len(one), "seed": SEED, "equal_to_an_undisturbed_run": equal}, rows)
    assert equal


if __name__ == "__main__":
    main()
