"""Streams that are hard on online adaptation: small batches, sorted labels, changing shifts, uneven classes.

    python benchmarks/streams.py                         # all of it, on two processes
    python benchmarks/streams.py --streams sorted --images 256

Online calls of `Adapter` with its defaults, the guard among them, over corruptions and seeds.
What the streams are, `tests/hard_streams.py` says.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from records import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hard_streams import BATCH, COLLAPSED, CORRUPTIONS, SEVERITY, STREAMS, drawn, played

METHODS = ("source", "bn", "tent", "tent+", "hlr", "slr", "slr+it")
SEEDS = (2020,)


def row_of(name: str, method: str, corruption: str, seed: int, count: int) -> dict[str, Any]:
    """One stream, adapted to by one method."""
    torch.set_num_threads(1)
    seen = drawn(STREAMS[name], corruption, count, seed)
    outcome = played(seen, method, seed)
    return {
        "stream": name, "method": method, "corruption": corruption, "seed": seed,
        "accuracy": round(outcome.accuracy, 2), "evenness": round(outcome.evenness, 3),
        "alarms": [alarm.signal for alarm in outcome.alarms],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--name", default="streams")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(row_of, name, method, corruption, seed, args.images)
            for name in args.streams
            for method in args.methods
            for corruption in CORRUPTIONS
            for seed in (SEEDS if method != "source" else SEEDS[:1])
        ]
        for one in waiting:
            rows.append(one.result())
            print(rows[-1], flush=True)
    protocol = {
        "network": "the bundled one", "images": args.images, "seeds": list(SEEDS),
        "severity": SEVERITY, "batch": BATCH,
        "protocol": "online", "corruptions": list(CORRUPTIONS), "collapsed": COLLAPSED,
        "streams": {name: STREAMS[name].what for name in args.streams},
    }  # fmt: skip
    write(args.name, protocol, rows)


if __name__ == "__main__":
    main()
