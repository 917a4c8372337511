"""Networks by name, and weights from files, which are refused for a reason or fit."""

from __future__ import annotations

import sys
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.demo.bundle import bundled_model
from acclimate.errors import ModelError
from acclimate.models.hubs import without_retries
from acclimate.models.load import load_model, load_weights
from acclimate.models.vision import import_torchvision
from acclimate.prepare import model_info


def tiny() -> nn.Module:
    """A factory."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


NOT_A_NETWORK = "text"


def test_the_bundled_network_by_name() -> None:
    assert torch.equal(load_model("demo").linear.weight, bundled_model().linear.weight)


def test_other_weights_are_not_those_that_a_factory_compares_with_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paper.py").write_text(
        "from torch import nn\ndef make():\n    net = nn.Linear(3, 2)\n    net.paper_name = 'resnet50'\n"
        "    return net\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_model("paper:make").paper_name == "resnet50"
    save_file(nn.Linear(3, 2).state_dict(), tmp_path / "own.safetensors")
    assert load_model("paper:make", tmp_path / "own.safetensors").paper_name is None


def test_a_factory_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.py").write_text(
        "from torch import nn\nnet = nn.Linear(3, 2)\nmake = lambda: net\nnumber = int\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("lab:make", "lab:net"):
        assert isinstance(load_model(name), nn.Linear)
    with pytest.raises(ModelError, match="unknown name in lab 'mak': did you mean 'make'"):
        load_model("lab:mak")
    with pytest.raises(ModelError, match="cannot import laboratory"):
        load_model("laboratory:make")
    with pytest.raises(ModelError, match=r"gives a int, expected a torch.nn.Module"):
        load_model("lab:number")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {f"module.{name}": tensor for name, tensor in state.items()}},
        lambda state: {"state_dict": {}, "model_ema": state},
    ],
)
def test_weights_of_checkpoints(tmp_path: Path, wrap: object) -> None:
    torch.manual_seed(0)
    source, target = tiny(), tiny()
    torch.save(wrap(source.state_dict()), tmp_path / "a.pt")  # type: ignore[operator]
    load_weights(target, tmp_path / "a.pt")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_weights_of_safetensors_into_a_stock_network(tmp_path: Path) -> None:
    source = import_torchvision().models.resnet18(weights=None)
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    loaded = load_model("resnet18", tmp_path / "a.safetensors")
    assert not loaded.training
    assert torch.equal(loaded.fc.weight, source.fc.weight)
    timms = load_model("resnet18.a1_in1k", tmp_path / "a.safetensors")
    assert torch.equal(timms.fc.weight, source.fc.weight)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    state = tiny().state_dict()
    state["extra"] = torch.zeros(1)
    state["3.weight"] = torch.zeros(5, 4)
    del state["0.bias"]
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(
        ModelError, match=r"another network than Sequential .missing: '0.bias'; not in .*'extra'; of"
    ):
        load_weights(tiny(), tmp_path / "a.pt")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file of weights"):
        load_weights(tiny(), tmp_path / "none.pt")
    torch.save(tiny(), tmp_path / "whole.pt")  # a pickled module would run code
    with pytest.raises(ModelError, match=r"without running code from it.*save a plain state_dict"):
        load_weights(tiny(), tmp_path / "whole.pt")
    for name in ("a.pt", "a.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ModelError, match="damaged"):
            load_weights(tiny(), tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ModelError, match=r"expected a state_dict .* got list"):
        load_weights(tiny(), tmp_path / "list.pt")


def test_unknown_names_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="unknown model 'resnet5': did you mean 'resnet50'"):
        load_model("resnet5")

    def offline(*arguments: object, **options: object) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision._internally_replaced_utils.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(
        ModelError, match=r"cannot be had .*: fetch https://.*resnet18.* and give the file as weights"
    ):
        load_model("resnet18")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def net(): raise OSError('no weights')", "cannot be called without arguments: OSError: no weights"),
        ("def net(x): pass", "cannot be called without arguments: TypeError"),
        ("net = 3", "cannot be called without arguments: TypeError"),
        ("def net(:", "cannot import broken_factory: SyntaxError"),
        ("1 / 0", "cannot import broken_factory: ZeroDivisionError"),
    ],
)
def test_factories_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "broken_factory.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_factory", raising=False)
    with pytest.raises(ModelError, match=message):
        load_model("broken_factory:net")
    with pytest.raises(ModelError, match="cannot import"):
        load_model(":net")


class Classifier(nn.Module):
    """What transformers gives: logits in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_labels=5)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.norm(x).mean((2, 3))))


@pytest.mark.parametrize(
    ("said", "side"),
    [
        ({"crop_size": {"height": 96, "width": 96}}, 96),
        ({"size": {"shortest_edge": 64}}, 64),
        ({"size": (56, 56)}, 56),
        ({"size": 48}, 48),
        ({}, None),
    ],
)
def test_classifiers_of_hugging_face(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, object], side: int | None
) -> None:
    processor = SimpleNamespace(image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.2, 0.1], **said)
    library = SimpleNamespace(
        AutoModelForImageClassification=SimpleNamespace(from_pretrained=lambda name: Classifier()),
        AutoImageProcessor=SimpleNamespace(from_pretrained=lambda name: processor),
    )
    monkeypatch.setitem(sys.modules, "transformers", library)
    model = load_model("hf:owner/name")
    info = model_info(model)
    assert info is not None
    assert (info.mean, info.std, info.size) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1), side)
    adapter = Adapter(model, "slr", freeze="none", normalize=(info.mean, info.std))  # type: ignore[arg-type]
    assert adapter(torch.rand(4, 3, 16, 16)).shape == (4, 5)
    assert adapter.setting == "few"


