"""Files made to do harm: each is refused in one sentence and in little time, and nothing of it runs."""

from __future__ import annotations

import io
import os
import time
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from acclimate.bench.mirror import _below
from acclimate.bench.spec import checked_cell
from acclimate.data import open_data
from acclimate.data.download import cached, download
from acclimate.data.pictures import read_image
from acclimate.errors import InputError, OptionError
from acclimate.records import finished, read_records
from file_readers import READERS, saved
from fuzzing import Input, judged
from hostile import HOSTILE, SENTINEL

CASES = [(reader, name) for reader, files in HOSTILE.items() for name in files]
SECONDS = 10


@pytest.mark.parametrize(("reader", "name"), CASES, ids=[f"{reader}: {name}" for reader, name in CASES])
def test_it_is_refused(reader: str, name: str, tmp_path: Path) -> None:
    hostile = HOSTILE[reader][name]
    content = hostile.make()
    begun = time.monotonic()
    verdict = judged(reader, Input(content), tmp_path)
    assert verdict.kind == "refused", verdict.said
    assert hostile.expected in verdict.said
    assert time.monotonic() - begun < SECONDS
    assert not SENTINEL.exists()


def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    """Who opens one waits until somebody writes to it, which may be never."""
    (tmp_path / "a.json").write_bytes(READERS["record"].make()[0])
    os.mkfifo(tmp_path / "b.json")
    assert len(read_records(tmp_path)) == len(finished(tmp_path)) == 1
    os.mkfifo(tmp_path / "b.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "c.png")
    (tmp_path / "d.png").symlink_to("nowhere")
    assert open_data(tmp_path, "unlabelled").names == ["c.png", "d.png"]
    with pytest.raises(InputError, match=r"d\.png cannot be read: No such file"):
        read_image(tmp_path / "d.png", None)


def test_a_line_of_pixels_does_not_become_a_billion(tmp_path: Path) -> None:
    Image.new("L", (1, 65_000)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="of 1 by 65000 pixels no square can be cut"):
        read_image(tmp_path / "a.png", 224)
    assert read_image(tmp_path / "a.png", None).shape == (65_000, 1, 3)


def test_a_small_file_has_no_eighty_million_pixels(tmp_path: Path) -> None:
    """Pillow would take it: it warns of 90 million, and refuses 180."""
    content = saved(lambda file: Image.new("RGB", (16, 16)).save(file, "bmp"))
    announced = content[:18] + (9_000).to_bytes(4, "little") * 2 + content[26:]
    (tmp_path / "a.bmp").write_bytes(announced)
    with pytest.raises(InputError, match="it announces 9000 by 9000 pixels in 822 bytes"):
        read_image(tmp_path / "a.bmp", 224)


@pytest.mark.parametrize("name", ["../../etc", "/etc", "fog/../..", "fog\0", ".."])
def test_names_are_no_paths(name: str, tmp_path: Path) -> None:
    (tmp_path / "fog/5/a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "fog/5/a/1.png")
    with pytest.raises(OptionError, match="unknown corruption"):
        open_data(tmp_path, "imagenet-c", corruption=name, severity=5)
    cell = {"network": {"name": "demo"}, "data": {"name": "d"}, "method": "slr", "corruption": name}
    with pytest.raises(OptionError, match="unknown corruption"):
        checked_cell(cell, "a record")
    key = checked_cell({**cell, "corruption": None, "data": {"name": name.strip("\0")}}, "a record").key
    assert key.isalnum()
    assert len(key) == 16


@pytest.mark.parametrize("name", ["b/data/../../x", "b/data2/x", "elsewhere", "/b/data/x"])
def test_a_store_cannot_name_files_outside_of_its_copy(name: str) -> None:
    assert _below("b/data/fog/1.png", "b/data", "s3://b/data") == "fog/1.png"
    with pytest.raises(InputError, match="does not lie below it"):
        _below(name, "b/data", "s3://b/data")


def test_an_address_gives_no_name_of_a_folder(tmp_path: Path) -> None:
    source = tmp_path / "there/a.tar"
    source.parent.mkdir()
    source.write_bytes(b"content")
    kept = cached(f"file://{source}#{'x' * 300}/..", tmp_path / "cache")
    assert kept.read_bytes() == b"content"
    assert kept.parent.parent == tmp_path / "cache"
    long = cached(f"file://{source}#{'x' * 300}", tmp_path / "cache")
    assert len(long.name) <= 100


class _Answer(io.BytesIO):
    """Of a server that says odd things."""

    status = 200

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__(b"content")
        self.headers = Message()
        for name, value in headers.items():
            self.headers[name] = value


def test_a_server_may_say_what_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"Content-Length": "many", "Last-Modified": "yesterday", "ETag": '"a"'}

    def answer(*_: Any, **__: Any) -> _Answer:
        return _Answer(odd)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    assert download("http://host/a.tar", tmp_path / "a.tar").read_bytes() == b"content"
    assert cached("http://host/a.tar", tmp_path).read_bytes() == b"content"
    assert cached("http://host/a.tar", tmp_path).read_bytes() == b"content", "nor is it fetched for ever"
