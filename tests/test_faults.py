"""Full and read-only disks, Ctrl-C and kills at any moment: nothing is lost, and nothing differs.

Some moments here; every one of them, and every few lines of a fit, in `benchmarks/faults.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from acclimate.files import whole_file
from fault_tasks import TASKS, run_cells
from faults import KINDS, Faults, Killed, disturbed, operations, outcome
from signals import begun, bits, fitted, interrupted, lines

POINTS = 2  # of each task and kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize("name", TASKS)
def test_disturbed_and_gone_on_with_it_is_the_same(name: str, folder: Path) -> None:
    task = TASKS[name]
    whole = operations(task, folder / f"{name} whole")
    assert whole.careless == [], "or a power cut would leave an empty file that looks whole"
    count, expected = len(whole.seen), task.result(folder / f"{name} whole")
    for number, kind in enumerate(KINDS):
        for at in range(number * count // 12, count, count // POINTS):
            assert outcome(task, folder / name, at, kind) == expected, (at, kind)


def test_a_kill_has_no_second_thoughts(tmp_path: Path) -> None:
    """The tests' own oracle: what is killed at its third operation leaves what it had written by then."""
    with disturbed(Faults(2, "kill")), pytest.raises(Killed), whole_file(tmp_path / "a.txt") as part:
        part.write_bytes(b"content")
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part.txt")
    assert left.read_bytes() == b"content"
    with disturbed(Faults(1, "kill")), pytest.raises(Killed), whole_file(tmp_path / "b.txt") as part:
        part.write_bytes(b"content")
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"con", b"content"]


def test_an_interrupt_at_any_line_of_a_fit(tmp_path: Path) -> None:
    adapter = begun()
    count = lines(lambda: fitted(adapter, tmp_path / "whole"))
    expected = bits(adapter)
    for at in range(0, count, count // 12):
        assert interrupted(at, tmp_path / "d") == (expected, expected), at


def test_an_interrupt_after_the_last_batch_of_an_epoch(tmp_path: Path) -> None:
    """Nothing of that epoch is left to be read."""
    task, path = TASKS["adapt"], tmp_path / "a"
    steps = [at for at, what in enumerate(operations(task, tmp_path / "whole").seen) if what == "step"]
    expected = task.result(tmp_path / "whole")
    for at in steps:
        assert outcome(task, path, at, "Ctrl-C") == expected


def test_a_clock_that_goes_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["grid"]
    for name in "ab":
        (tmp_path / name).mkdir()
    run_cells(tmp_path / "a", Faults())
    now = iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    monkeypatch.setattr(time, "time_ns", lambda: next(now) * 10**9)
    run_cells(tmp_path / "b", Faults())
    run_cells(tmp_path / "b", Faults())
    assert task.result(tmp_path / "a") == task.result(tmp_path / "b")
