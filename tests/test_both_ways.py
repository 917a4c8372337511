"""`acclimate.adapt` and the command `acclimate adapt` predict the same bit for bit."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import acclimate
from acclimate import Adapter, corrupt, load_model, open_data
from acclimate.cli import app
from acclimate.data import Crop
from acclimate.delta import read_delta
from acclimate.demo.bundle import CLASSES, MEAN, STD, bundled_images, bundled_model
from acclimate.demo.network import SmallResNet
from acclimate.errors import AcclimateWarning, InputError, OptionError
from acclimate.models.vision import import_torchvision
from networks import images, resnet

COUNT = 48


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of a lab with poor light, in many forms; and weights of a network that says nothing."""
    place = tmp_path_factory.mktemp("lab")
    pixels = (bundled_images()[0][:COUNT] * 255).round().to(torch.uint8)
    shifted = corrupt(pixels, "contrast", 5).permute(0, 2, 3, 1).numpy()
    for folder in ("photos", "damaged", "classes/a", "classes/b"):
        (place / folder).mkdir(parents=True)
    for number, image in enumerate(shifted):
        for folder in ("photos", "damaged", f"classes/{'ab'[number % 2]}"):
            Image.fromarray(image).save(place / folder / f"{number:04d}.png")
    (place / "damaged/0000.png").write_bytes(b"no image")
    np.save(place / "images.npy", shifted)
    (place / "names.txt").write_text("\n".join(CLASSES))
    torch.manual_seed(0)
    save_file(SmallResNet(blocks=3).state_dict(), place / "silent.safetensors")
    return place


def by_command(tmp_path: Path, data: Path, options: str) -> tuple[list[dict[str, str]], dict[str, Tensor]]:
    """The rows of the predictions and the tensors of the delta."""
    out, table = tmp_path / "out.safetensors", tmp_path / "table.csv"
    files = ["--out", str(out), "--predictions", str(table)]
    done = CliRunner().invoke(app, ["adapt", "--data", str(data), *files, *options.split()])
    assert done.exit_code in (0, 1), done.output
    with table.open() as file:
        return list(csv.DictReader(file)), read_delta(out)[0]


def check(result: acclimate.AdaptationResult, found: tuple[list[dict[str, str]], dict[str, Tensor]]) -> None:
    rows, tensors = found
    for name, logits, predictions in (
        ("", result.logits, result.predictions),
        ("source_", result.source_logits, result.source_predictions),
    ):
        assert [row[f"{name}class"] for row in rows] == [str(p) for p in predictions.tolist()]
        sure = logits.softmax(1).amax(1)
        assert [row[f"{name}confidence"] for row in rows] == [f"{value:.6f}" for value in sure]
    own = {**result.adapter._engine.state(), "generator": result.adapter._generator.get_state()}
    assert own.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, own[name].cpu()), name


def photos(lab: Path) -> Path:
    return lab / "photos"


