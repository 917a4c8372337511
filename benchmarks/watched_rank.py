"""One rank of a job, whose exit code and messages are kept in a folder: launchers do not tell all of them.

torchrun --no-python PYTHON benchmarks/watched_rank.py FOLDER WORDS   # {rank} in a word is the rank's number
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    words = [word.replace("{rank}", rank) for word in sys.argv[2:]]
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the rank's group, so that the rank has it too
        signal.signal(number, lambda *_: None)
    with (folder / f"{rank}.err").open("w") as errors:
        process = subprocess.Popen([sys.executable, "-m", "acclimate", *words], stderr=errors)
        (folder / f"{rank}.pid").write_text(str(process.pid))
        code = process.wait()
    (folder / f"{rank}.json").write_text(json.dumps({"code": code, "ended": time.time()}))
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
