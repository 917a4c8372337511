"""Labels measure and decide nothing: `acclimate.evaluate`, `adapt(labels=)`, `acclimate adapt --evaluate`."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from typer.testing import CliRunner

import acclimate
from acclimate import Adapter, corrupt, open_data
from acclimate.chance import compare_paired, wilson
from acclimate.cli import app, main
from acclimate.data.labels import labels_in_file
from acclimate.demo.bundle import CLASSES, MEAN, STD, bundled_images, bundled_model
from acclimate.errors import AcclimateError, AcclimateWarning, InputError, OptionError
from acclimate.metrics import measure
from acclimate.models.vision import import_torchvision
from acclimate.records import read_records

COUNT = 80


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with too little contrast in class folders, and the same in one folder with labels in files."""
    place = tmp_path_factory.mktemp("lab")
    pixels, labels = bundled_images()
    shifted = corrupt((pixels[:COUNT] * 255).round().byte(), "contrast", 3).permute(0, 2, 3, 1).numpy()
    rows = []
    for number, (image, label) in enumerate(zip(shifted, labels.tolist(), strict=False)):
        for folder in ("flat", f"classes/{CLASSES[label]}"):
            (place / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / folder / f"{number:04d}.png")
        rows.append((f"{number:04d}.png", label))
    (place / "classes/classes.txt").write_text("\n".join(CLASSES))
    (place / "classes.txt").write_text("\n".join(CLASSES))
    np.save(place / "labels.npy", labels[:COUNT].numpy())
    np.save(place / "images.npy", shifted)
    write(place / "numbers.csv", rows)
    write(
        place / "headed.csv",
        [("label", "what", "file"), *((label, "x", f"./{name}") for name, label in rows)],
    )
    write(place / "names.csv", [(name, CLASSES[label]) for name, label in rows])
    return place


