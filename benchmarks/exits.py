"""Jobs of two ranks in a row, beside a process that keeps a core busy: does every rank end as it should?

    python benchmarks/exits.py [--jobs 200] [--lanes 2]

Most jobs end by themselves; in others a rank has no data, a rank is killed, or the launcher gets a signal.
Begun again at the same commit, it goes on with the jobs that are left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from records import RESULTS, origin, write

import acclimate

Row = dict[str, Any]
NAME, SEED = "bench_exits", 0
NORMAL, NO_DATA, KILLED = "normal end", "no data for a rank", "SIGKILL of a rank"
CTRL_C, TERMINATED = "SIGINT to the launcher", "SIGTERM to the launcher"
KINDS = [NORMAL, NO_DATA, NORMAL, CTRL_C, NORMAL, TERMINATED, NORMAL, KILLED, NORMAL, NORMAL]
"""Of every ten jobs."""
SECONDS = 25
"""Until all ranks must have ended; torchrun kills after thirty."""

LOST, ENDED = "error: another rank died", "ended by the launcher"
SURVIVOR = {1: LOST, 130: ENDED}
"""A rank whose peer is gone sees that first, or the signal that the launcher sends because of it."""
SOURCES = Path(acclimate.__file__).parents[1]


def is_right(kind: str, codes: list[int], said: list[str], victim: int) -> bool:
    """Whether every rank ended with its exit code, and said the sentence that goes with it."""
    if any("Traceback" in text or "terminate called" in text for text in said):
        return False
    if kind == NORMAL:
        return codes == [0, 0] and "error" not in "".join(said)
    if kind in (CTRL_C, TERMINATED):  # the first rank to say it says it for both
        sentence = "interrupted: " if kind == CTRL_C else ENDED
        return codes == [130, 130] and "".join(said).count(sentence) == 1
    code, sentence = (2, "error: there is nothing at") if kind == NO_DATA else (-signal.SIGKILL, "")
    other = 1 - victim
    as_told = codes[other] in SURVIVOR and said[other].startswith(SURVIVOR[codes[other]])
    return as_told and codes[victim] == code and said[victim].startswith(sentence)


def launch(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a job; one that is to be disturbed would take minutes."""
    data = "../photos{rank}" if kind == NO_DATA else "../photos"
    length = ["2", "--batch-size", "16"] if kind in (NORMAL, NO_DATA) else ["1000", "--batch-size", "8"]
    words = ["adapt", "--model", "demo", "--data", data, "--size", "0", "--out", "d.safetensors"]
    rank = [sys.executable, str(Path(__file__).with_name("watched_rank.py").resolve()), str(folder)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    changes = {
        "PYTHONPATH": str(SOURCES),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    with (folder / "launcher.err").open("w") as errors:
        return subprocess.Popen(
            [*launcher, "--no-python", *rank, *words, "--epochs", *length],
            cwd=folder,
            env={**os.environ, **changes},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def run(number: int, scratch: Path) -> Row:
    """Run a job, and end it in its way."""
    kind, rng = KINDS[number % len(KINDS)], random.Random(f"{SEED} {number}")
    folder, victim = scratch / str(number), 1 if kind == NO_DATA else rng.randrange(2)
    folder.mkdir()
    disturbed, job = time.time(), launch(kind, folder)
    try:
        if kind not in (NORMAL, NO_DATA):
            disturbed = disturb(kind, job, folder, victim, rng.uniform(0, 0.5))
        launcher = job.wait(180)
    finally:
        if job.poll() is None:
            job.kill()
    ends = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    said = [(folder / f"{rank}.err").read_text().strip() for rank in range(2)]
    codes, seconds = [end["code"] for end in ends], max(end["ended"] for end in ends) - disturbed
    right = is_right(kind, codes, said, victim) and (launcher == 0) == (kind == NORMAL)
    right &= seconds < SECONDS or kind in (NORMAL, NO_DATA)
    row = {"job": number, "ended by": kind, "codes": codes, "launcher": launcher, "s": round(seconds, 1)}
    return {**row, "right": right, "said": said}


def disturb(kind: str, job: subprocess.Popen[bytes], folder: Path, victim: int, wait: float) -> float:
    """Wait until an epoch is done and some of the next, and end the job; when that was."""
    deadline = time.monotonic() + 120
    while not (folder / "d.safetensors").exists() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(wait)
    if kind == KILLED:
        os.kill(int((folder / f"{victim}.pid").read_text()), signal.SIGKILL)
    else:
        job.send_signal(signal.SIGINT if kind == CTRL_C else signal.SIGTERM)
    return time.time()


@contextmanager
def busy_core() -> Iterator[None]:
    """Within, another process computes without a pause."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def before() -> dict[int, Row]:
    """The jobs of an earlier call at this commit."""
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    same = record.get("origin", {}).get("commit") == origin()["commit"]
    return {row["job"]: row for row in record["rows"]} if same else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--lanes", type=int, default=2, help="jobs at a time")
    given = parser.parse_args()
    scratch, rows = Path(tempfile.mkdtemp()), before()
    rng = np.random.default_rng(SEED)
    for name in ("photos", "photos0"):
        (scratch / name).mkdir()
        for number in range(40):
            Image.fromarray(rng.integers(0, 256, (32, 32), np.uint8)).save(scratch / name / f"{number}.png")
    left = [number for number in range(given.jobs) if number not in rows]
    with busy_core(), ThreadPoolExecutor(given.lanes) as lanes:
        for row in lanes.map(lambda number: run(number, scratch), left):
            rows[row["job"]] = row
            print(row, flush=True)
            sums = {"jobs": len(rows), "ranks": 2, "jobs at a time": given.lanes, "seed": SEED}
            write(NAME, {**sums, "right": sum(each["right"] for each in rows.values())}, list(rows.values()))
    assert all(row["right"] for row in rows.values()), [row for row in rows.values() if not row["right"]]


if __name__ == "__main__":
    main()
