"""Run the whole suite again and again, in another order each time, and keep a log of it.

    python benchmarks/suite.py 10                      # every second run beside a busy process
    python benchmarks/suite.py 2 tests/test_gate.py    # only these: told, not logged

A run is `make test` with its own seed: `PYTEST_ADDOPTS=--randomly-seed=SEED make test` repeats its order.
`results/suite.jsonl` gets a line for each, from one sitting to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from records import RESULTS, origin

ROOT = Path(__file__).resolve().parents[1]
LOG = RESULTS / "suite.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=int)
    parser.add_argument("tests", nargs="*", help="files or names of tests; by default all of them")
    args = parser.parse_args()
    before = len(LOG.read_text().splitlines()) if LOG.exists() else 0
    for number in range(before, before + args.runs):
        line = json.dumps(run(busy=number % 2 == 1, tests=args.tests))
        print(line, flush=True)
        if not args.tests:
            with LOG.open("a", encoding="utf-8") as log:
                log.write(line + "\n")


def run(*, busy: bool, tests: Sequence[str] = ()) -> dict[str, Any]:
    """Run the suite once; what came out of it, as a line of the log."""
    seed = random.SystemRandom().getrandbits(32)
    found: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "commit": origin()["commit"],
        "seed": seed, "busy": busy,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, busy_core(busy):
        report = Path(folder) / "report.xml"
        # the environment is the one that runs this: what make would bring it up to date with is not asked
        command = ["make", "test", f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.ready"]
        added = ["--randomly-seed", str(seed), "--junit-xml", str(report), *tests]
        environment = {**os.environ, "PYTEST_ADDOPTS": shlex.join(added)}
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        found["seconds"] = round(time.perf_counter() - started)
        if not report.exists():  # as when a test takes pytest down with it
            said = (done.stdout + done.stderr).splitlines()
            return {**found, "died": said[-1] if said else f"exit code {done.returncode}"}
        return found | counted(report)


@contextmanager
def busy_core(wanted: bool) -> Iterator[None]:
    """Beside a process that does nothing, as fast as it can."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def counted(report: Path) -> dict[str, Any]:
    """How many tests of a JUnit report passed, failed and were skipped, and which failed."""
    passed = skipped = 0
    failures = []
    for test in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in test}
        if kinds & {"failure", "error"}:
            failures.append(f"{test.get('classname')}::{test.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "failed": len(failures), "skipped": skipped, "failures": sorted(set(failures))}


if __name__ == "__main__":
    main()
