"""`kill -9` at fifty random moments: a grid and an adaptation, resumed, must end as undisturbed ones do.

python benchmarks/kills.py [--kills 25]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from records import write

from acclimate.corruptions import corrupt
from acclimate.delta import read_delta
from acclimate.demo.bundle import bundled_images
from acclimate.records import finished, same

SEED = 0
ACCLIMATE = [sys.executable, "-m", "acclimate"]
GRID = [
    "bench", "demo", "--limit", "64", "--epochs", "2", "--methods", "source,bn,tent,slr,slr+it",
    "--corruptions", "contrast,fog,spatter", "--seeds", "2020", "--workers", "2", "--resume",
]  # fmt: skip
ADAPT = ["adapt", "--model", "demo", "--epochs", "6", "--resume"]


def run(command: list[str], seconds: float | None = None) -> bool:
    """Run a command, or kill it and its processes after some seconds; whether it came to its end."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*ACCLIMATE, *command], start_new_session=True, **quiet) as process:
        try:
            assert process.wait(seconds) == 0, command
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # cells are killed midway
            return False
    return True


def killed(
    what: str, command: Callable[[Path], list[str]], state: Callable[[Path], Any], kills: int
) -> tuple[list[dict[str, Any]], Path, list[Path]]:
    """An undisturbed run, and others that are killed again and again until each has come to its end."""
    rng, scratch = random.Random(f"{SEED} {what}"), Path(tempfile.mkdtemp())
    whole, broken = scratch / "whole", [scratch / "0"]
    started = time.monotonic()
    run(command(whole))
    seconds, rows = time.monotonic() - started, []
    while len(rows) < kills:
        moment = rng.uniform(0, 0.5 * seconds)
        if run(command(broken[-1]), moment):
            broken.append(scratch / str(len(broken)))
            continue
        kept = state(broken[-1])
        rows.append({"what": what, "kill": len(rows) + 1, "after s": round(moment, 1), "kept": kept})
        print(rows[-1], flush=True)
    run(command(broken[-1]))
    return rows, whole, broken


def grid_rows(kills: int) -> tuple[list[dict[str, Any]], bool]:
    """The records of a grid."""

    def count(out: Path) -> str:
        return f"{len(finished(out))} records"

    rows, whole, broken = killed("grid", lambda out: [*GRID, "--out", str(out)], count, kills)
    one = finished(whole)
    for folder in broken:
        other = finished(folder)
        left = [path.name for path in folder.iterdir() if ".part" in path.name]
        if left or one.keys() != other.keys() or not all(same(one[key], other[key]) for key in one):
            return rows, False
    return rows, True


def adapt_rows(kills: int) -> tuple[list[dict[str, Any]], bool]:
    """The delta of an adaptation, to the last bit."""
    data = Path(tempfile.mkdtemp()) / "images.npy"
    pixels = (bundled_images()[0][:400] * 255).round().byte()
    np.save(data, corrupt(pixels, "contrast", 5).permute(0, 2, 3, 1).numpy())

    def command(out: Path) -> list[str]:
        return [*ADAPT, "--data", str(data), "--out", str(out.with_suffix(".safetensors"))]

    def steps(out: Path) -> str:
        path = out.with_suffix(".safetensors")
        return f"{int(read_delta(path)[0]['steps'][0])} steps" if path.exists() else "nothing"

    rows, whole, broken = killed("adapt", command, steps, kills)
    one, *others = (read_delta(path.with_suffix(".safetensors")) for path in (whole, *broken))
    equal = [
        one[1] == other[1] and all(bool((one[0][name] == other[0][name]).all()) for name in one[0])
        for other in others
    ]
    return rows, all(equal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="of the grid, and as many of the adaptation")
    given = parser.parse_args()
    rows, equal = [], {}
    for name, part in (("grid", grid_rows), ("adapt", adapt_rows)):
        own, equal[name] = part(given.kills)
        rows += own
    print(equal)
    protocol = {"kills": len(rows), "seed": SEED, "equal_to_an_undisturbed_run": all(equal.values())}
    write("bench_kills", protocol, rows)
    assert all(equal.values()), equal


if __name__ == "__main__":
    main()
