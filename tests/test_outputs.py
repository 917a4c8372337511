"""Outputs that are no class logits: a warning where values show it, an error where shapes do."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import acclimate
from acclimate import Adapter
from acclimate.errors import AcclimateWarning, ModelError
from acclimate.outputs import caution_about, check_input
from corrupted import run
from networks import images, resnet

PROBABILITIES, SIGMOID, EMBEDDINGS = "sums to 1", "as behind a sigmoid", "has length 1"
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    PROBABILITIES: lambda logits: logits.softmax(1),
    SIGMOID: torch.sigmoid,
    EMBEDDINGS: F.normalize,
}


class Through(nn.Module):
    """A classifier, and what is made of its logits."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.make = resnet(), make

    def forward(self, x: Tensor) -> Any:
        return self.make(30 * self.net(x))


def told(work: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    assert all(issubclass(warning.category, AcclimateWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 5, 1000])
@pytest.mark.parametrize("kind", OTHERS)
def test_each_kind_is_told_by_its_name(kind: str, classes: int, dtype: torch.dtype) -> None:
    for seed in range(20):
        logits = 3 * torch.randn(16, classes, generator=torch.Generator().manual_seed(seed))
        caution = caution_about(OTHERS[kind](logits.to(dtype)))
        assert caution is not None
        assert kind in caution


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 0.3, 1.0, 3.0, 30.0])
def test_logits_are_taken_for_nothing_else(classes: int, scale: float) -> None:
    """Of sure and of unsure networks; of untrained ones, which say about the same of all images; all zero."""
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        logits = scale * torch.randn(max(4, 16 // classes), classes, generator=generator)
        untrained = logits[:1] + 0.01 * logits
        for made in (logits, untrained, logits.bfloat16(), logits.log_softmax(1)):
            assert caution_about(made) is None or made.numel() < 16


@pytest.mark.parametrize("kind", OTHERS)
def test_an_adapter_warns_once(kind: str) -> None:
    adapter = Adapter(Through(OTHERS[kind]), "tent", statistics="batch")
    first = told(lambda: adapter(images()))
    assert len(first) == 1
    assert kind in first[0]
    assert "give the network" in first[0]
    adapter.reset()
    assert told(lambda: (adapter(images()), adapter.predict(images()))) == []


def test_the_classes_that_are_chosen_hide_nothing() -> None:
    adapter = Adapter(Through(OTHERS[PROBABILITIES]), "slr", classes=[0, 3])
    assert PROBABILITIES in told(lambda: adapter(images()))[0]


def test_few_outputs_are_not_judged_and_the_source_never_is() -> None:
    adapter = Adapter(Through(OTHERS[PROBABILITIES]), "tent", statistics="running")
    assert told(lambda: adapter(images(2))) == []
    assert PROBABILITIES in told(lambda: adapter(images(16)))[0]
    source = Adapter(Through(OTHERS[PROBABILITIES]), "source")
    assert told(lambda: source.predict(images())) == []


def test_the_remedies_that_are_named_give_logits() -> None:
    """The log of probabilities is the logits but for a constant of each image: the same softmax."""
    logits = 3 * torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
    again = logits.softmax(1).clamp_min(1e-12).log()
    assert torch.allclose(again.softmax(1), logits.softmax(1), atol=1e-6)
    assert caution_about(again) is None
    assert caution_about(logits.sigmoid().logit(1e-6)) is None
    plain, wrapped = (
        Adapter(Through(lambda x: x), "tent"),
        Adapter(Through(lambda x: x.softmax(1).log()), "tent"),
    )
    for _ in range(3):
        plain(images()), wrapped(images())
    assert torch.allclose(plain.predict(images()).softmax(1), wrapped.predict(images()).softmax(1), atol=1e-5)


def test_one_call_warns_once() -> None:
    def work() -> None:
        acclimate.adapt(Through(OTHERS[PROBABILITIES]), images(40), "tent", epochs=1)

    assert sum(PROBABILITIES in text for text in told(work)) == 1


BOXES = {"boxes": torch.zeros(3, 4), "labels": torch.zeros(3), "scores": torch.zeros(3)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x[:, :, None, None].expand(-1, -1, 8, 8), r"shape \(24, 5, 8, 8\), a map for every class"),
        (
            lambda x: OrderedDict(out=x[:, :, None, None]),
            r"OrderedDict with 'out' of the shape .*segmentation",
        ),
        (lambda x: SimpleNamespace(logits=x[:, :, None, None]), "a map for every class as of segmentation"),
        (lambda x: [BOXES for _ in x], "a list of dict with 'boxes', 'labels', 'scores', as of detection"),
        (lambda x: {"pred_boxes": x}, "as of detection"),
        (lambda x: x[:, None], r"shape \(24, 1, 5\), as tokens have"),
        (lambda x: x[:, 0], r"got the shape \(24,\)"),
        (lambda x: x.flatten()[:, None].expand(-1, 3), "got 120 rows for 24 images"),
        (lambda x: None, "got None"),
        (lambda x: ["a", "b"], "got a list of str"),
        (lambda x: [], "got a list"),
    ],
)
@pytest.mark.parametrize("predicts", [True, False])
def test_what_is_no_row_of_logits_for_each_image_is_refused(
    make: Callable[[Tensor], Any], message: str, predicts: bool
) -> None:
    adapter = Adapter(Through(make), "tent")
    with pytest.raises(ModelError, match=message) as refused:
        adapter.predict(images()) if predicts else adapter(images())
    assert "one logit per class for every image, a tensor (N, classes)" in str(refused.value)
    assert "adapt a classifier, or wrap the network" in str(refused.value)


