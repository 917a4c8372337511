"""What `acclimate corrupt` reads: images of all kinds, arrays and labels, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.corruptions.generate import corrupt_dataset
from acclimate.data.pictures import read_image
from acclimate.errors import InputError
from corrupted import FEW, picture, run


@pytest.mark.parametrize("labels", [np.array(["../../evil", "b"]), np.zeros((2, 2), int), np.array([0.5, 1])])
def test_labels_are_whole_numbers(tmp_path: Path, labels: np.ndarray) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 32, 32, 3), np.uint8), labels=labels)
    with pytest.raises(InputError, match="expected a whole number as label of each of the 2 images"):
        corrupt_dataset(tmp_path / "x.npz", tmp_path / "c", format="png", workers=1)


def test_a_column_of_labels_is_flattened(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x_test=np.zeros((2, 32, 32, 3), np.uint8), y_test=np.array([[3], [7]]))
    corrupt_dataset(tmp_path / "x.npz", tmp_path / "c", names=("fog",), workers=1)
    assert np.load(tmp_path / "c/labels.npy").tolist() == [3, 7] * 5


def test_links_are_followed_once_and_odd_names_kept(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "animals").symlink_to(folder / "cat")
    (folder / "cat" / "again").symlink_to(folder / "cat")
    odd = os.fsdecode(b"\xff.png")
    Image.fromarray(picture()).save(folder / "cat" / odd)
    outcome = corrupt_dataset(linked, tmp_path / "c", names=FEW, severities=(1,), size=32, workers=1)
    assert outcome.made == 6
    (folder / "cat" / odd).write_bytes(b"broken")
    code, said = run("corrupt", linked, tmp_path / "d[/b]", "--corruption", "fog", "--size", 32)
    assert code == 1
    assert r"\udcff.png cannot be read" in said


def test_a_truncated_image_is_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "cat/a.JPEG").read_bytes()
    (folder / "cat/cut.JPEG").write_bytes(whole[: len(whole) // 2])
    (folder / "cat/text.png").write_text("no image")
    Image.fromarray(picture(6, 6)).save(folder / "cat/tiny.png")
    code, said = run(
        "corrupt", folder, tmp_path / "c", "--corruption", "contrast,fog", "--size", 0, "--workers", 1
    )
    assert code == 1
    assert "30 corrupted images made" in said
    assert "cat/cut.JPEG cannot be read as an image" in said
    assert "truncated" in said
    assert "cat/text.png cannot be read as an image" in said
    assert "left out: cat/tiny.png: expected images of at least 8 by 8 pixels" in said
    assert not list((tmp_path / "c").rglob("cut*"))
    code, said = run(
        "corrupt",
        folder,
        tmp_path / "n",
        "--corruption",
        "fog",
        "--size",
        32,
        "--format",
        "npy",
        "--workers",
        2,
    )
    assert code == 1
    assert "cut.JPEG" not in (tmp_path / "n/files.txt").read_text()
    assert np.load(tmp_path / "n/fog.npy").shape[0] == 5 * 4


def test_bad_sources(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, said = run("corrupt", tmp_path / "empty", tmp_path / "c")
    assert code == 2
    assert "no images in" in said
    assert "'.jpeg'" in said
    assert "there is nothing at" in run("corrupt", tmp_path / "none", tmp_path / "c")[1]
    (tmp_path / "a.txt").write_text("")
    assert (
        "expected a folder of images, a .npy or a .npz"
        in run("corrupt", tmp_path / "a.txt", tmp_path / "c")[1]
    )
    for name in ("bad.npy", "bad.npz"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not an array")
        assert "cannot be read as an array" in run("corrupt", tmp_path / name, tmp_path / "c")[1]
    np.save(tmp_path / "floats.npy", np.zeros((2, 32, 32, 3)))
    assert "bring them to 0 to 255 as uint8" in run("corrupt", tmp_path / "floats.npy", tmp_path / "c")[1]
    np.save(tmp_path / "four.npy", np.zeros((2, 32, 32, 4), dtype=np.uint8))
    assert "1 or 3 channels, and they come last" in run("corrupt", tmp_path / "four.npy", tmp_path / "c")[1]
    np.savez(tmp_path / "odd.npz", pixels=np.zeros(3))
    assert "under one of 'images'" in run("corrupt", tmp_path / "odd.npz", tmp_path / "c")[1]
    np.savez(tmp_path / "few.npz", images=np.zeros((2, 32, 32, 3), np.uint8), labels=np.zeros(3))
    np.save(tmp_path / "one.npy", np.zeros((32, 32, 3), dtype=np.uint8))
    assert "give one image a first axis of 1" in run("corrupt", tmp_path / "one.npy", tmp_path / "c")[1]
    np.save(tmp_path / "tiny.npy", np.zeros((5, 4, 4, 3), dtype=np.uint8))
    assert "at least 8 by 8 pixels" in run("corrupt", tmp_path / "tiny.npy", tmp_path / "c")[1]
    assert "label of each of the 2 images" in run("corrupt", tmp_path / "few.npz", tmp_path / "c")[1]
    objects = np.array([{}], dtype=object)
    np.save(tmp_path / "pickled.npy", objects, allow_pickle=True)
    assert "cannot be read as an array" in run("corrupt", tmp_path / "pickled.npy", tmp_path / "c")[1]
    assert not (tmp_path / "c").exists()


def test_two_files_that_would_become_one(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(picture()).save(folder / "cat/a.png")
    with pytest.raises(InputError, match=r"cat/a.JPEG and cat/a.png would become one file in jpeg"):
        corrupt_dataset(folder, tmp_path / "c", workers=1)


def test_arrays_need_one_size(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(picture(30, 30)).save(folder / "dog/small.png")
    with pytest.raises(InputError, match=r"images of one size.*give a size to crop to"):
        corrupt_dataset(folder, tmp_path / "c", size=None, format="npy", workers=1)


@pytest.mark.parametrize(
    ("mode", "value", "level"),
    [
        ("RGBA", (10, 200, 30, 0), (10, 200, 30)),
        ("L", 77, (77, 77, 77)),
        ("I;16", 51400, (200, 200, 200)),
        ("1", 1, (255, 255, 255)),
        ("P", 3, None),
        ("CMYK", (0, 0, 0, 0), (255, 255, 255)),
    ],
)
def test_other_kinds_of_images_become_eight_bit_rgb(
    tmp_path: Path, mode: str, value: object, level: tuple[int, ...] | None
) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new(mode, (20, 30), value).save(path)  # type: ignore[arg-type]
    image = read_image(path, None)
    assert image.shape == (30, 20, 3)
    assert image.dtype == np.uint8
    if level is not None:
        assert image[5, 5].tolist() == list(level)


def test_floating_point_images_are_refused(tmp_path: Path) -> None:
    Image.new("F", (20, 30), 0.5).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match="floating-point pixels have no known range"):
        read_image(tmp_path / "a.tif", None)


def test_the_shorter_side_is_resized_and_the_centre_kept(tmp_path: Path) -> None:
    image = np.zeros((300, 600, 3), dtype=np.uint8)
    image[:, 300:] = 255
    Image.fromarray(image).save(tmp_path / "a.png")
    cropped = read_image(tmp_path / "a.png", 224)
    assert cropped.shape == (224, 224, 3)
    assert (cropped[:, :110] == 0).all()
    assert (cropped[:, 114:] == 255).all()


def test_other_files_are_told_of_and_formats_taken_as_people_write_them(folder: Path, tmp_path: Path) -> None:
    (folder / "cat/notes.txt").write_text("")
    (folder / "cat/a.HEIC").write_text("")
    options = ("--corruption", "fog", "--severity", "1", "--size", 32, "--format", ".JPG")
    code, said = run("corrupt", folder, tmp_path / "c", *options)
    assert code == 0
    assert "ignored: files with .HEIC, .txt" in said
    assert (tmp_path / "c/fog/1/cat/b.JPEG").exists()