def write(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def truth() -> Tensor:
    return bundled_images()[1][:COUNT]


def check(found: acclimate.Evaluation, logits: Tensor, labels: Tensor) -> None:
    """Against a count by hand and the functions that have tests of their own."""
    right = int((logits.argmax(1) == labels).sum())
    quality = measure(logits, labels)
    assert (found.images, found.right, found.accuracy) == (len(labels), right, right / len(labels))
    assert found.interval == wilson(right / len(labels), len(labels))
    assert (found.ece, found.nll, found.brier) == (quality.ece, quality.nll, quality.brier)
    assert found.confidence == pytest.approx(logits.double().softmax(1).amax(1).mean().item())
    assert list(found.per_class.values()) == [share for share in quality.per_class if share is not None]
    assert sum(found.images_per_class.values()) == len(labels)


def test_labels_decide_nothing_but_what_is_measured(lab: Path) -> None:
    plain, measured = (
        acclimate.adapt(bundled_model(), lab / "flat", epochs=2, labels=labels)
        for labels in (None, lab / "numbers.csv")
    )
    assert plain.evaluation is None
    assert torch.equal(plain.logits, measured.logits)
    assert torch.equal(plain.source_logits, measured.source_logits)
    first, second = (result.adapter._engine.state() for result in (plain, measured))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert plain.history == measured.history
    found = measured.evaluation
    assert found is not None
    check(found.before, measured.source_logits, truth())
    check(found.after, measured.logits, truth())
    sides = [logits.argmax(1) == truth() for logits in (measured.source_logits, measured.logits)]
    assert found.paired == compare_paired(*sides)
    assert (found.before.statistics, found.after.statistics) == (
        "the source's statistics", "the statistics of each batch",
    )  # fmt: skip
    for part in ("accuracy before adapting", "95% interval", "McNemar's exact p", "labels of", "each batch"):
        assert part in str(measured)
    assert "accuracy" not in str(plain)


FORMS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a CSV file of numbers": ("flat", lambda lab: lab / "numbers.csv"),
    "a CSV file with a head": ("flat", lambda lab: str(lab / "headed.csv")),
    "a CSV file of names": ("flat", lambda lab: lab / "names.csv"),
    "an array's file": ("flat", lambda lab: lab / "labels.npy"),
    "an array": ("flat", lambda lab: truth().numpy()),
    "a column": ("flat", lambda lab: truth()[:, None].int()),
    "a list": ("flat", lambda lab: truth().tolist()),
    "by names of files": ("flat", lambda lab: {f"{i:04d}.png": n for i, n in enumerate(truth().tolist())}),
    "class folders and classes.txt": ("classes", lambda lab: "auto"),
    "class folders and a CSV file": ("classes", lambda lab: lab / "numbers.csv"),
    "labels beside an array": ("images.npy", lambda lab: "auto"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_labels_in_any_form_measure_the_same(form: str, lab: Path) -> None:
    path, make = FORMS[form]
    found = acclimate.evaluate(bundled_model(), lab / path, make(lab))
    order = [int(Path(name).stem) for name in open_data(lab / path).names]
    logits = Adapter(bundled_model(), "source").predict(np.load(lab / "images.npy"))
    check(found, logits[order], truth()[order])
    assert found.statistics == "the source's statistics"


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(bundled_images()[0][:COUNT], truth(), strict=True)

    def __len__(self) -> int:
        return COUNT


def as_dict(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {"pixel_values": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}


HOLDERS: dict[str, Callable[[TensorDataset], Any]] = {
    "a data set": lambda data: data,
    "a loader": lambda data: DataLoader(data, batch_size=16),
    "a shuffled loader": lambda data: DataLoader(data, batch_size=16, shuffle=True),
    "batches as dicts": lambda data: DataLoader(data, batch_size=32, collate_fn=as_dict),
    "a list of batches": lambda data: list(DataLoader(data, batch_size=16)),
    "a stream": lambda data: DataLoader(Stream(), batch_size=20),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_data_may_bring_their_own_labels(holder: str) -> None:
    pixels = bundled_images()[0][:COUNT]
    data = HOLDERS[holder](TensorDataset(pixels, truth()))
    model = bundled_model()
    state = torch.get_rng_state()
    found = acclimate.evaluate(model, data, normalize=(MEAN, STD))
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    Adapter(model, "source", normalize=(MEAN, STD)).predict(data)
    assert torch.equal(torch.get_rng_state(), drawn)  # looking for labels draws nothing
    check(found, Adapter(model, "source", normalize=(MEAN, STD)).predict(pixels), truth())


def test_loaders_of_opened_data_have_its_labels(lab: Path) -> None:
    found = open_data(lab / "classes", crop=32)
    loader = DataLoader(found, batch_size=16)
    told = acclimate.evaluate(bundled_model(), loader)
    assert found.labels is not None
    check(told, Adapter(bundled_model(), "source").predict(loader), found.labels)
    with pytest.raises(InputError, match="what comes beside the images must be a number for each"):
        acclimate.evaluate(bundled_model(), [(torch.rand(4, 3, 32, 32), ["a", "b", "c", "d"])])


class Shuffling(DataLoader[Any]):
    """Not reordered by acclimate, as it may do anything."""

    def __iter__(self) -> Any:
        return super().__iter__()


def test_an_order_that_is_drawn_anew_is_refused() -> None:
    data = Shuffling(TensorDataset(bundled_images()[0][:COUNT], truth()), batch_size=16, shuffle=True)
    with pytest.raises(
        InputError, match="come in another order each time, so that nobody knows which label is whose"
    ):
        acclimate.evaluate(bundled_model(), data, normalize=(MEAN, STD))


def test_torchvisions_folder_has_names_of_classes(lab: Path) -> None:
    found = import_torchvision().datasets.ImageFolder(str(lab / "classes"))
    assert found.classes == sorted(CLASSES)
    told = acclimate.evaluate(bundled_model(), found)
    assert (
        told.labels
        == "the data set's classes, in their order: output 0 is 'T-shirt', output 1 'ankle boot', …"
    )
    ranks = torch.tensor(found.targets)
    check(told, Adapter(bundled_model(), "source").predict(found), ranks)


def test_an_image_that_cannot_be_read_takes_its_label_with_it(lab: Path, tmp_path: Path) -> None:
    for file in (lab / "flat").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "0003.png").write_bytes(b"no image")
    kept = torch.arange(COUNT) != 3
    for labels in (truth(), lab / "numbers.csv"):
        with pytest.warns(AcclimateWarning, match="1 of 80 images cannot be read"):
            found = acclimate.evaluate(bundled_model(), tmp_path, labels)
        logits = Adapter(bundled_model(), "source").predict(np.load(lab / "images.npy")[kept.numpy()])
        check(found, logits, truth()[kept])


def test_labels_are_outputs_of_the_network_where_some_can_occur(lab: Path) -> None:
    classes = [7, 2, 5]
    rows = [i for i, label in enumerate(truth().tolist()) if label in classes]
    pixels = np.load(lab / "images.npy")[rows]
    found = acclimate.evaluate(bundled_model(), pixels, truth()[rows], classes=classes)
    columns = torch.tensor([classes.index(label) for label in truth()[rows].tolist()])
    check(found, Adapter(bundled_model(), "source", classes=classes).predict(pixels), columns)
    assert list(found.per_class) == ["7", "2", "5"]
    adapter = Adapter(bundled_model(), "bn", classes=classes)
    assert acclimate.evaluate(adapter, pixels, truth()[rows]).images == len(rows)
    with pytest.raises(
        InputError, match=r"labels must be among the outputs of classes=, 7, 2, 5, got 0, 1, 3"
    ):
        acclimate.evaluate(adapter, np.load(lab / "images.npy"), truth())


def test_an_adapter_predicts_as_it_does_and_stays_as_it_is(lab: Path) -> None:
    adapter = Adapter(bundled_model(), "slr")
    adapter.fit(open_data(lab / "flat"), epochs=1)
    before = adapter.predict(open_data(lab / "flat"))
    check(acclimate.evaluate(adapter, lab / "flat", truth()), before, truth())
    assert torch.equal(adapter.predict(open_data(lab / "flat")), before)
    exported = adapter.predict(open_data(lab / "flat"), statistics="target")
    told = acclimate.evaluate(adapter, lab / "flat", truth(), statistics="target")
    check(told, exported, truth())
    assert told.statistics == "the target's statistics, as exported"
    with pytest.raises(OptionError, match="an Adapter has 'normalize' of its own"):
        acclimate.evaluate(adapter, lab / "flat", truth(), normalize="imagenet")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (list(range(10)), "too few labels: expected one for each of 80 images, got 10"),
        ([0] * 81, "too many labels: expected one for each of 80 images, got 81"),
        ([0] * 79 + [10], "the labels must be from 0 to 9, the outputs of the network, got 10"),
        ([-1] + [0] * 79, "the labels must be from 0 to 9"),
        ([0.5] * 80, "one whole number for each image, an output of the network, got float64"),
        (torch.zeros(80, 10), "whole number for each image"),
        (["bag"] * 80, "the labels name 1 class, 'bag', and the network has 10 outputs"),
        ("auto", "the data have no labels of their own: expected class folders"),
        ("none.csv", "there is no file of labels at none.csv: expected a CSV file"),
        ({"0000.png": 1}, "a label for the name of each of 80 images, got no label for '0001.png'"),
        ([object()] * 80, "the labels must be whole numbers or names of classes"),
    ],
)
def test_labels_that_do_not_fit(
    lab: Path, labels: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adapter, "fit", None)  # it is told before the work begins
    with pytest.raises(AcclimateError, match=message):
        acclimate.adapt(bundled_model(), lab / "flat", labels=labels)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("0000.png", 1)], "has no label for 79 of 80 images: '0001.png', '0002.png'"),
        ([("0000.png", 1), ("0000.png", 2)], "has two labels of 0000.png: 1 and 2"),
        ([("a", "b", "c")], "expected the columns file and label"),
        ([("0000.png", "")], "row 1: expected a file and a label"),
        ([], "is empty"),
        ([(f"{i:04d}.png", "cat") for i in range(80)], "name 'cat', not among the names of the outputs"),
    ],
)  # fmt: skip
def test_files_of_labels_that_do_not_fit(
    lab: Path, tmp_path: Path, rows: list[tuple[Any, ...]], message: str
) -> None:
    write(tmp_path / "labels.csv", rows)
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    with pytest.raises(InputError, match=message):
        acclimate.evaluate(bundled_model(), lab / "flat", tmp_path / "labels.csv")


