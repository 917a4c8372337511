"""`acclimate corrupt`: folders and arrays to data sets, whole files only, resumable."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import acclimate
from acclimate.cli import app
from acclimate.corruptions import NAMES, SEVERITIES, VALIDATION_NAMES, array_files, corrupt, generate
from acclimate.corruptions import output as output_module
from acclimate.corruptions.generate import corrupt_dataset
from acclimate.corruptions.pool import run_all
from acclimate.corruptions.sources import FolderSource, open_source, read_image
from acclimate.errors import InputError, OptionError, OutputError, WorkerError

FEW = ("contrast", "gaussian_noise")


def picture(height: int = 60, width: int = 80, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, three images."""
    for number, name in enumerate(("cat/a.JPEG", "cat/b.png", "dog/a.jpg")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(seed=number)).save(path)
    return tmp_path / "images"


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_folder_becomes_an_imagenet_c_tree(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "c"
    outcome = corrupt_dataset(folder, target, names=FEW, severities=(2, 5), size=32, workers=1)
    assert (outcome.made, outcome.present, outcome.failed) == (12, 0, {})
    expected = {
        f"{name}/{severity}/{file}"
        for name in FEW
        for severity in (2, 5)
        for file in ("cat/a.JPEG", "cat/b.JPEG", "dog/a.jpg")
    }
    assert set(files(target)) == expected | {"corruptions.json"}
    with Image.open(target / "contrast/5/cat/b.JPEG") as made:
        assert made.size == (32, 32)
        # quality 85 has this first entry of its table for brightness
        assert made.quantization[0][0] == 5  # type: ignore[attr-defined]


def test_png_holds_exactly_what_corrupt_makes(folder: Path, tmp_path: Path) -> None:
    corrupt_dataset(folder, tmp_path / "c", names=FEW, size=32, format="png", seed=7, workers=1)
    source = FolderSource(folder, 32)
    for position, name in enumerate(source.names):
        stem = name.rpartition(".")[0]
        made = pixels(tmp_path / f"c/gaussian_noise/3/{stem}.png")
        expected = corrupt(source.read(position), "gaussian_noise", 3, seed=7, index=source.index(position))
        np.testing.assert_array_equal(made, expected)


def test_any_number_of_workers_makes_the_same_files(folder: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        corrupt_dataset(folder, tmp_path / str(workers), severities=(3,), size=32, workers=workers)
    one, two = files(tmp_path / "1"), files(tmp_path / "2")
    assert len(one) == 3 * 19 + 1
    assert one == two


def test_other_files_do_not_change_an_images_noise(folder: Path, tmp_path: Path) -> None:
    corrupt_dataset(folder, tmp_path / "a", names=FEW, size=32, workers=1)
    (folder / "cat/a.JPEG").unlink()
    corrupt_dataset(folder, tmp_path / "b", names=FEW, size=32, workers=1)
    before, after = files(tmp_path / "a"), files(tmp_path / "b")
    assert after.items() <= before.items()


def test_what_is_there_is_not_made_again(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "c"
    corrupt_dataset(folder, target, names=FEW, size=32, workers=1)
    whole = files(target)
    (target / "contrast/1/dog/a.jpg").unlink()
    kept = target / "contrast/2/dog/a.jpg"
    kept.write_bytes(b"the user's own")
    outcome = corrupt_dataset(folder, target, names=FEW, size=32, workers=1)
    assert (outcome.made, outcome.present) == (1, 29)
    assert kept.read_bytes() == b"the user's own"
    outcome = corrupt_dataset(folder, target, names=FEW, size=32, workers=1, force=True)
    assert (outcome.made, outcome.present) == (30, 0)
    assert files(target) == whole


def test_force_starts_over_and_mixes_nothing(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "c"
    corrupt_dataset(folder, target, names=FEW, size=32, workers=1)
    with pytest.raises(OptionError, match="was made with seed 0, not 1, and also holds 'gaussian_noise/1'"):
        corrupt_dataset(folder, target, names=("contrast",), size=32, seed=1, workers=1, force=True)
    (folder / "cat/a.JPEG").unlink()
    outcome = corrupt_dataset(folder, target, names=FEW, size=32, seed=1, workers=1, force=True)
    assert (outcome.made, outcome.present) == (20, 0)
    assert not list(target.rglob("a.JPEG"))  # what an earlier call made of it is gone
    assert json.loads((target / "corruptions.json").read_text())["seed"] == 1


def test_an_array_becomes_cifar_c_arrays(tmp_path: Path) -> None:
    images = np.stack([picture(32, 32, seed) for seed in range(70)])
    labels = np.arange(70) % 10
    np.savez(tmp_path / "test.npz", images=images, labels=labels)
    outcome = corrupt_dataset(tmp_path / "test.npz", tmp_path / "c", names=FEW, seed=3, workers=2)
    assert outcome.made == 2 * 5 * 70
    assert set(files(tmp_path / "c")) == {
        "contrast.npy",
        "gaussian_noise.npy",
        "labels.npy",
        "corruptions.json",
    }
    np.testing.assert_array_equal(np.load(tmp_path / "c/labels.npy"), np.tile(labels, 5))
    for name in FEW:
        made = np.load(tmp_path / f"c/{name}.npy")
        expected = np.concatenate([corrupt(images, name, severity, seed=3) for severity in SEVERITIES])
        np.testing.assert_array_equal(made, expected)
    again = corrupt_dataset(tmp_path / "test.npz", tmp_path / "c", names=(*FEW, "fog"), seed=3, workers=1)
    assert (again.made, again.present) == (350, 700)


def test_fewer_severities_are_a_file_each(tmp_path: Path) -> None:
    images = np.stack([picture(32, 32, seed)[..., 0] for seed in range(4)])  # grey, without a channel axis
    np.save(tmp_path / "test.npy", images)
    np.save(tmp_path / "labels.npy", np.arange(4))
    corrupt_dataset(tmp_path / "test.npy", tmp_path / "c", names=FEW, severities=(5, 2), workers=1)
    made = set(files(tmp_path / "c"))
    assert made == {f"{name}_{s}.npy" for name in FEW for s in (2, 5)} | {"labels.npy", "corruptions.json"}
    np.testing.assert_array_equal(np.load(tmp_path / "c/labels.npy"), np.arange(4))
    array = np.load(tmp_path / "c/contrast_2.npy")
    np.testing.assert_array_equal(array, corrupt(images[..., np.newaxis], "contrast", 2)[..., 0])
    with pytest.raises(OptionError, match="was made with severities single, not all"):
        corrupt_dataset(tmp_path / "test.npy", tmp_path / "c", names=FEW, workers=1)


def test_arrays_of_other_images_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    for name, count in (("one", 4), ("two", 2)):
        np.savez(tmp_path / f"{name}.npz", images=np.stack([picture(32, 32, count)] * count))
    corrupt_dataset(tmp_path / "one.npz", tmp_path / "c", names=FEW, workers=1)
    with pytest.raises(OptionError, match=r"was made with source one.npz, not two.npz"):
        corrupt_dataset(tmp_path / "two.npz", tmp_path / "c", names=FEW, workers=1)
    (tmp_path / "two.npz").rename(tmp_path / "one.npz")
    with pytest.raises(OptionError, match="was made of other images"):
        corrupt_dataset(tmp_path / "one.npz", tmp_path / "c", names=FEW, workers=1)
    corrupt_dataset(folder, tmp_path / "f", names=FEW, size=32, format="npy", workers=1)
    Image.fromarray(picture()).save(folder / "dog/new.png")
    with pytest.raises(OptionError, match="was made of other images"):
        corrupt_dataset(folder, tmp_path / "f", names=(*FEW, "fog"), size=32, format="npy", workers=1)


def test_names_given_twice_are_made_once(tmp_path: Path) -> None:
    images = np.stack([picture(32, 32, seed) for seed in range(70)])
    np.save(tmp_path / "x.npy", images)
    outcome = corrupt_dataset(tmp_path / "x.npy", tmp_path / "c", names=("fog", "fog"), workers=2)
    assert outcome.made == 350
    np.testing.assert_array_equal(np.load(tmp_path / "c/fog.npy")[:70], corrupt(images, "fog", 1))


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


def test_nothing_is_left_by_what_is_refused(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(picture(30, 30)).save(folder / "dog/small.png")
    with pytest.raises(InputError, match="images of one size"):
        corrupt_dataset(folder, tmp_path / "c", size=None, format="npy", workers=1)
    with pytest.raises(OptionError, match="seed must not be negative"):
        corrupt_dataset(folder, tmp_path / "c", seed=-1, workers=1)
    assert not (tmp_path / "c").exists()
    mine = tmp_path / "mine"
    (mine / ".parts-of-mine").mkdir(parents=True)
    with pytest.raises(OptionError, match="not of our making"):
        corrupt_dataset(folder, mine, size=32, workers=1)
    assert (mine / ".parts-of-mine").exists()


def test_a_folder_becomes_arrays_and_an_array_a_tree(folder: Path, tmp_path: Path) -> None:
    corrupt_dataset(folder, tmp_path / "c", names=FEW, size=32, format="npy", workers=1)
    assert (tmp_path / "c/files.txt").read_text().split() == ["cat/a.JPEG", "cat/b.png", "dog/a.jpg"]
    assert np.load(tmp_path / "c/labels.npy").tolist() == [0, 0, 1] * 5
    assert np.load(tmp_path / "c/contrast.npy").shape == (15, 32, 32, 3)
    np.savez(tmp_path / "x.npz", x=picture(32, 32)[np.newaxis], y=np.array([7]))
    corrupt_dataset(tmp_path / "x.npz", tmp_path / "t", names=FEW, severities=(1,), format="png", workers=1)
    expected = corrupt(picture(32, 32), "contrast", 1)
    np.testing.assert_array_equal(pixels(tmp_path / "t/contrast/1/7/00000.png"), expected)


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


def test_json_and_groups(folder: Path, tmp_path: Path) -> None:
    code, said = run(
        "corrupt", folder, tmp_path / "c", "--corruption", "validation", "--severity", "2-3",
        "--severity", "5", "--size", 32, "--workers", 1, "--json",
    )  # fmt: skip
    assert code == 0
    outcome = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    expected = {"made": 36, "present": 0, "failed": {}, "ignored": [], "target": str(tmp_path / "c")}
    assert outcome == expected
    assert {p.name for p in (tmp_path / "c").iterdir() if p.is_dir()} == set(VALIDATION_NAMES)
    assert {p.name for p in (tmp_path / "c/saturate").iterdir()} == {"2", "3", "5"}
    assert (
        run("corrupt", folder, tmp_path / "t", "--corruption", "test", "--severity", 1, "--size", 32)[0] == 0
    )
    assert {p.name for p in (tmp_path / "t").iterdir() if p.is_dir()} == set(NAMES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--severity", "0"], "severity must be 1 to 5, or a range such as 2-4, got '0'"),
        (["--severity", "6"], "severity must be 1 to 5, or a range such as 2-4, got '6'"),
        (["--severity", "4-2"], "severity must be 1 to 5, or a range such as 2-4, got '4-2'"),
        (["--severity", "3-"], "got '3-'"),
        (["--severity", "²"], "got '²'"),
        (["--severity", "hard"], "or a range such as 2-4, got 'hard'"),
        (["--corruption", "gausian_noise"], "did you mean 'gaussian_noise'"),
        (["--format", "gif"], "unknown format 'gif'"),
        (["--size", "4"], "size must be at least 8 pixels, got 4"),
    ],
)
def test_bad_options(folder: Path, tmp_path: Path, options: list[str], message: str) -> None:
    code, said = run("corrupt", folder, tmp_path / "c", *options)
    assert code == 2
    assert message in said.replace("\n", " ")


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
    assert "save them as uint8" in run("corrupt", tmp_path / "floats.npy", tmp_path / "c")[1]
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


def test_a_folder_made_otherwise_is_not_mixed_up(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "c"
    corrupt_dataset(folder, target, names=FEW, size=32, workers=1)
    with pytest.raises(OptionError, match="seed 0, not 1: choose another folder, or force it, which removes"):
        corrupt_dataset(folder, target, names=FEW, size=32, seed=1, workers=1)
    with pytest.raises(OptionError, match="seed 0, not 1, and also holds 'gaussian_noise/1'"):
        corrupt_dataset(folder, target, names="contrast", size=32, seed=1, workers=1)
    with pytest.raises(OptionError, match="was made with size 32, not 40"):
        corrupt_dataset(folder, target, names=FEW, size=40, workers=1)
    with pytest.raises(OptionError, match="is not empty and not of our making"):
        corrupt_dataset(folder, tmp_path, names=FEW, workers=1)
    with pytest.raises(OptionError, match="or inside it"):
        corrupt_dataset(folder, folder / "c", names=FEW, workers=1)
    (target / "corruptions.json").write_text("{")
    with pytest.raises(OptionError, match=r"corruptions.json is damaged"):
        corrupt_dataset(folder, target, names=FEW, size=32, workers=1)


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


def test_a_full_disk_ends_it_and_leaves_nothing_half_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "c"
    monkeypatch.setattr(output_module.Output, "_place", full)
    with pytest.raises(OutputError, match="No space left on device"):
        corrupt_dataset(folder, target, names=FEW, size=32, workers=1)
    assert files(target) == {}
    assert not list(target.iterdir())
    monkeypatch.undo()
    np.save(tmp_path / "x.npy", np.zeros((2, 32, 32, 3), dtype=np.uint8))
    monkeypatch.setattr(os, "posix_fallocate", full)
    code, said = run("corrupt", tmp_path / "x.npy", tmp_path / "n", "--corruption", "fog", "--workers", 1)
    assert code == 1
    assert "fog.npy cannot be written: No space left on device" in said.replace("\n", " ")


def test_a_target_that_is_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    code, said = run("corrupt", folder, tmp_path / "c")
    assert code == 2
    assert "is not a folder" in said


def test_other_files_are_told_of_and_formats_taken_as_people_write_them(folder: Path, tmp_path: Path) -> None:
    (folder / "cat/notes.txt").write_text("")
    (folder / "cat/a.HEIC").write_text("")
    options = ("--corruption", "fog", "--severity", "1", "--size", 32, "--format", ".JPG")
    code, said = run("corrupt", folder, tmp_path / "c", *options)
    assert code == 0
    assert "ignored: files with .HEIC, .txt" in said
    assert (tmp_path / "c/fog/1/cat/b.JPEG").exists()


def test_an_array_run_stopped_before_its_first_file_can_go_on(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz", images=np.stack([picture(32, 32, s) for s in range(100)]), labels=np.arange(100)
    )

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corrupt_dataset(tmp_path / "x.npz", tmp_path / "c", names=FEW, workers=1, progress=stop)
    assert set(files(tmp_path / "c")) == {"labels.npy", "corruptions.json"}
    assert corrupt_dataset(tmp_path / "x.npz", tmp_path / "c", names=FEW, workers=1).made == 1000


def test_a_failure_before_anything_was_made_leaves_no_settings(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        corrupt_dataset(folder, tmp_path / "c", names=FEW, size=32, workers=1, progress=7)  # type: ignore[arg-type]
    corrupt_dataset(folder, tmp_path / "d", names="fog", severities=1, size=32, workers=1)
    mine = tmp_path / "mine/fog/1"
    mine.mkdir(parents=True)
    (mine / "precious.txt").write_text("")
    with pytest.raises(OptionError, match="not of our making: choose another folder"):
        corrupt_dataset(folder, tmp_path / "mine", names="fog", severities=1, size=32, workers=1, force=True)
    assert (mine / "precious.txt").exists()


def test_frost_can_be_made_anew_from_another_source(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**options: object) -> int:
        return corrupt_dataset(folder, tmp_path / "c", severities=1, size=32, workers=1, **options).made  # type: ignore[arg-type]

    assert make(names=("fog", "frost")) == 6
    monkeypatch.setattr(generate, "frost_source", lambda: "photographs")
    assert make(names=("fog",)) == 0
    with pytest.raises(OptionError, match="was made with frost crystals, not photographs"):
        make(names=("frost",))
    assert make(names=("frost",), force=True) == 3


def test_an_interrupt_does_not_wait_for_the_work_under_way(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(4):
        Image.fromarray(picture(900, 900, number)).save(folder / f"{number}.png")
    command = [
        sys.executable,
        "-m",
        "acclimate",
        "corrupt",
        folder,
        tmp_path / "c",
        "--size",
        "0",
        "--workers",
        "2",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while not list((tmp_path / "c").rglob("*.JPEG")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    started = time.perf_counter()
    process.communicate(timeout=60)
    assert time.perf_counter() - started < 3
    assert process.returncode == 130
    assert not list((tmp_path / "c").glob(".parts*"))


def test_killed_or_interrupted_it_goes_on_to_the_same_files(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / f"images/k{number % 4}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(70, 70, number)).save(path)
    arguments = ["--size", "64", "--severity", "2,4", "--workers"]
    for how, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        target = tmp_path / how.name
        command = [sys.executable, "-m", "acclimate", "corrupt", tmp_path / "images", target, *arguments, "2"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        while not len(list(target.rglob("*.JPEG"))) > 20:
            time.sleep(0.01)
            assert process.poll() is None, "it ended before it could be stopped"
        process.send_signal(how)
        said = process.communicate(timeout=60)[1].decode()
        assert process.returncode == code
        if how == signal.SIGINT:
            assert "the same command (without --force) goes on with the rest" in said.replace("\n", " ")
            assert not list(target.glob(".parts*"))
        for made in target.rglob("*.JPEG"):
            pixels(made)  # whole
        assert run("corrupt", tmp_path / "images", target, *arguments, 2)[0] == 0
        assert not list(target.glob(".parts*"))
    assert run("corrupt", tmp_path / "images", tmp_path / "undisturbed", *arguments, 2)[0] == 0
    whole = files(tmp_path / "undisturbed")
    assert len(whole) == 40 * 2 * 19 + 1
    assert files(tmp_path / "SIGKILL") == files(tmp_path / "SIGINT") == whole


def test_an_array_run_that_is_killed_goes_on_with_the_next_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.stack([picture(32, 32, seed) for seed in range(300)]))
    options = ["--corruption", "contrast,zoom_blur,elastic_transform,motion_blur", "--workers", "2"]
    command = [sys.executable, "-m", "acclimate", "corrupt", tmp_path / "x.npy", tmp_path / "k", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while not (tmp_path / "k/contrast.npy").exists():
        time.sleep(0.005)
        assert process.poll() is None, "it ended before it could be stopped"
    process.kill()
    process.communicate(timeout=60)
    there = set(files(tmp_path / "k"))
    assert "motion_blur.npy" not in there
    time.sleep(1)  # its workers have noticed by then
    assert run("corrupt", tmp_path / "x.npy", tmp_path / "k", *options)[0] == 0
    assert run("corrupt", tmp_path / "x.npy", tmp_path / "u", *options)[0] == 0
    assert files(tmp_path / "k") == files(tmp_path / "u")
    assert not list((tmp_path / "k").glob(".parts*"))


def test_workers_that_are_spawned(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.stack([picture(32, 32, seed) for seed in range(3)]))
    source = open_source(tmp_path / "x.npy", None)
    shapes = list(run_all(array_files._shape_of, source, range(3), 2, start="spawn"))
    assert sorted(shapes) == [(i, (32, 32, 3), None) for i in range(3)]


def die(job: object, task: int) -> int:
    os._exit(1)


def test_a_worker_that_dies_is_reported() -> None:
    with pytest.raises(WorkerError, match="a worker process died"):
        list(run_all(die, None, range(8), 2))


def test_contact_sheet(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    code, _ = run("figures", "corruptions", folder / "cat/b.png", "--out", out, "--size", 48, "--tile", 40)
    assert code == 0
    sheet = pixels(out)
    assert sheet.shape[0] > 19 * 40
    assert sheet.shape[1] > 6 * 40
    last = sheet[-12 - 44 : -12 - 4, -12 - 44 : -12 - 4].astype(int)  # saturate, severity 5
    expected = Image.fromarray(corrupt(read_image(folder / "cat/b.png", 48), "saturate", 5))
    shown = np.asarray(expected.resize((40, 40), Image.Resampling.LANCZOS))
    np.testing.assert_array_equal(last, shown)


def test_contact_sheet_errors(folder: Path, tmp_path: Path) -> None:
    assert run("figures", "corruptions", tmp_path / "none.png")[0] == 2
    code, said = run(
        "figures", "corruptions", folder / "cat/b.png", "--out", tmp_path / "a.xyz", "--size", 48
    )
    assert code == 1
    assert "cannot be written" in said


def test_debug_shows_the_error_itself(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown corruption"):
        run("corrupt", folder, tmp_path / "c", "--corruption", "nothing", "--debug")


def test_version() -> None:
    assert run("--version")[1].strip() == acclimate.__version__
