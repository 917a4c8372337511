"""Two grids in one folder: different cells side by side, the same cells not; folders that cannot be used."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acclimate.bench import locks as locks_module
from acclimate.bench import run_grid
from acclimate.bench.locks import Claims
from acclimate.errors import OptionError
from acclimate.places import Bucket, Folder
from acclimate.records import finished, record_name
from fault_tasks import cells, run_cells
from faults import Faults

HOLDER = """
import sys
from pathlib import Path
from acclimate.bench.locks import Claims
from acclimate.places import Folder

claims = Claims(Folder(Path(sys.argv[1])))
claims.take(sys.argv[2:])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(folder: Path, *keys: str) -> Iterator[subprocess.Popen[str]]:
    """Within, another process is at work on some cells."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", HOLDER, str(folder), *keys]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_the_same_cells_are_run_by_one_process(tmp_path: Path) -> None:
    out, keys = tmp_path / "out", [cell.key for cell in cells()]
    with held(out, *keys[:2]) as other:
        message = "another process is at work on 2 of these 4 cells in .*out: wait until it is done"
        with pytest.raises(OptionError, match=message):
            run_grid(cells(), "", out, resume=True)
        assert not finished(out)
        with held(out, *keys[2:]):
            pass  # other cells, side by side in the same folder, as shards are
        other.send_signal(signal.SIGKILL)
        other.wait()
        run_cells(tmp_path, Faults())
    assert finished(out).keys() == set(keys), "what a dead process held is nobody's"


def test_what_is_done_is_given_back(tmp_path: Path) -> None:
    one = Claims(Folder(tmp_path))
    one.take(["a0", "b0"])
    one.give_back(["a0"])
    with held(tmp_path, "a0") as other:
        assert other.poll() is None, "what was given back is another's"
    one.close()
    with held(tmp_path, "b0") as other:
        assert other.poll() is None, "and so is the rest after the end"


def test_what_a_killed_process_was_writing_goes(tmp_path: Path) -> None:
    mine, other = tmp_path / ".a0.123.part.json", tmp_path / ".b0.124.part.json"
    mine.write_text("{")
    other.write_text("{")
    claims = Claims(Folder(tmp_path))
    claims.take(["a0"])
    claims.close()
    assert (mine.exists(), other.exists()) == (False, True), "of its own cells only"


def test_where_there_are_no_locks_nobody_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Claims(Bucket("memory://grid")) for _ in range(2))
    for bucket in (one, other):
        bucket.take(["a0"])
        bucket.check_writable()
    one.give_back(["a0"])
    assert (one._file, other._file) == (None, None), "a bucket has no file to lock"

    def without(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks_module.fcntl, "lockf", without)
    with held(tmp_path, "a0"):
        claims = Claims(Folder(tmp_path))
        claims.take(["a0", "b0"])
        assert claims._file is None, "nothing is held where nothing can be"
        claims.give_back(["a0"])
        claims.close()
    monkeypatch.undo()
    with held(tmp_path, "a0"), pytest.raises(OptionError, match="at work on 1 of these 2 cells"):
        Claims(Folder(tmp_path)).take(["a0", "b0"])  # which a disk with locks would have said


def test_a_folder_that_cannot_be_written_is_told_before_the_first_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cells(tmp_path, Faults())
    own = os.open

    def read_only(path: object, flags: int, *arguments: int, **options: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return own(path, flags, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    outcome = run_grid(cells(), "", tmp_path / "out", resume=True)
    assert outcome.skipped == 4, "nothing has to be written"
    with pytest.raises(OptionError, match="out cannot be written: Read-only file system"):
        run_grid(cells(), "", tmp_path / "out", force=True)


def test_a_record_under_the_name_of_another_is_none(tmp_path: Path) -> None:
    run_cells(tmp_path, Faults())
    whole, keys = finished(tmp_path / "out"), [cell.key for cell in cells()]
    shutil.copy(tmp_path / "out" / record_name(keys[0]), tmp_path / "out" / record_name(keys[1]))
    run_cells(tmp_path, Faults())
    again = finished(tmp_path / "out")
    assert all(again[key]["result"] == whole[key]["result"] for key in keys)


def test_many_cells_are_taken_in_no_time(tmp_path: Path) -> None:
    claims = Claims(Folder(tmp_path))
    keys = [f"{number * 2**48:016x}" for number in range(10_000)]
    begun = time.monotonic()
    claims.take(keys)
    claims.give_back(keys)
    claims.close()
    assert time.monotonic() - begun < 10