def test_a_file_may_have_labels_of_other_images_too(lab: Path, tmp_path: Path) -> None:
    """One file of labels for a whole data set, of which the folder has a part."""
    with (lab / "numbers.csv").open(newline="") as file:
        rows = [tuple(row) for row in csv.reader(file)]
    write(tmp_path / "labels.csv", [*rows, ("elsewhere.png", 3)])
    whole, part = (
        acclimate.evaluate(bundled_model(), lab / "flat", path)
        for path in (tmp_path / "labels.csv", lab / "numbers.csv")
    )
    assert dataclasses.replace(whole, labels=part.labels) == part


@pytest.mark.parametrize("head", [("file", "species"), ("image_id", "label"), ("CLASS", "stem")])
def test_one_known_word_makes_a_row_the_header(head: tuple[str, str], lab: Path, tmp_path: Path) -> None:
    with (lab / "numbers.csv").open(newline="") as file:
        rows = [tuple(row) for row in csv.reader(file)]
    write(tmp_path / "labels.csv", [head, *((row[::-1] if head[0] == "CLASS" else row) for row in rows)])
    headed, plain = (
        acclimate.evaluate(bundled_model(), lab / "flat", path)
        for path in (tmp_path / "labels.csv", lab / "numbers.csv")
    )
    assert headed.right == plain.right