class Two(nn.Module):
    """Of images and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet()

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        return self.net(image) + text


class Open(Two):
    def forward(self, *parts: Tensor, **more: Tensor) -> Tensor:  # type: ignore[override]
        return self.net(parts[0])


class Decorated(Two):
    @wraps(Two.forward)
    def forward(self, image: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(image, image.new_zeros(()))


class Nothing(Two):
    def forward(self, *, image: Tensor) -> Tensor:  # type: ignore[override]
        return self.net(image)


def test_a_network_of_two_inputs_is_refused_at_once() -> None:
    with pytest.raises(ModelError, match=r"Two\.forward takes 'image', 'text': wrap it in a module"):
        Adapter(Two(), "tent")
    with pytest.raises(
        ModelError, match=r"one tensor, a batch of images, but Nothing\.forward takes 'image'"
    ):
        Adapter(Nothing(), "tent")


def test_what_can_be_called_with_images_is_not_refused() -> None:
    hooked, patched, partly = Two(), Two(), Two()
    hooked.register_forward_pre_hook(lambda _, given: (*given, torch.zeros(())))
    patched.forward = lambda image: Two.forward(patched, image, torch.zeros(()))  # type: ignore[method-assign]
    partly.forward = partial(partly.forward, text=torch.zeros(()))  # type: ignore[method-assign]
    for model in (Open(), Decorated(), hooked, patched, partly):
        check_input(model)
        assert model(images()).shape == (24, 5)


FACTORIES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2))
        self.top = nn.BatchNorm2d(8)
        self.head, self.make = nn.Linear(8, 6), make

    def forward(self, x):
        return self.make(9 * self.head(self.top(self.body(x)).mean((2, 3))))

class Two(Net):
    def forward(self, image, text):
        return super().forward(image)

def softmax(): return Net(lambda x: x.softmax(1))
def sigmoid(): return Net(torch.sigmoid)
def embeddings(): return Net(nn.functional.normalize)
def maps(): return Net(lambda x: x[:, :, None, None].expand(-1, -1, 4, 4))
def boxes(): return Net(lambda x: [{"boxes": x, "labels": x} for _ in x])
def two(): return Two(None)
"""


@pytest.fixture
def adapted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[int, str]]:
    """What the command says of a factory's network."""
    (tmp_path / "odd_networks.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    np.save(
        tmp_path / "photos.npy", np.random.default_rng(0).integers(0, 256, (40, 24, 24, 3), dtype=np.uint8)
    )
    options = (
        "--data",
        tmp_path / "photos.npy",
        "--size",
        0,
        "--normalize",
        "none",
        "--epochs",
        1,
        "--out",
        tmp_path / "a.safetensors",
    )
    return lambda factory: run("adapt", "--model", f"odd_networks:{factory}", *options)


@pytest.mark.parametrize(
    ("factory", "caution"), [("softmax", PROBABILITIES), ("sigmoid", SIGMOID), ("embeddings", EMBEDDINGS)]
)
def test_the_command_warns_and_ends_well(
    factory: str, caution: str, adapted: Callable[[str], tuple[int, str]], tmp_path: Path
) -> None:
    code, said = adapted(factory)
    assert code == 0
    assert " ".join(said.split()).count(caution) == 1
    record = json.loads((tmp_path / "a.json").read_text())
    assert sum(caution in text for text in record["result"]["cautions"]) == 1


@pytest.mark.parametrize(
    ("factory", "message"),
    [("maps", "as of segmentation"), ("boxes", "as of detection"), ("two", "takes 'image', 'text': wrap it")],
)
def test_the_command_refuses_other_tasks(
    factory: str, message: str, adapted: Callable[[str], tuple[int, str]]
) -> None:
    code, said = adapted(factory)
    assert code == 2
    assert message in " ".join(said.split())
    assert "Traceback" not in said
