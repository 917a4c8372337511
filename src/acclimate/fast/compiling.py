"""C sources of ours, compiled once for this machine by its own C compiler, if it has one."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["compiled"]

_OPTIONS: Final = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
_HERE: Final = Path(__file__).parent


def compiled(source: str, *options: str) -> ctypes.CDLL | None:
    """A library of this source, which lies beside this file; None without a compiler that can make it."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or platform.system() != "Linux":
        return None
    try:
        return ctypes.CDLL(str(_library([compiler, *_OPTIONS, *options], _HERE / source)))
    except (OSError, subprocess.SubprocessError):
        return None


def _library(command: Sequence[str], source: Path) -> Path:
    folder = _cache_folder()
    made = folder / f"{source.stem}-{_digest(command, source)}.so"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            new = Path(scratch) / "library.so"
            subprocess.run(
                [*command, str(source), "-o", str(new)], check=True, capture_output=True, timeout=120
            )
            os.replace(new, made)
    return made


def _cache_folder() -> Path:
    """A folder that only its owner can write to: what lies in it is run."""
    own_cache = Path.home() / ".cache" / "acclimate" / "kernels"
    for folder in (own_cache, Path(tempfile.gettempdir()) / f"acclimate-kernels-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = folder.lstat()
        except OSError:
            continue
        own = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if own and stat.S_ISDIR(state.st_mode) and os.access(folder, os.W_OK):
            return folder
    raise OSError("there is no folder of one's own to compile in")


def _digest(command: Sequence[str], source: Path) -> str:
    """Of all that the library depends on: the source, how it is compiled, and for which processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        processor = platform.processor()
    parts = (
        *(path.read_text(encoding="utf-8") for path in (source, *sorted(_HERE.glob("*.h")))),
        *command,
        platform.machine(),
        processor,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
