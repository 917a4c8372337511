"""What lies among images and is not used is named, or refused; nothing is left out in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import acclimate
from acclimate import Adapter, open_data
from acclimate.bench import Cell
from acclimate.bench.cell import run_cell
from acclimate.bench.images import labelled_by
from acclimate.bench.spec import Data, Network
from acclimate.cli import app
from acclimate.data.wnids import imagenet_wnids
from acclimate.demo.bundle import CLASSES, bundled_images, bundled_model
from acclimate.demo.network import SmallResNet
from acclimate.errors import AcclimateWarning, InputError

COUNT = 24


def save(folder: Path, names: tuple[str, ...]) -> None:
    """Some images for each of these folders."""
    pixels = (bundled_images()[0][:COUNT] * 255).byte().permute(0, 2, 3, 1).numpy()
    for number, image in enumerate(pixels):
        path = folder / names[number % len(names)] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images with other files and an empty folder among them."""
    save(tmp_path / "photos", ("cat", "dog"))
    for name in (
        "cat/a.HEIC",
        "cat/b.heic",
        "dog/c.gif",
        "labels.csv",
        "cat/readme.txt",
        "Thumbs.db",
        ".hidden",
    ):
        (tmp_path / "photos" / name).touch()
    (tmp_path / "photos/bird").mkdir()
    return tmp_path / "photos"


def test_what_is_not_read_is_named(photos: Path) -> None:
    with pytest.warns(
        AcclimateWarning,
        match=r"3 of 27 images cannot be read and are left out: 'cat/a.HEIC', 'cat/b.heic', ",
    ):
        result = acclimate.adapt(bundled_model(), photos, epochs=1, gate="off")
    assert result.left_out == {
        "cat/a.HEIC": "files .heic are not read: make them .png or .jpg",
        "cat/b.heic": "files .heic are not read: make them .png or .jpg",
        "dog/c.gif": "files .gif are not read: make them .png or .jpg",
    }
    assert len(result.predictions) == COUNT
    assert result.notes == (
        "2 files among the images are not read: 'cat/readme.txt', 'labels.csv'; if it has labels to measure "
        "by, give it as labels (--evaluate FILE)",
        "1 folder has no images: 'bird'",
    )
    assert "; 3 that cannot be read are left out" in str(result)
    assert all(note in str(result) for note in result.notes)


def test_the_command_names_it_too(photos: Path, tmp_path: Path) -> None:
    command = [
        "adapt",
        "--model",
        "demo",
        "--data",
        str(photos),
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "a"),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "left out: 2 files, 'cat/a.HEIC', 'cat/b.heic': files .heic are not read" in done.output
    assert "left out: 1 file, 'dog/c.gif'" in done.output
    assert "note: 1 folder has no images: 'bird'" in done.output
    rows = "".join(f"{file.name},1\n" for file in photos.rglob("*.png"))
    (photos / "labels.csv").write_text(rows)
    done = CliRunner().invoke(app, [*command, "--force", "--evaluate", str(photos / "labels.csv"), "--json"])
    told = json.loads(next(line for line in done.output.splitlines() if line.startswith("{")))
    assert told["notes"][0] == "1 file among the images is not read: 'cat/readme.txt'"
    assert len(told["failed"]) == 3
    assert told["evaluation"]["after"]["images"] == COUNT


def test_a_folder_without_anything_to_leave_out_says_nothing(tmp_path: Path) -> None:
    save(tmp_path, ("cat",))
    result = acclimate.adapt(bundled_model(), tmp_path, epochs=1, gate="off")
    assert (result.notes, result.left_out) == ((), {})


def test_opened_data_say_what_is_left_out(photos: Path) -> None:
    (photos / "bird").rmdir()
    with pytest.warns(AcclimateWarning, match=r"3 files of .* left out, as files .gif, .heic are not read"):
        found = open_data(photos)
    assert repr(found) == "ImageSet(class-folders, 24 images, labels of 2 classes, 3 files left out)"
    assert found.subset([0, 1]).left_out == found.left_out
    for file in photos.rglob("*.png"):
        file.unlink()
    with pytest.raises(
        InputError, match=r"no images in .*; there are files '.gif', '.heic', which are not read"
    ):
        open_data(photos)


