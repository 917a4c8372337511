"""Everything in acclimate that reads a file: how a small valid one is made, and how it is read.

A reader is given the path of one file in a folder of its own. What it needs beside it (labels, images of a
list) it writes itself, so that only the file under test is ever damaged.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.bench.spec import checked_cell, read_spec
from acclimate.cli.terminal import lines_of
from acclimate.corruptions.output import open_output
from acclimate.corruptions.sources import open_source
from acclimate.data import open_data
from acclimate.data.cifar_c import ArrayReader
from acclimate.data.fetch import Archive, Published, fetch
from acclimate.data.folders import class_list
from acclimate.data.image_set import ImageSet
from acclimate.data.labels import labels_in_file, output_numbers
from acclimate.data.pictures import read_image
from acclimate.delta import read_delta, write_delta
from acclimate.models.load import load_weights
from acclimate.predicting import _kind_of
from acclimate.records import finished, read_cells, read_records
from acclimate.training import Recipe, _Run
from made_records import measured

SIZE = 8
"""Pixels of a side: small files, so that most damage matters."""


@dataclass(frozen=True)
class Reader:
    """What reads a file, and valid ones to begin with."""

    file: str
    """How the file is called."""
    make: Callable[[], tuple[bytes, ...]]
    read: Callable[[Path], Any]
    rewrite: Callable[[bytes, Callable[[Any], Any]], bytes] | None = None
    """Changes the document within, and makes a well-formed file of it: damage that no parser sees."""
    exact: bool = False
    """Whether it has a checksum: what is read then is what was written, or an error."""


@cache
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5),
    ).eval()  # fmt: skip


def pixels(count: int = 10, size: int = SIZE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def saved(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


@cache
def _deltas() -> tuple[bytes, ...]:
    found = []
    for method in ("tent", "slr"):
        adapter = Adapter(network(), method, freeze="none")
        adapter.fit(torch.from_numpy(pixels(16)).permute(0, 3, 1, 2).float() / 255, 2, batch_size=8)
        path = _scratch() / f"{method}.safetensors"
        adapter.save(path)
        found.append(path.read_bytes())
    return tuple(found)


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="acclimate-valid-"))


def _changed_delta(content: bytes, change: Callable[[Any], Any]) -> bytes:
    path = _scratch() / "changed.safetensors"
    path.write_bytes(content)
    tensors, document = read_delta(path)
    changed = change(document)
    write_delta(path, tensors, changed if isinstance(changed, dict) else {"changed": changed})
    return path.read_bytes()


def _read_delta(path: Path) -> Any:
    tensors, document = read_delta(path)
    return {name: tensor.clone() for name, tensor in tensors.items()}, document


def _load_delta(path: Path) -> Any:
    return Adapter.load(path, network())._engine.state()


@cache
def _records() -> tuple[bytes, ...]:
    found = [measured("slr", 60.0), measured("source", 50.0), measured("slr+it", 70.0, ssim=(0.5, 0.6))]
    return tuple(json.dumps(record).encode() for record in found)


def _changed_json(content: bytes, change: Callable[[Any], Any]) -> bytes:
    return json.dumps(change(json.loads(content))).encode()


def _read_folder(path: Path) -> Any:
    there = finished(path.parent)
    cells = [checked_cell(cell, str(path)) for cell in read_cells(path.parent)]
    return there, cells, read_records(path.parent)


def _lines() -> tuple[bytes, ...]:
    return (b"\n".join(_records()) + b"\n",)


def _packed() -> tuple[bytes, ...]:
    return tuple(gzip.compress(lines, mtime=0) for lines in _lines())


_SPEC = {
    "networks": [{"name": "demo", "weights": "a.pth"}],
    "data": [{"name": "demo", "path": "acclimate.demo.bundle:bundled_images", "limit": 64}],
    "methods": ["slr", "tent"],
    "corruptions": ["fog", None],
    "subsets": [None, {"classes": 0.5}],
    "overrides": [{"lr": 0.01, "freeze": "none", "betas": [0.9, 0.99]}],
    "evaluate": [1, 5],
}
_YAML = b"""# a spec
networks: &n [{name: demo}]
data:
  - {name: demo, path: "a.npz"}
methods: [slr, source]
seeds: [1, 2]
overrides:
  - {}
  - lr: 1.0e-2
