"""Results as JSON, with what is needed to believe them."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import acclimate  # noqa: F401 - the version that is measured

RESULTS = Path(__file__).parent / "results"


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def origin() -> dict[str, Any]:
    commit = git("describe", "--always", "--abbrev=12")
    # other records may have been written since the commit; what makes them may not have changed
    if git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)benchmarks/results"):
        commit += "-dirty"
    return {
        "commit": commit,
        "acclimate": version("acclimate"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def unfinished(name: str, protocol: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows that are there of the same protocol, to go on with, and the protocol with their commits.

    Who wants to measure anew removes the record.
    """
    path = RESULTS / f"{name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {"protocol": {}}
    commits = earlier["protocol"].pop("continued_from", [])
    if earlier["protocol"] != json.loads(json.dumps(protocol)):
        return [], protocol
    commit = earlier["origin"]["commit"]
    if commit not in (origin()["commit"], *commits):
        commits = [*commits, commit]
    return earlier["rows"], protocol | ({"continued_from": commits} if commits else {})


def write(
    name: str, protocol: dict[str, Any], rows: list[dict[str, Any]], made_by: dict[str, Any] | None = None
) -> None:
    """Its origin is that of now, unless it is given."""
    RESULTS.mkdir(exist_ok=True)
    record = {"protocol": protocol, "origin": made_by or origin(), "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