def test_an_empty_class_folder_is_refused_where_classes_count(photos: Path) -> None:
    for name in ("cat/a.HEIC", "cat/b.heic", "dog/c.gif"):
        (photos / name).unlink()
    with pytest.raises(
        InputError, match=r"bird is a class folder without images: take it away, and name all"
    ):
        open_data(photos)
    (photos / "bird").rmdir()
    (photos / "classes.txt").write_text("bird\ncat\ndog\n")
    found = open_data(photos)
    assert found.class_names == ("bird", "cat", "dog")
    assert set(found.labels.tolist()) == {1, 2}  # type: ignore[union-attr]
    (photos / "classes.txt").write_text("bird\ncat\n")
    with pytest.raises(InputError, match=r"classes.txt does not name the class 'dog'"):
        open_data(photos)
    (photos / "classes.txt").write_text("bird\ncat\nbird\n")
    with pytest.raises(InputError, match="names 'bird' more than once"):
        open_data(photos)


def cell(path: Path) -> Cell:
    return Cell(
        network=Network(name="demo"),
        data=Data(name="x", path=path.name),
        method="source",
        epochs=1,
        batch_size=8,
    )


def test_class_folders_that_cannot_be_outputs_are_no_labels(tmp_path: Path) -> None:
    save(tmp_path / "two", ("cat", "dog"))
    message = r"name 2 classes, 'cat', 'dog', and the network has 10 outputs, .* expected as many classes as"
    with pytest.raises(InputError, match=message):
        run_cell(cell(tmp_path / "two"), tmp_path)
    for data in (tmp_path / "two", open_data(tmp_path / "two")):
        with pytest.raises(InputError, match=message):
            acclimate.evaluate(bundled_model(), data)
    assert len(acclimate.adapt(bundled_model(), tmp_path / "two", epochs=1, gate="off").predictions) == COUNT
    save(tmp_path / "named", ("cat", "dog"))
    (tmp_path / "named/classes.txt").write_text("\n".join(["cat", *CLASSES[1:9], "dog"]))
    record = run_cell(cell(tmp_path / "named"), tmp_path)
    predicted = Adapter(bundled_model(), "source").predict(open_data(tmp_path / "named")).argmax(1)
    right = predicted == torch.tensor([0] * 12 + [9] * 12)
    assert record["result"]["online"]["accuracy"] == pytest.approx(right.double().mean().item())
    assert acclimate.evaluate(bundled_model(), tmp_path / "named").right == int(right.sum())


def test_a_benchmark_leaves_nothing_out(photos: Path) -> None:
    (photos / "bird").rmdir()
    with pytest.raises(
        InputError, match=r"3 files would be left out of what is measured, such as cat/a.HEIC"
    ):
        run_cell(cell(photos), photos.parent)


def test_folders_of_some_of_imagenets_classes_are_its_outputs(tmp_path: Path) -> None:
    wnids = (imagenet_wnids()[0], imagenet_wnids()[7])
    save(tmp_path, wnids)
    big, small = (SmallResNet(blocks=1, num_classes=n).eval() for n in (1000, 2))
    expected = torch.tensor([0] * 12 + [7] * 12)
    for layout in ("auto", "class-folders"):
        found = labelled_by(big, open_data(tmp_path, layout, partial=True, crop=32))
        assert found.labels is not None
        assert torch.equal(found.labels, expected)
    ranks = labelled_by(small, open_data(tmp_path, "class-folders", crop=32)).labels
    assert ranks is not None
    assert torch.equal(ranks, expected.clamp(max=1))
    told = acclimate.evaluate(big, tmp_path, normalize="none", size=32)
    assert (told.images, set(told.per_class)) == (COUNT, set(wnids))
    assert told.labels.endswith("by ImageNet's numbers")
