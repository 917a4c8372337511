"""Ten thousand damaged and hostile files for every reader, with a bound on time and memory for each.

python benchmarks/fuzz.py [--inputs 10000] [--readers png npz]

Readers run in processes of their own: one that hangs, crashes or eats the memory is counted, not fatal.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from records import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SECONDS, MEBIBYTES = 10, 1024
"""For one input: after so many seconds it hangs; beyond so much more memory there is none."""
GOOD = ("accepted", "refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--readers", nargs="*")
    parser.add_argument("--worker", nargs=3, metavar=("READER", "FIRST", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker[0], int(given.worker[1]), given.inputs, Path(given.worker[2]))
        return
    from file_readers import READERS

    names = given.readers or list(READERS)
    with ThreadPoolExecutor(os.cpu_count()) as lanes:
        rows = list(lanes.map(lambda name: measured(name, given.inputs), names))
    protocol = {
        "inputs": len(rows) * given.inputs,
        "seconds allowed for an input": SECONDS,
        "MiB allowed beyond those of a reader at rest": MEBIBYTES,
    }
    write("fuzz", protocol, rows)
    bad = {row["reader"]: row for row in rows if row["other"] or row["hangs"] or row["crashes"]}
    assert not bad, bad


def measured(name: str, inputs: int) -> dict[str, Any]:
    """How a reader fared; a worker that dies is followed by another, from the next input on."""
    found: dict[str, Any] = dict.fromkeys((*GOOD, "other", "hangs", "crashes"), 0)
    longest, peak, first = 0.0, 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        while first < inputs:
            told, code, memory = _followed(name, first, inputs, Path(folder) / "told")
            peak = max(peak, memory)
            for line in told:
                number, kind, seconds, said = line.split("\t")
                found[kind if kind in GOOD else "other"] += 1
                longest = max(longest, float(seconds))
                if kind not in GOOD:
                    print(f"{name} {number}: {kind}: {said}", flush=True)
            first += len(told)
            if first < inputs:
                found["hangs" if code == -signal.SIGALRM else "crashes"] += 1
                print(f"{name} {first}: the process ended with {code}", flush=True)
                first += 1
    row = {"reader": name, "inputs": inputs, **found, "longest s": round(longest, 2), "peak MiB": round(peak)}
    print(row, flush=True)
    return row


def _followed(name: str, first: int, inputs: int, file: Path) -> tuple[list[str], int, float]:
    """What a worker told of each input, how it ended, and the memory that it took beyond that at rest."""
    file.write_text("")
    command = [sys.executable, __file__, "--inputs", str(inputs), "--worker", name, str(first), str(file)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    at_rest, *told = file.read_text().splitlines() or ["0"]
    return told, process.returncode, (usage.ru_maxrss - int(at_rest)) / 1024


def work(name: str, first: int, inputs: int, file: Path) -> None:
    """Read one input after the other, and tell of each as soon as it is read."""
    import torch

    from file_readers import READERS
    from fuzzing import Input, fuzzed, judged

    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as scratch,
        file.open("a", buffering=1, errors="backslashreplace") as told,
    ):
        for reader in READERS.values():  # parts of all of them are spliced
            reader.make()
        for content in READERS[name].make():
            judged(name, Input(content), Path(scratch))
        told.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\n")
        _limit_memory()
        for number in range(first, inputs):
            given = fuzzed(name, number)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            begun = time.monotonic()
            try:
                verdict, said = judged(name, given, Path(scratch))
            except AssertionError as error:
                verdict, said = "escaped", str(error)
            signal.setitimer(signal.ITIMER_REAL, 0)
            seconds = time.monotonic() - begun
            told.write(f"{number}\t{verdict}\t{seconds:.3f}\t{' '.join(said.split())[:300]}\n")


def _limit_memory() -> None:
    """So much address space beyond what is taken already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEBIBYTES * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
