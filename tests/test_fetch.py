"""Downloads from a real server: cut, resumed, checked, unpacked; and the published addresses."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate.cli import app
from acclimate.corruptions import CORRUPTIONS
from acclimate.data.download import cached, download
from acclimate.data.fetch import DATASETS, Archive, Published, fetch
from acclimate.errors import FetchError, InputError, OptionError
from servers import serving

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "a.bin").write_bytes(CONTENT)
    return folder


def test_a_file_comes_whole(there: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    with serving(there) as server:
        target = tmp_path / "here/a.bin"
        download(f"{server.url}/a.bin", target, md5=MD5, progress=lambda *now: told.append(now))
        assert target.read_bytes() == CONTENT
        assert told[-1] == (300_000, 300_000)
        download(f"{server.url}/a.bin", target, md5=MD5)
        assert len(server.asked) == 1  # it was there


def test_a_cut_connection_is_resumed_at_once(there: Path, tmp_path: Path) -> None:
    with serving(there) as server:
        server.cuts = [100_000, 50_000]
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, pause=0)
        assert server.asked == ["", "bytes=100000-", "bytes=150000-"]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_what_came_is_kept_for_the_next_call(there: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with serving(there) as server:
        server.cuts = [10_000] * 5
        with pytest.raises(FetchError, match=r"50,000 bytes are in .*a.bin.part; the same call goes on"):
            download(f"{server.url}/a.bin", target, pause=0)
        assert not target.exists()
        download(f"{server.url}/a.bin", target, md5=MD5, pause=0)
        assert server.asked[-1] == "bytes=50000-"
    assert target.read_bytes() == CONTENT


def test_a_server_without_ranges_begins_anew(there: Path, tmp_path: Path) -> None:
    with serving(there, ranges=False) as server:
        server.cuts = [100_000]
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, pause=0)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_all_was_there_but_the_name(there: Path, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT)  # killed before the file got its name
    with serving(there) as server:
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_is_not_kept(there: Path, tmp_path: Path) -> None:
    with serving(there) as server, pytest.raises(FetchError, match=f"has the checksum {MD5}, expected 0"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5="0" * 32)
    assert not list(tmp_path.glob("a.bin*"))


def test_what_is_not_there(there: Path, tmp_path: Path) -> None:
    with serving(there) as server:
        with pytest.raises(FetchError, match=r"none.bin cannot be fetched.*404.*put it at .*/a.bin"):
            download(f"{server.url}/none.bin", tmp_path / "a.bin")
        assert len(server.asked) == 1  # no further try
    with pytest.raises(FetchError, match="cannot be fetched"):
        download("http://nothing.invalid/a.bin", tmp_path / "a.bin", pause=0)


def test_other_addresses(there: Path, tmp_path: Path) -> None:
    assert download(f"file://{there}/a.bin", tmp_path / "a.bin", md5=MD5).read_bytes() == CONTENT
    assert cached(f"local://{there}/a.bin", tmp_path / "cache").read_bytes() == CONTENT  # by fsspec
    assert cached(f"local://{there}/a.bin", tmp_path / "cache").name == "a.bin"
    with pytest.raises(FetchError, match="cannot be opened by fsspec"):
        download("nonsense://a/b", tmp_path / "b.bin")


@pytest.fixture
def published(there: Path) -> Path:
    (there / "fog/5/cat").mkdir(parents=True)
    (there / "fog/5/cat/a.txt").write_text("image")
    with tarfile.open(there / "weather.tar", "w") as file:
        file.add(there / "fog", "fog")
    return there


def described(url: str, path: Path, *holds: str) -> dict[str, Published]:
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    return {"some": Published("a test", (Archive(f"{url}/{path.name}", md5, holds),))}


def test_a_data_set_is_fetched_once_and_unpacked(published: Path, tmp_path: Path) -> None:
    told: list[str] = []
    with serving(published) as server:
        rows = described(server.url, published / "weather.tar", "fog")
        server.cuts = [2_000]
        root = fetch("some", tmp_path, datasets=rows, progress=lambda what, *_: told.append(what))
        assert (root / "fog/5/cat/a.txt").read_text() == "image"
        assert sorted(path.name for path in root.iterdir()) == ["fog"]
        fetch("some", tmp_path, datasets=rows)
        assert len(server.asked) == 2  # one of them cut
    assert set(told) == {"weather.tar"}


def test_an_archive_that_a_user_put_there_is_taken(published: Path, tmp_path: Path) -> None:
    rows = described("http://nothing.invalid", published / "weather.tar", "fog")
    (tmp_path / "some").mkdir()
    (tmp_path / "some/weather.tar").write_bytes((published / "weather.tar").read_bytes())
    assert (fetch("some", tmp_path, datasets=rows) / "fog").is_dir()


def test_archives_that_are_not_what_they_should_be(published: Path, tmp_path: Path) -> None:
    with serving(published) as server:
        with pytest.raises(InputError, match=r"weather.tar does not hold snow"):
            fetch("some", tmp_path, datasets=described(server.url, published / "weather.tar", "snow"))
        (published / "weather.tar").write_bytes(b"nothing")
        with pytest.raises(InputError, match=r"weather.tar cannot be read as a tar file"):
            fetch("some", tmp_path / "b", datasets=described(server.url, published / "weather.tar", "fog"))
        with tarfile.open(published / "evil.tar", "w") as file:
            file.add(published / "a.bin", "../outside.bin")
        with pytest.raises(InputError, match=r"evil.tar .*outside the destination: remove it"):
            fetch("some", tmp_path / "c", datasets=described(server.url, published / "evil.tar", "fog"))
    assert not list(tmp_path.rglob("outside.bin"))


def test_the_published_archives_hold_all_corruptions() -> None:
    held = [name for archive in DATASETS["imagenet-c"].archives for name in archive.holds]
    assert sorted(held) == sorted(CORRUPTIONS)
    assert set(DATASETS) == {"imagenet-c", "imagenet-r", "cifar-10-c", "cifar-100-c", "visda-c"}
    with pytest.raises(OptionError, match="did you mean 'imagenet-c'"):
        fetch("imagenet_c", ".")


def test_the_command_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive("http://nothing.invalid/CIFAR-10-C.tar", "0" * 32, ("CIFAR-10-C",))
    monkeypatch.setattr("acclimate.cli.fetch.DATASETS", {"cifar-10-c": Published("a test", (archive,))})
    result = CliRunner().invoke(app, ["fetch", "cifar-10-c", str(tmp_path)])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "http://nothing.invalid/CIFAR-10-C.tar cannot be fetched" in said
    assert f"put it at {tmp_path}/cifar-10-c/CIFAR-10-C.tar" in said
    assert CliRunner().invoke(app, ["fetch", "cifar", str(tmp_path)]).exit_code == 2


def test_an_archive_that_is_another_one_is_not_unpacked(published: Path, tmp_path: Path) -> None:
    rows = described("http://nothing.invalid", published / "weather.tar", "fog")
    (tmp_path / "some").mkdir()
    (tmp_path / "some/weather.tar").write_bytes(b"other")
    with pytest.raises(FetchError, match=r"weather.tar has the checksum .* expected"):
        fetch("some", tmp_path, datasets=rows)
    assert (tmp_path / "some/weather.tar").read_bytes() == b"other"


def test_what_was_moved_before_an_interrupt_stays(published: Path, tmp_path: Path) -> None:
    (published / "snow").mkdir()
    with tarfile.open(published / "weather.tar", "w") as file:
        file.add(published / "fog", "fog")
        file.add(published / "snow", "snow")
    (tmp_path / "some/fog").mkdir(parents=True)
    (tmp_path / "some/fog/own.txt").write_text("mine")
    (tmp_path / "some/.weather.tar.unpacked/half").mkdir(parents=True)
    with serving(published) as server:
        root = fetch(
            "some", tmp_path, datasets=described(server.url, published / "weather.tar", "fog", "snow")
        )
    assert sorted(path.name for path in root.iterdir()) == ["fog", "snow"]
    assert (root / "fog/own.txt").read_text() == "mine"


def test_a_file_that_changed_meanwhile_is_not_sewn_together(there: Path, tmp_path: Path) -> None:
    (there / "a.bin").write_bytes(b"old" * 1000)
    target = tmp_path / "a.bin"
    with serving(there, tags=True) as server:
        server.cuts = [500] * 5
        with pytest.raises(FetchError):
            download(f"{server.url}/a.bin", target, pause=0)
        (there / "a.bin").write_bytes(b"NEW" * 1000)
        download(f"{server.url}/a.bin", target, pause=0)
    assert target.read_bytes() == b"NEW" * 1000
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a.bin"]


def test_a_copy_is_made_anew_if_the_file_changed(there: Path, tmp_path: Path) -> None:
    (there / "a.bin").write_bytes(b"old")
    with serving(there) as server:
        url = f"{server.url}/a.bin"
        first = cached(url, tmp_path)
        assert cached(url, tmp_path) == first
        assert first.read_bytes() == b"old"
        (there / "a.bin").write_bytes(b"longer")
        assert cached(url, tmp_path).read_bytes() == b"longer"
    assert cached(url, tmp_path).read_bytes() == b"longer"  # nobody to ask