def test_networks_of_robustbench(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def load(**options: str) -> nn.Module:
        asked.append(options)
        if options["model_name"] == "none":
            raise KeyError("none")
        return Classifier()

    monkeypatch.setitem(sys.modules, "robustbench", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "robustbench.utils", SimpleNamespace(load_model=load))
    model = load_model("robustbench:cifar10/corruptions/Standard")
    assert asked == [{"model_name": "Standard", "dataset": "cifar10", "threat_model": "corruptions"}]
    info = model_info(model)
    assert info is not None
    assert info.std == (1.0, 1.0, 1.0)
    with pytest.raises(ModelError, match="cannot be had from RobustBench: KeyError"):
        load_model("robustbench:cifar10/corruptions/none")
    with pytest.raises(ModelError, match="expected robustbench:DATASET/THREAT/NAME"):
        load_model("robustbench:Standard")


def test_hubs_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "robustbench.utils", None)
    with pytest.raises(ModelError, match="needs transformers, which is not installed"):
        load_model("hf:owner/name")
    with pytest.raises(ModelError, match="needs robustbench, which is not installed"):
        load_model("robustbench:a/b/c")

    def fail(name: str) -> nn.Module:
        raise OSError("We couldn't connect\nto the hub")

    library = SimpleNamespace(AutoModelForImageClassification=SimpleNamespace(from_pretrained=fail))
    monkeypatch.setitem(sys.modules, "transformers", library)
    with pytest.raises(ModelError, match=r"\(We couldn't connect\): fetch its folder"):
        load_model("hf:owner/name")


def test_a_hub_that_does_not_answer_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    asked = []

    class Session:
        def head(self, address: str, timeout: float) -> None:
            asked.append(address)
            raise OSError("no route")

    def sleep(seconds: float) -> None:
        raise AssertionError(f"it retries after {seconds} s")

    monkeypatch.setattr("huggingface_hub.utils.get_session", Session)
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"published weights of resnet18.a1_in1k cannot be had"):
        load_model("resnet18.a1_in1k")
    assert (asked, constants.HF_HUB_OFFLINE) == ([constants.ENDPOINT], False)


def test_a_hub_that_answers_is_asked_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    session = SimpleNamespace(head=lambda address, timeout: None)
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: session)
    with without_retries():
        assert not constants.HF_HUB_OFFLINE
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as the user asked
    with without_retries():
        assert constants.HF_HUB_OFFLINE
    assert constants.HF_HUB_OFFLINE


def test_torchvisions_weights_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stands_in(self: object, *_: object, **__: object) -> dict[str, Tensor]:
        asked.append(str(self))
        return import_torchvision().models.resnet50(weights=None).state_dict()

    monkeypatch.setattr("torchvision.models._api.WeightsEnum.get_state_dict", stands_in)
    sizes = [model_info(load_model(f"resnet50{tag}")).resize for tag in ("", ".IMAGENET1K_V1")]  # type: ignore[union-attr]
    assert asked == ["ResNet50_Weights.IMAGENET1K_V2", "ResNet50_Weights.IMAGENET1K_V1"]
    assert sizes == [232, 256]
    with pytest.raises(ModelError, match=r"unknown weights of resnet50 'IMAGENET1K_V7'.*'IMAGENET1K_V1'"):
        load_model("resnet50.IMAGENET1K_V7")


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_published_weights_as_a_file_see_the_same_input(name: str, tmp_path: Path) -> None:
    """Torchvision undoes the normalisation inside these two for their published weights."""
    source = import_torchvision().models.get_model(name, weights=None, init_weights=False)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    assert load_model(name, tmp_path / "w.pth").transform_input


def test_checkpoints_of_compiled_networks_and_empty_averages(tmp_path: Path) -> None:
    state = {f"_orig_mod.module.{name}": value for name, value in tiny().state_dict().items()}
    torch.save({"ema_state_dict": {}, "net": state}, tmp_path / "w.pth")
    load_weights(tiny(), tmp_path / "w.pth")
    torch.save({"epoch": 3, "weights": state}, tmp_path / "w.pth")
    with pytest.raises(ModelError, match="got dict with 'epoch', 'weights'"):
        load_weights(tiny(), tmp_path / "w.pth")


def test_safetensors_are_known_by_their_content(tmp_path: Path) -> None:
    source, model = tiny(), tiny()
    save_file(source.state_dict(), tmp_path / "w.st")
    load_weights(model, tmp_path / "w.st")
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_hub_network_says_its_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = SimpleNamespace(
        image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=3, size={"height": 96, "width": 96}
    )
    library = SimpleNamespace(
        AutoModelForImageClassification=SimpleNamespace(from_pretrained=lambda name: tiny()),
        AutoImageProcessor=SimpleNamespace(from_pretrained=lambda name: processor),
    )
    monkeypatch.setitem(sys.modules, "transformers", library)
    info = model_info(load_model("hf:some/vit"))
    assert info is not None
    assert (info.size, info.squash, info.interpolation) == (96, True, "bicubic")
    processor.size, processor.crop_size, processor.do_center_crop = {"shortest_edge": 110}, 96, True
    info = model_info(load_model("hf:some/resnet"))
    assert info is not None
    assert (info.size, info.resize, info.squash) == (96, 110, False)
