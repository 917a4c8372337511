"""What is left of a machine's memory, from made-up files of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acclimate import available
from acclimate.available import available_bytes

MEMINFO = "MemTotal: 9000 kB\nMemAvailable: 1000 kB\nHugePages_Total: 0\n"


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(available, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(available, "_CGROUP", tmp_path / "cgroup")
    write(tmp_path / "proc/meminfo", MEMINFO)
    return tmp_path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(text))


def on_cpu() -> int | None:
    return available_bytes(torch.device("cpu"))


def test_without_groups_it_is_what_the_kernel_says(linux: Path) -> None:
    assert on_cpu() == 1_024_000


def test_the_smallest_group_of_version_2_counts_without_cached_files(linux: Path) -> None:
    write(linux / "proc/self/cgroup", "0::/outer/inner\n")
    write(linux / "cgroup/memory.max", "max\n")
    write(linux / "cgroup/outer/memory.max", 700_000)
    write(linux / "cgroup/outer/memory.current", 300_000)
    write(linux / "cgroup/outer/memory.stat", "anon 5\ninactive_file 40000\nactive_file 2000\n")
    write(linux / "cgroup/outer/inner/memory.max", 900_000)
    write(linux / "cgroup/outer/inner/memory.current", 300_000)
    assert on_cpu() == 442_000


def test_version_1_and_a_path_that_cannot_be_seen_from_a_container(linux: Path) -> None:
    write(linux / "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n")
    write(linux / "cgroup/memory/memory.limit_in_bytes", 500_000)
    write(linux / "cgroup/memory/memory.usage_in_bytes", 600_000)
    write(linux / "cgroup/memory/memory.stat", "total_inactive_file 150000\n")
    assert on_cpu() == 50_000


def test_no_limit_of_version_1_is_none(linux: Path) -> None:
    write(linux / "proc/self/cgroup", "4:memory:/\n")
    write(linux / "cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    write(linux / "cgroup/memory/memory.usage_in_bytes", 100)
    assert on_cpu() == 1_024_000


def test_elsewhere_nobody_knows(linux: Path) -> None:
    assert available_bytes(torch.device("meta")) is None
    (linux / "proc/meminfo").unlink()
    assert on_cpu() is None


def test_what_torch_has_reserved_on_a_gpu_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100, 900))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20)
    assert available_bytes(torch.device("cuda")) == 130
