"""`acclimate corrupt` stopped, killed and started again: whole files only, and no two data sets mixed."""

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

from acclimate.corruptions import array_files, generate
from acclimate.corruptions import output as output_module
from acclimate.corruptions.generate import corrupt_dataset
from acclimate.corruptions.pool import run_all
from acclimate.corruptions.sources import open_source
from acclimate.errors import InputError, OptionError, OutputError, WorkerError
from corrupted import FEW, files, picture, pixels, run


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
