"""WebDataset shards and Hugging Face's data sets, here and from an address."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.data import download as downloads
from acclimate.data import find_layout, open_data
from acclimate.errors import FetchError, InputError
from servers import serving


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (12, 12), (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in (8, 9, 10):
        members: dict[str, bytes] = {}
        for k in range(3):
            key = f"train/{number}_{k}"
            members |= {f"{key}.png": png(10 * number + k), f"{key}.cls": str(k).encode(), f"{key}.txt": b"?"}
        shard(tmp_path / f"part-{number:02d}.tar", members)
    return tmp_path


@pytest.mark.parametrize("pattern", ["part-{08..10}.tar", "part-*.tar"])
def test_shards_are_read_in_their_order(shards: Path, pattern: str) -> None:
    path = f"{shards}/{pattern}"
    assert find_layout(path) == "shards"
    images = open_data(path, crop=None)
    assert len(images) == 9
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 2] * 3
    found = (images.batch([8, 0, 4])[:, 0, 0, 0] * 255).round().int().tolist()
    assert found == [102, 80, 91]
    assert images.names[0] == "train/8_0"


def test_shards_from_an_address(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(downloads, "_PAUSE", 0)
    here = open_data(f"{shards}/part-{{08..10}}.tar", crop=None)
    with serving(shards) as server:
        server.cuts = [3_000]  # the first is cut and resumed
        away = open_data(f"{server.url}/part-{{08..10}}.tar", crop=None)
        assert server.asked == ["", "bytes=3000-", "", ""]
        again = open_data(f"{server.url}/part-{{08..10}}.tar", crop=None)
        assert len(server.asked) == 4
    for images in (away, again, open_data(f"file://{shards}/part-{{08..10}}.tar", crop=None)):
        assert torch.equal(images.batch(range(9)), here.batch(range(9)))
        assert images.names == here.names


def test_labels_in_json_and_none_at_all(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"x.png": png(1), "x.json": json.dumps({"label": 7}).encode()})
    assert open_data(tmp_path / "a.tar").labels.tolist() == [7]  # type: ignore[union-attr]
    shard(tmp_path / "b.tar", {"x.png": png(1), "x.json": b"{}"})
    assert open_data(tmp_path / "b.tar").labels is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x.png": b"", "y.png": b""}, None),
        ({"x.png": b"", "x.jpg": b""}, r"a.tar holds x twice: x.png and x.jpg"),
        ({"x.png": b"", "x.cls": b"cat"}, r"x.cls of .*a.tar holds no label"),
        ({"x.png": b"", "x.cls": b"1", "y.png": b""}, r"y of .*a.tar has no label, but others have"),
        ({"x.txt": b""}, "no images in"),
    ],
)
def test_wrong_shards(tmp_path: Path, members: dict[str, bytes], message: str | None) -> None:
    shard(tmp_path / "a.tar", members)
    if message is None:
        with pytest.raises(InputError, match=r"x of .*a.tar cannot be read as an image"):
            open_data(tmp_path / "a.tar").batch([0])
        return
    with pytest.raises(InputError, match=message):
        open_data(tmp_path / "a.tar")


def test_shards_that_are_none(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.tar").write_bytes((shards / "part-08.tar").read_bytes()[:700])
    with pytest.raises(InputError, match=r"cut.tar cannot be read as a tar file"):
        open_data(tmp_path / "cut.tar")
    with pytest.raises(InputError, match=r"there is no shard .*part-11.tar"):
        open_data(f"{shards}/part-{{10..11}}.tar")
    (shards / "part-11.tar").write_bytes((shards / "part-08.tar").read_bytes())
    with pytest.raises(InputError, match=r"part-11.tar holds train/8_0, which was there before"):
        open_data(f"{shards}/part-*.tar")


class Image_:  # noqa: N801 - stands for a feature of `datasets`
    """A column of images."""


class ClassLabel:
    """A column of labels."""

    names = ("cat", "dog")


Image_.__name__ = "Image"


class Rows:
    """What `datasets` gives for a split, as far as it is used."""

    column_names = ("picture", "label")
    features: dict[str, Any] = {"picture": Image_(), "label": ClassLabel()}  # noqa: RUF012

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int | str) -> Any:
        if key == "label":
            return [0, 1, 1]
        assert isinstance(key, int)
        return {"picture": Image.new("L", (12, 12), 50 * key), "label": 0}


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FetchError, match="needs datasets: pip install"):
        open_data("hf:owner/name")
    asked: list[str] = []

    def load(name: str) -> dict[str, Rows]:
        asked.append(name)
        if name == "owner/none":
            raise ConnectionError("no route\nto host")
        return {"train": Rows(), "test": Rows()}

    library = SimpleNamespace(load_dataset=load, load_from_disk=lambda name: Rows())
    monkeypatch.setitem(sys.modules, "datasets", library)
    images = open_data("hf:owner/name", crop=None)
    assert asked == ["owner/name"]
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 1]
    assert images.class_names == ("cat", "dog")
    np.testing.assert_array_equal(images.read(2), np.full((12, 12, 3), 100, dtype=np.uint8))
    assert len(open_data("hf:./saved", crop=None)) == 3
    with pytest.raises(FetchError, match=r"owner/none cannot be had from the hub: no route$"):
        open_data("hf:owner/none")
    monkeypatch.setattr(Rows, "features", {"label": ClassLabel()})
    with pytest.raises(InputError, match="has no column of images"):
        open_data("hf:owner/name")


def test_shards_that_webdataset_wrote(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    photos = np.random.default_rng(0).integers(0, 256, (10, 9, 11, 3), dtype=np.uint8)
    with webdataset.ShardWriter(str(tmp_path / "photos-%06d.tar"), maxcount=4, verbose=0) as sink:
        for number, photo in enumerate(photos):
            sink.write({"__key__": f"photo{number:04d}", "png": photo, "cls": number % 3})
    images = open_data(f"{tmp_path}/photos-{{000000..000002}}.tar", crop=None)
    assert images.labels is not None
    assert images.labels.tolist() == [number % 3 for number in range(10)]
    np.testing.assert_array_equal(np.stack([images.read(i) for i in range(10)]), photos)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.json": b'{"label": [1]}'}, "a whole number was expected"),
        ({"a.json": b'{"label": 3.9}'}, "a whole number was expected"),
        ({"a.cls": b"3", "a.json": b'{"label": 7}'}, "has two labels, 3 and 7"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    shard(tmp_path / "a.tar", {"a.png": png(1), **members})
    with pytest.raises(InputError, match=message):
        open_data(tmp_path / "a.tar", crop=None)


def test_partly_labelled_shards_do_where_labels_are_not_wanted(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"a.png": png(1), "a.cls": b"1", "b.png": png(2)})
    assert len(open_data(tmp_path / "a.tar", crop=None, labels=False)) == 2
    with pytest.raises(InputError, match=r"for its shards, give .*/\*.tar"):
        open_data(tmp_path)
    with pytest.raises(InputError, match="an address cannot have"):
        open_data("http://127.0.0.1:1/a-*.tar")


def test_a_broken_copy_of_a_shard_is_fetched_again(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    whole = (shards / "part-08.tar").read_bytes()
    (shards / "part-08.tar").write_bytes(whole[:700])
    with serving(shards) as server:
        url = f"{server.url}/part-08.tar"
        with pytest.raises(InputError, match=rf"a copy of {url}, and was removed"):
            open_data(url, crop=None)
        (shards / "part-08.tar").write_bytes(whole)
        assert len(open_data(url, crop=None)) == 3
