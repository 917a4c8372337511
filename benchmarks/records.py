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


def origin() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "commit": commit,
        "acclimate": version("acclimate"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def write(name: str, protocol: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    record = {"protocol": protocol, "origin": origin(), "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
