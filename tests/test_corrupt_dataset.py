"""`acclimate corrupt`: folders and arrays to data sets, and its options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.corruptions import NAMES, SEVERITIES, VALIDATION_NAMES, corrupt
from acclimate.corruptions.generate import corrupt_dataset
from acclimate.corruptions.sources import FolderSource
from acclimate.errors import OptionError
from corrupted import FEW, files, picture, pixels, run


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


def test_names_given_twice_are_made_once(tmp_path: Path) -> None:
    images = np.stack([picture(32, 32, seed) for seed in range(70)])
    np.save(tmp_path / "x.npy", images)
    outcome = corrupt_dataset(tmp_path / "x.npy", tmp_path / "c", names=("fog", "fog"), workers=2)
    assert outcome.made == 350
    np.testing.assert_array_equal(np.load(tmp_path / "c/fog.npy")[:70], corrupt(images, "fog", 1))


def test_a_folder_becomes_arrays_and_an_array_a_tree(folder: Path, tmp_path: Path) -> None:
    corrupt_dataset(folder, tmp_path / "c", names=FEW, size=32, format="npy", workers=1)
    assert (tmp_path / "c/files.txt").read_text().split() == ["cat/a.JPEG", "cat/b.png", "dog/a.jpg"]
    assert np.load(tmp_path / "c/labels.npy").tolist() == [0, 0, 1] * 5
    assert np.load(tmp_path / "c/contrast.npy").shape == (15, 32, 32, 3)
    np.savez(tmp_path / "x.npz", x=picture(32, 32)[np.newaxis], y=np.array([7]))
    corrupt_dataset(tmp_path / "x.npz", tmp_path / "t", names=FEW, severities=(1,), format="png", workers=1)
    expected = corrupt(picture(32, 32), "contrast", 1)
    np.testing.assert_array_equal(pixels(tmp_path / "t/contrast/1/7/00000.png"), expected)


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


def test_a_target_that_is_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    code, said = run("corrupt", folder, tmp_path / "c")
    assert code == 2
    assert "is not a folder" in said
