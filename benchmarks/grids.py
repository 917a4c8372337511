"""The grids whose records are kept here: every experiment on the bundled network, and CIFAR-10.

python benchmarks/grids.py [demo] [cifar10]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cifar import DATA
from records import RESULTS

from acclimate.records import pack_records

BUILD = Path(__file__).parents[1] / "build"
GRIDS = {
    "demo": ["demo"],
    "cifar10": [str(Path(__file__).with_name("cifar10.yaml")), "--data", str(DATA)],
}


def main() -> None:
    for name in sys.argv[1:] or GRIDS:
        out = BUILD / f"bench_{name}"
        command = [sys.executable, "-m", "acclimate", "bench", *GRIDS[name], "--out", out, "--resume"]
        subprocess.run(command, check=True)
        pack_records(out, RESULTS / f"bench_{name}.jsonl.gz")


if __name__ == "__main__":
    main()