DEMO = "--model demo --epochs 1"
SILENT = "--model cifar-resnet20 --weights {lab}/silent.safetensors --epochs 1"
Make = Callable[[Path], Any]
BOTH: dict[str, tuple[str, str, Make, dict[str, Any]]] = {
    "a path": ("photos", DEMO, lambda lab: str(lab / "photos"), {}),
    "what open_data gives": (
        "photos", f"{DEMO} --method tent --batch-size 16", lambda lab: open_data(lab / "photos"),
        {"method": "tent", "batch_size": 16},
    ),
    "class folders": (
        "classes", f"{DEMO} --method bn", lambda lab: open_data(lab / "classes"), {"method": "bn"},
    ),
    "files as they are": (
        "photos", f"{DEMO} --method hlr --size 0", photos, {"method": "hlr", "size": 0},
    ),
    "a size and a normalisation by name": (
        "photos", f"{SILENT} --size 24 --normalize imagenet", photos, {"size": 24, "normalize": "imagenet"},
    ),
    "a normalisation in numbers": (
        "photos", f"{SILENT} --size 32 --normalize 0.4,0.4,0.4/0.2,0.2,0.2", photos,
        {"size": 32, "normalize": "0.4,0.4,0.4/0.2,0.2,0.2"},
    ),
    "an array": ("images.npy", DEMO, lambda lab: np.load(lab / "images.npy"), {}),
    "a tensor of bytes": (
        "images.npy", f"{DEMO} --method slr+it",
        lambda lab: torch.from_numpy(np.load(lab / "images.npy")).permute(0, 3, 1, 2), {"method": "slr+it"},
    ),
    "another seed, two epochs, the paper's setting": (
        "photos", "--model demo --epochs 2 --seed 3 --setting paper", photos,
        {"epochs": 2, "seed": 3, "setting": "paper"},
    ),
    "Pillow's images": (
        "photos", f"{DEMO} --no-guard --memory low",
        lambda lab: [Image.open(file) for file in sorted((lab / "photos").iterdir())],
        {"guard": False, "memory": "low"},
    ),
    "torchvision's folder without a transform": (
        "classes", f"{DEMO} --calibrate --gate refuse",
        lambda lab: import_torchvision().datasets.ImageFolder(str(lab / "classes")),
        {"calibrate": True, "gate": "refuse"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BOTH)
@pytest.mark.filterwarnings("ignore:the network seems to expect:acclimate.errors.AcclimateWarning")
@pytest.mark.filterwarnings("ignore:refused:acclimate.errors.AcclimateWarning")
def test_both_ways_predict_the_same(what: str, lab: Path, tmp_path: Path) -> None:
    data, options, make, keywords = BOTH[what]
    silent = "silent" in options
    network = load_model("cifar-resnet20", lab / "silent.safetensors") if silent else load_model("demo")
    result = acclimate.adapt(network, make(lab), **{"epochs": 1, **keywords})
    check(result, by_command(tmp_path, lab / data, options.format(lab=lab)))
    assert len(result.predictions) == COUNT


def test_a_file_that_cannot_be_read_is_left_out_by_both(lab: Path, tmp_path: Path) -> None:
    found = by_command(tmp_path, lab / "damaged", f"{DEMO} --classes {lab / 'names.txt'}")
    for data in (lab / "damaged", open_data(lab / "damaged")):
        with pytest.warns(
            AcclimateWarning, match=r"1 of 48 images cannot be read and are left out: '0000.png'"
        ):
            result = acclimate.adapt(load_model("demo"), data, epochs=1)
        assert [row["class"] for row in found[0]] == [CLASSES[p] for p in result.predictions.tolist()]
        assert [row["file"] for row in found[0]] == list(result.names or ())
        assert list(result.left_out) == ["0000.png"]
        assert "cannot be read as an image" in result.left_out["0000.png"]
        assert "; 1 that cannot be read are left out" in str(result)


def test_an_adapter_reads_off_the_network_too(lab: Path) -> None:
    """Size and normalisation are the network's, whatever holds the pixels; float tensors go as they are."""
    found = open_data(lab / "photos")
    plain, given = (Adapter(bundled_model(), "slr", **how) for how in ({}, {"normalize": (MEAN, STD)}))
    for adapter in (plain, given):
        adapter.fit(found, epochs=1)
    as_bytes = torch.from_numpy(np.load(lab / "images.npy")).permute(0, 3, 1, 2)
    for data in (found, as_bytes, DataLoader(open_data(lab / "photos", crop=32), batch_size=64)):
        assert torch.equal(plain.predict(data), given.predict(data))
    assert "pixels are normalised as the network says: mean (0.286" in plain.notes[-1]
    pixels = found.cropped(Crop(32)).batch(range(8))
    assert not torch.equal(plain.predict(pixels), given.predict(pixels))


def test_a_crop_that_was_asked_for_stays(lab: Path) -> None:
    for number in range(4):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(lab / f"classes/{number}.png")
    found, small = (
        open_data(lab / "classes", "unlabelled", crop=crop).subset(range(4)) for crop in (Crop(), 16)
    )
    asked: list[tuple[int, ...]] = []
    model = bundled_model()
    model.register_forward_pre_hook(lambda _, images: asked.append(tuple(images[0].shape)))
    for data in (found, small, open_data(lab / "classes", "unlabelled").subset(range(4))):
        Adapter(model, "source").predict(data)
    for number in range(4):
        (lab / f"classes/{number}.png").unlink()
    assert [shape[2:] for shape in asked] == [(224, 224), (16, 16), (32, 32)]


def test_what_is_not_known_is_said(lab: Path) -> None:
    silent = nn.Sequential(nn.Conv2d(3, 8, 3, 8), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(4)).eval()
    silent(torch.zeros(1, 3, 224, 224))
    with pytest.raises(OptionError, match=r"give normalize \(--normalize\), MEAN/STD"):
        acclimate.adapt(silent, lab / "photos")
    with pytest.raises(OptionError, match="does not say what its input was normalised with"):
        Adapter(silent, "bn").fit(open_data(lab / "photos"))
    small = open_data(lab / "photos").subset(range(4))
    with pytest.warns(AcclimateWarning, match=r"enlarged to 224, .* \(size, --size\)"):
        acclimate.adapt(silent, small, "bn", normalize="none", gate="off", epochs=1)
    with pytest.raises(InputError, match="says 32 by 32 pixels, but the images have 24 by 24"):
        acclimate.adapt(load_model("demo"), lab / "photos", size=24)
    with pytest.raises(OptionError, match="a wrong normalisation silently costs accuracy"):
        acclimate.adapt(load_model("demo"), lab / "photos", normalize="imagenet")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: np.zeros((8, 16, 16, 3), np.float32), r"array of float32 may be anything: give bytes"),
        (lambda: np.zeros((8, 3, 16, 16), np.uint8), "1 or 3 channels, and they come last"),
        (lambda: torch.zeros(8, 16, 16, 3, dtype=torch.uint8), "where channels are last"),
        (lambda: [np.zeros((16, 16, 3), np.uint8)] * 8, "tensor"),
        (lambda: DataLoader([Image.new("RGB", (16, 16))] * 8), "the loader's data set gives Pillow's images"),
        (lambda: "photos/none", "there is nothing at photos/none"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_gets_a_sentence(data: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        acclimate.adapt(resnet(), data(), normalize="none")


def test_fit_says_how_to_open_a_path() -> None:
    with pytest.raises(InputError, match=r"expected images, got a path: acclimate.open_data\('photos'\)"):
        Adapter(resnet()).fit("photos")
    with pytest.raises(OptionError, match="size is for image files, and Tensor gives images that are ready"):
        acclimate.adapt(resnet(), images(8), size=32)


def test_loaders_of_files_are_not_fed_in_another_size(lab: Path) -> None:
    with pytest.raises(InputError, match=r"not cropped as the network wants them: .* crop=32"):
        Adapter(bundled_model()).predict(DataLoader(open_data(lab / "photos")))


def test_an_adapter_takes_a_normalisation_by_name() -> None:
    first, second = (Adapter(resnet(), normalize=given) for given in ("half", ((0.5,) * 3, (0.5,) * 3)))
    assert first.options == second.options
    with pytest.raises(OptionError, match=r"normalize must be MEAN/STD, such as .* or 'imagenet'"):
        Adapter(resnet(), normalize="imagnet")


class OfLogits(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return logits.square().mean()


def of_both(logits: Tensor, index: Tensor | None) -> Tensor:
    assert index is not None
    return logits.square().mean()


def with_a_default(logits: Tensor, power: float = 2.0) -> Tensor:
    return logits.pow(power).mean()


def test_an_objective_takes_logits_alone_too() -> None:
    for objective in (OfLogits(), with_a_default, lambda logits: logits.square().mean()):
        found, expected = (
            acclimate.adapt(resnet(), images(16), objective=function, epochs=1, gate="off").logits
            for function in (objective, of_both)
        )
        assert torch.equal(found, expected)
    with pytest.raises(
        OptionError, match=r"objective must take logits, or \(logits, index\), but needs 'a', 'b'"
    ):
        Adapter(resnet(), objective=lambda a, b, c: a)
    with pytest.raises(OptionError, match="objective must be a function of logits, got str"):
        Adapter(resnet(), objective="entropy")  # type: ignore[arg-type]


def test_a_result_says_what_changed_and_whether_to_trust_it(lab: Path) -> None:
    result = acclimate.adapt(load_model("demo"), lab / "photos", epochs=1)
    method, changed, confidence, classes, verdict = str(result).split("\n")
    count = int(result.predictions.ne(result.source_predictions).sum())
    assert method == "slr, hyperparameters of the setting 'few', 1 step; predictions by statistics: batch"
    assert changed == f"48 images: the prediction of {count} ({100 * count / 48:.1f}%) has changed"
    assert (confidence.startswith("mean confidence: "), classes.endswith("; no alarm")) == (True, True)
    assert result.verdict is not None
    assert verdict == result.verdict.reason
    assert repr(result) == "AdaptationResult('slr', 48 images, accepted)"
    assert torch.equal(
        result.source_logits, Adapter(load_model("demo"), "source").predict(open_data(lab / "photos"))
    )
    assert str(acclimate.adapt(resnet(), images(16), "source")).endswith("not judged")


def test_a_result_may_be_refused() -> None:
    pixels = bundled_images()[0][:96]
    how = {"normalize": (MEAN, STD), "lr": 1.0, "epochs": 2, "guard": False, "gate": "refuse"}
    with pytest.warns(AcclimateWarning, match="refused"):
        result = acclimate.adapt(bundled_model(), pixels, **how)
    assert result.refused
    assert torch.equal(result.predictions, result.source_predictions)
    assert str(result).endswith("so that predictions are the source's")
    assert result.statistics == "source"
    with pytest.raises(OptionError, match="unknown gate"):
        acclimate.adapt(resnet(), images(8), gate=False)  # type: ignore[arg-type]