"""


def _specs() -> tuple[bytes, ...]:
    return json.dumps(_SPEC).encode(), _YAML


def _changed_spec(content: bytes, change: Callable[[Any], Any]) -> bytes:
    return json.dumps(change(json.loads(json.dumps(_SPEC)))).encode()


@cache
def _image(kind: str) -> tuple[bytes, ...]:
    image = Image.fromarray(pixels(1, 12)[0])
    grey = Image.fromarray(pixels(1, 12)[0, ..., 0])
    ways: tuple[Image.Image, ...] = (image, grey)
    if kind in ("png", "tiff"):
        ways = (*ways, image.convert("P"), image.convert("RGBA"), grey.convert("I;16"))
    found = [saved(lambda file, way=way: way.save(file, kind)) for way in ways]
    if kind == "tiff":
        for how in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
            found.append(saved(lambda file, how=how: image.save(file, kind, compression=how)))
    return tuple(found)


def _read_image(path: Path) -> Any:
    image = read_image(path, SIZE)
    assert image.shape == (SIZE, SIZE, 3)
    return image


def _images_of(name: str, kind: str) -> Reader:
    return Reader(f"image.{name}", lambda: _image(kind), _read_image)


def _npy() -> tuple[bytes, ...]:
    return tuple(saved(lambda file, of=of: np.save(file, of)) for of in (pixels(), pixels()[..., 0]))


def _changed_npy(content: bytes, change: Callable[[Any], Any]) -> bytes:
    header = change({"descr": "|u1", "fortran_order": False, "shape": [10, SIZE, SIZE, 3]})
    if isinstance(header, dict) and isinstance(header.get("shape"), list):
        header["shape"] = tuple(header["shape"])
    text = repr(header).encode("latin-1", "replace") + b"\n"
    return b"\x93NUMPY\x01\x00" + (len(text) & 0xFFFF).to_bytes(2, "little") + text + pixels().tobytes()


def _npz() -> tuple[bytes, ...]:
    given = {"images": pixels(), "labels": np.arange(10)}
    return tuple(
        saved(lambda file, way=way: way(file, **given)) for way in (np.savez, np.savez_compressed)
    )  # fmt: skip


def _read_array(path: Path) -> Any:
    source = open_source(path, None)
    return source.labels, [source.read(position) for position in range(len(source))]


def _read_cifar(path: Path) -> Any:
    np.save(path.with_name("labels.npy"), np.arange(10) % 2)
    found = open_data(path.parent, "cifar-c", corruption="fog", severity=2)
    return found.labels, found.batch(range(len(found)))


def _read_labels(path: Path) -> Any:
    np.save(path.with_name("fog.npy"), pixels())
    found = open_data(path.parent, "cifar-c", corruption="fog", severity=2)
    return found.labels, found.batch(range(len(found)))


def tar_of(members: list[tuple[tarfile.TarInfo | str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file of members, whose headers may be anything."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if isinstance(member, str):
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if content else None)
    return file.getvalue()


def _shards() -> tuple[bytes, ...]:
    png, jpeg = _image("png")[0], _image("jpeg")[0]
    members: list[Any] = [
        ("a/1.png", png), ("a/1.cls", b"3"), ("ü" * 60 + ".jpg", jpeg), ("ü" * 60 + ".json", b'{"label": 4}'),
    ]  # fmt: skip
    return tuple(tar_of(members, form) for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))


def _read_shard(path: Path) -> Any:
    found = open_data(path, crop=SIZE)
    return found.names, found.labels, found.batch(range(len(found)))


def _checkpoint_state() -> dict[str, Any]:
    return {"epoch": 3, "state_dict": dict(network().state_dict())}


def _checkpoints() -> tuple[bytes, ...]:
    state = _checkpoint_state()
    return tuple(
        saved(lambda file, new=new: torch.save(state, file, _use_new_zipfile_serialization=new))
        for new in (True, False)
    )


def _changed_checkpoint(content: bytes, change: Callable[[Any], Any]) -> bytes:
    return saved(lambda file: torch.save(change(_checkpoint_state()), file))


def _safetensors() -> tuple[bytes, ...]:
    return (save({name: value.contiguous() for name, value in network().state_dict().items()}),)


def _read_weights(path: Path) -> dict[str, Tensor]:
    model = copy.deepcopy(network())
    load_weights(model, path)
    return model.state_dict()


def _archives() -> tuple[bytes, ...]:
    members: list[Any] = [("set/a.png", _image("png")[0]), ("set/b/c.txt", b"some text"), ("other.txt", b"")]
    return tuple(tar_of(members, form) for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))


def _read_archive(path: Path) -> Any:
    root = path.parent / "data"
    published = Published("a set", (Archive(path.as_uri(), None, ("set",)),))
    fetch("d", root, datasets={"d": published})
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))


def _lists() -> tuple[bytes, ...]:
    return (b"aeroplane/a.png 0\nbus/b.png 2\n\ntruck/c d.png 11\n",)


def _read_list(path: Path) -> Any:
    for name in ("aeroplane/a.png", "bus/b.png", "truck/c d.png"):
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(_image("png")[0])
    found = open_data(path.parent, "visda-c", crop=SIZE)
    return found.names, found.labels, found.batch(range(len(found)))


def _read_label_file(path: Path) -> Any:
    images = ImageSet(ArrayReader(pixels()), [f"{number}.png" for number in range(len(pixels()))])
    found = output_numbers(labels_in_file(path, images, ("cat", "dog", "ü")), 3)
    return found.labels


def _label_files() -> tuple[bytes, ...]:
    count = range(len(pixels()))
    rows = ("".join(f"{number}.png,{label(number)}\n" for number in count) for label in (_number, _name))
    return tuple(text.encode() for text in ("file,label\n" + "".join(part) for part in rows))


def _number(number: int) -> str:
    return str(number % 3)


def _name(number: int) -> str:
    return ("cat", "dog", "ü")[number % 3]


def _read_settings(path: Path) -> Any:
    with open_output(path.parent, {"seed": 0, "images": "digest"}, ["fog/1"], force=False) as output:
        return output.holds("fog/1")


def _training() -> _Run:
    """A training that has made no step."""
    images = ImageSet(ArrayReader(pixels()), [f"{i}" for i in range(10)], "arrays", torch.arange(10) % 2)
    assert images.labels is not None
    return _Run(copy.deepcopy(network()), images, images.labels, None, Recipe(epochs=2, batch_size=5))


@cache
def _trainings() -> tuple[bytes, ...]:
    run, path = _training(), _scratch() / "training.safetensors"
    run.update(4)
    run.keep(path)
    return (path.read_bytes(),)


def _read_training(path: Path) -> Any:
    run = _training()
    run.restore(path)
    return run.step, run.update(4)


READERS: dict[str, Reader] = {
    "delta": Reader("d.safetensors", _deltas, _read_delta, _changed_delta, exact=True),
    "delta, loaded": Reader("d.safetensors", _deltas, _load_delta, _changed_delta, exact=True),
    "adapted": Reader("d.safetensors", lambda: (*_deltas(), *_safetensors()), _kind_of),
    "record": Reader("a.json", _records, _read_folder, _changed_json),
    "records, lines": Reader("a.jsonl", _lines, read_records),
    "records, packed": Reader("a.jsonl.gz", _packed, read_records, exact=True),
    "spec": Reader("spec.yaml", _specs, lambda path: list(read_spec(path).cells()), _changed_spec),
    "png": _images_of("png", "png"),
    "jpeg": _images_of("jpeg", "jpeg"),
    "webp": _images_of("webp", "webp"),
    "tiff": _images_of("tif", "tiff"),
    "bmp": _images_of("bmp", "bmp"),
    "ppm": _images_of("ppm", "ppm"),
    "npy": Reader("a.npy", _npy, _read_array, _changed_npy),
    "npz": Reader("a.npz", _npz, _read_array),
    "cifar-c": Reader("fog.npy", _npy, _read_cifar, _changed_npy),
    "labels": Reader("labels.npy", lambda: (saved(lambda f: np.save(f, np.arange(10) % 2)),), _read_labels),
    "shard": Reader("a.tar", _shards, _read_shard),
    "archive": Reader("set.tar", _archives, _read_archive),
    "checkpoint": Reader("a.pt", _checkpoints, _read_weights, _changed_checkpoint),
    "weights": Reader("a.safetensors", _safetensors, _read_weights),
    "training": Reader("t.safetensors", _trainings, _read_training),
    "visda list": Reader("image_list.txt", _lists, _read_list),
    "class names": Reader("names.txt", lambda: ("cat\ndog\nü\n".encode(),), lines_of),
    "output names": Reader("classes.txt", lambda: ("cat\ndog\nü\n".encode(),), class_list),
    "label file": Reader("y.csv", _label_files, _read_label_file),
    "settings": Reader(
        "corruptions.json", lambda: (b'{"seed": 0, "images": "digest"}\n',), _read_settings, _changed_json
    ),
}
