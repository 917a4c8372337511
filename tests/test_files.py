"""Files are written whole or not at all, and what cannot be written is told before the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from acclimate.errors import OptionError, OutputError
from acclimate.files import check_writable, whole_file


def test_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with whole_file(target) as part:
            part.write_text("new, cut")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with whole_file(target) as part:
        assert part.suffix == ".txt"
        part.write_text("new")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_links_are_followed_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with whole_file(tmp_path / "link.txt") as part:
        part.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    with whole_file(Path("/dev/null")) as part:
        part.write_text("gone")
    assert not Path("/dev/null").is_file()


def test_a_full_disk_is_one_sentence() -> None:
    def fail() -> None:
        with whole_file(Path("/dev/nowhere/a.txt")) as part:
            part.write_text("a")

    with pytest.raises(OutputError, match=r"/dev/nowhere/a.txt cannot be written: No such file"):
        fail()


def test_what_cannot_be_written(tmp_path: Path) -> None:
    check_writable(tmp_path / "a.txt", None)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OptionError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(OptionError, match="there is no folder"):
        check_writable(tmp_path / "none/a.txt")
    with pytest.raises(OptionError, match="cannot be written"):
        check_writable(Path("/proc/a.txt"))
