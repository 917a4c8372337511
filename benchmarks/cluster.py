"""Grids beyond one process: what a second worker or rank gives, what the estimator says, a killed Ray worker.

    python benchmarks/cluster.py                  # all of it: ten minutes
    python benchmarks/cluster.py --only scaling   # scaling, ray or shards

Rows of other parts stay in the record, each with the commit that it was measured at.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from records import RESULTS, origin, write

from acclimate.bench import PRESETS, Cell, run_grid
from acclimate.bench.estimate import estimated
from acclimate.bench.grid import shard_of
from acclimate.bench.merge import merge
from acclimate.bench.presets import narrowed
from acclimate.ranks import Ranks
from acclimate.records import finished, same

Row = dict[str, Any]
ALLOWED_ERROR = 0.2


def cells(methods: list[str], corruptions: list[str], seeds: int, **changes: Any) -> list[Cell]:
    """Of the bundled network."""
    found = narrowed(
        list(PRESETS["demo"].cells()),
        methods=methods,
        corruptions=corruptions,
        seeds=[2020 + number for number in range(seeds)],
        threads=1,
        **changes,
    )
    plain = {cell.key: cell for cell in found if not cell.overrides and cell.subset is None}
    return [cell for cell in plain.values() if cell.corruption in corruptions]


def timed(some: list[Cell], workers: int = 1) -> Row:
    """Seconds of a grid, estimated and then measured."""
    found = estimated(some, "", workers=workers)
    ranks = Ranks()
    with tempfile.TemporaryDirectory() as scratch:
        out = ranks.first(lambda: scratch)
        begun = time.perf_counter()
        outcome = run_grid(some, "", out, workers=workers)
        seconds = time.perf_counter() - begun
        assert outcome.done == len(some), outcome
    return {"estimated_s": round(found.seconds, 1), "measured_s": round(seconds, 1)}


def scaling() -> Iterator[Row]:
    """The same cells by one and two workers, and by one and two ranks."""
    some = cells(["tent", "slr"], ["fog", "contrast"], 3, limit=1000)
    for workers in (1, 2):
        yield {
            "part": "scaling",
            "what": "workers",
            "count": workers,
            "cells": len(some),
            **timed(some, workers),
        }
    for ranks in (1, 2):
        yield {"part": "scaling", "what": "ranks", "count": ranks, "cells": len(some), **_by_ranks(ranks)}


def _by_ranks(count: int) -> Row:
    """What a job of so many ranks says of itself."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "row.json"
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-m", *command, __file__, "--rank-of", out], check=True, env=environment
        )
        row: Row = json.loads(out.read_text())
    return row


def rank_of(out: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    row = timed(cells(["tent", "slr"], ["fog", "contrast"], 3, limit=1000))
    if dist.get_rank() == 0:
        out.write_text(json.dumps(row))
    dist.destroy_process_group()


def small() -> list[Cell]:
    """Forty cells."""
    some = cells(
        ["source", "bn", "tent", "slr", "slr+it"],
        ["fog", "contrast", "snow", "spatter"],
        3,
        limit=256,
        epochs=2,
    )
    return some[:40]


def equal(one: Path, other: Path) -> bool:
    mine, theirs = finished(one), finished(other)
    return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)


def on_ray(folder: Path, whole: Path) -> Iterator[Row]:
    """A worker of two is killed in the middle."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    killed: list[int] = []

    def kill() -> None:
        while len(finished(folder)) < 10:
            time.sleep(0.1)
        working = subprocess.run(["pgrep", "-f", "^ray::"], capture_output=True, text=True, check=False)
        busy = [int(pid) for pid in working.stdout.split() if _is_busy(int(pid))]
        os.kill(busy[0], signal.SIGKILL)
        killed.append(len(finished(folder)))

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    begun = time.perf_counter()
    outcome = run_grid(small(), "", folder, ray="auto")
    seconds = time.perf_counter() - begun
    ray.shutdown()
    yield {
        "part": "ray", "cells": outcome.done, "failed": len(outcome.failed), "workers": 2,
        "killed_after_records": killed[0], "seconds": round(seconds, 1),
        "equal_to_one_process": equal(whole, folder),
    }  # fmt: skip


def _is_busy(pid: int) -> bool:
    """Ray calls a worker by its task, which is the label of its cell; its own agents have other names."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::demo ")
    except OSError:
        return False


def shards(folder: Path, whole: Path) -> Iterator[Row]:
    parts = [folder / str(number) for number in range(2)]
    for number, part in enumerate(parts):
        run_grid(shard_of(small(), f"{number}/2"), "", part)
    merge(parts, folder / "all")
    yield {
        "part": "shards", "cells": len(small()), "shards": 2,
        "equal_to_one_process": equal(whole, folder / "all"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=["scaling", "ray", "shards"])
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of is not None:
        rank_of(args.rank_of)
        return
    path = RESULTS / "cluster.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    rows = [{"commit": earlier["origin"]["commit"], **row} for row in earlier.get("rows", [])]

    def add(found: Iterator[Row]) -> None:
        nonlocal rows
        for row in found:
            row["commit"] = origin()["commit"]
            print(row, flush=True)
            key = [row.get(name) for name in ("part", "what", "count")]
            rows = [r for r in rows if [r.get(name) for name in ("part", "what", "count")] != key] + [row]
            write("cluster", {"network": "the bundled one", "threads": "one for each process"}, rows)

    if args.only in (None, "scaling"):
        add(scaling())
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        if args.only != "scaling":
            assert run_grid(small(), "", whole).done == len(small())
        if args.only in (None, "ray"):
            add(on_ray(Path(scratch) / "ray", whole))
        if args.only in (None, "shards"):
            add(shards(Path(scratch) / "shards", whole))
    for row in rows:
        assert row.get("equal_to_one_process", True), row
        if row["part"] == "scaling":
            error = abs(row["estimated_s"] / row["measured_s"] - 1)
            assert error < ALLOWED_ERROR, row


if __name__ == "__main__":
    main()
