"""torchvision and timm by their one door."""

from __future__ import annotations

import importlib

import pytest
import torch

from acclimate.errors import ModelError
from acclimate.models import vision


def test_networks_of_both_libraries_run() -> None:
    x = torch.rand(2, 3, 32, 32)
    assert vision.import_torchvision().models.resnet18(num_classes=4).eval()(x).shape == (2, 4)
    assert vision.import_timm().create_model("resnet10t", num_classes=4).eval()(x).shape == (2, 4)


@pytest.mark.parametrize(("door", "name"), [("import_torchvision", "torchvision"), ("import_timm", "timm")])
def test_a_library_that_is_not_installed_is_named(
    door: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def missing(module: str) -> object:
        if module.partition(".")[0] == name:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(module)

    monkeypatch.setattr(vision.importlib, "import_module", missing)
    with pytest.raises(ModelError, match=rf"{name} is not installed: pip install 'acclimate\[vision\]'"):
        getattr(vision, door)()


def test_other_failures_of_the_import_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str) -> object:
        raise RuntimeError("something else")

    monkeypatch.setattr(vision.importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="something else"):
        vision.import_torchvision()
