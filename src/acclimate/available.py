"""How much memory a process can still have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

__all__ = ["available_bytes"]

_PROC: Final = Path("/proc")
_CGROUP: Final = Path("/sys/fs/cgroup")
_NO_LIMIT: Final = 2**60  # version 1 has a number for that


def available_bytes(device: torch.device) -> int | None:
    """What can be had on a device without taking it from anybody; None where nothing says so."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return _of_machine(_PROC, _CGROUP) if device.type == "cpu" else None


def _of_machine(proc: Path, cgroup: Path) -> int | None:
    """What Linux has available, bounded by what the control groups of this process leave it."""
    table = _table(proc / "meminfo")
    if "MemAvailable:" not in table:
        return None
    return min([table["MemAvailable:"] * 1024, *_left_by_groups(proc, cgroup)])


def _left_by_groups(proc: Path, cgroup: Path) -> Iterator[int]:
    """Limit minus use of every group that has a limit; what only caches files counts as unused."""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            top, names = cgroup, ("memory.max", "memory.current", ("inactive_file", "active_file"))
        elif "memory" in controllers.split(","):
            cached = ("total_inactive_file", "total_active_file")
            top, names = cgroup / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", cached)
        else:
            continue
        # inside of a container the group itself is often not to be seen, but what is above it
        group = top / path.strip("/")
        for folder in (group, *group.parents[: len(group.relative_to(top).parts)]):
            limit = _number(folder / names[0])
            used = None if limit is None or limit >= _NO_LIMIT else _number(folder / names[1])
            if limit is not None and used is not None:
                table = _table(folder / "memory.stat")
                yield max(0, limit - used + sum(table.get(name, 0) for name in names[2]))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _table(path: Path) -> dict[str, int]:
    """Names and numbers, one pair a line."""
    rows = [line.split() for line in _lines(path)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    """A file's only word, if it is a number; version 2 has ``max`` where there is no limit."""
    word = "".join(_lines(path)).strip()
    return int(word) if word.isdigit() else None