def test_an_image_whose_class_is_called_like_a_column_is_no_header(lab: Path, tmp_path: Path) -> None:
    write(tmp_path / "labels.csv", [(f"{i:04d}.png", "target" if i == 0 else "other") for i in range(COUNT)])
    names = ["target", "other", *"abcdefgh"]
    labels = labels_in_file(tmp_path / "labels.csv", open_data(lab / "flat"), names).labels
    assert list(labels) == ["target", *["other"] * (COUNT - 1)]


@pytest.mark.parametrize(
    ("text", "row"),
    [("file,label\n0000.png,\n", 2), ("0000.png,1\n\n\n0001.png,\n", 4), ("0000.png,1\n0001.png\n", 2)],
)
def test_rows_are_counted_as_in_the_file(text: str, row: int, lab: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=rf"labels\.csv, row {row}: expected a file and a label"):
        acclimate.evaluate(bundled_model(), lab / "flat", tmp_path / "labels.csv")


class Drawing(Dataset[tuple[Tensor, int]]):
    """Images of which each is another whenever it is read, by all three of the global generators."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        drawn = np.random.rand() + random.random() + float(torch.rand(()))
        return self.pixels[position] * (0.7 + 0.1 * drawn), int(self.labels[position])


@pytest.mark.parametrize("loaded", [False, True])
def test_labels_change_nothing_that_data_draw(loaded: bool) -> None:
    pixels, labels = bundled_images()
    data = Drawing(pixels[:48], labels[:48])
    given = DataLoader(data, 16) if loaded else data
    found = []
    for asked in (None, "auto"):
        np.random.seed(0)
        random.seed(0)
        torch.manual_seed(0)
        result = acclimate.adapt(
            bundled_model(),
            given,
            "tent",
            epochs=1,
            batch_size=16,
            normalize=(MEAN, STD),
            gate="off",
            labels=asked,
        )
        found.append(result.logits)
    assert torch.equal(*found)


def test_a_tensor_has_no_labels_of_its_own() -> None:
    with pytest.raises(InputError, match="the data have no labels of their own"):
        acclimate.evaluate(bundled_model(), bundled_images()[0][:8], normalize=(MEAN, STD))


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_the_command_measures_what_the_call_does(lab: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    command = ("adapt", "--model", "demo", "--epochs", 1, "--out", out, "--force")
    code, said = run(*command, "--data", lab / "classes", "--evaluate", "auto", "--json")
    assert code == 0, said
    told = json.loads(next(line for line in said.splitlines() if line.startswith("{")))["evaluation"]
    expected = acclimate.adapt(bundled_model(), lab / "classes", epochs=1, labels="auto").evaluation
    assert told == json.loads(json.dumps(dataclasses.asdict(expected)))  # type: ignore[arg-type]
    kept = read_records(tmp_path / "a.json")[0]["result"]["evaluation"]
    assert kept["paired"]["won"] == told["paired"]["won"]
    assert kept["after"]["accuracy"] == pytest.approx(told["after"]["accuracy"], rel=1e-7)
    by_file = run(
        *command, "--data", lab / "flat", "--evaluate", lab / "names.csv", "--classes", lab / "classes.txt"
    )
    assert "measured by the labels of" in by_file[1]
    code, said = run(*command, "--data", lab / "flat", "--evaluate", "auto")
    assert (code, "the data have no labels of their own" in said) == (2, True)
    labels = lab / "numbers.csv"
    code, said = run(*command[:-3], "--data", lab / "flat", "--evaluate", labels, "--predictions", labels)
    assert (code, "would replace what is read" in said) == (2, True)


def test_evaluate_may_stand_alone(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "demo", "--epochs", "1", "--out", str(tmp_path / "a"), "--data", str(lab / "classes")]
    monkeypatch.setattr(sys, "argv", ["acclimate", "adapt", *words, "--evaluate"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "measured by the class folders of" in capsys.readouterr().out
