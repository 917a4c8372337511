"""The table of methods against the design's, names with suffixes, and overrides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from torch import nn

from acclimate import METHODS, Adapter, Method
from acclimate.demo.network import SmallResNet
from acclimate.errors import OptionError
from acclimate.methods import SETTINGS, parse_method
from acclimate.prepare import count_outputs
from networks import resnet

# confidence, delta, diversity, kappa, freeze_top, optimizer, lr, schedule, pseudo_label_weight
TABLE = {
    "tent": ("entropy", 1.0, False, 0.9, False, "sgd", 2.5e-4, "constant", 0.0),
    "tent+": ("entropy", 1.0, True, 0.9, True, "sgd", 2.5e-4, "constant", 0.0),
    "pl": ("pseudo_label", 1.0, False, 0.9, True, "adam", 6e-4, "cosine", 0.0),
    "hlr": ("hard_likelihood_ratio", 0.025, True, 0.9, True, "adam", 6e-4, "cosine", 0.0),
    "slr": ("soft_likelihood_ratio", 0.025, True, 0.9, True, "adam", 6e-4, "cosine", 0.0),
    "shot": ("entropy", 1.0, True, 0.9, True, "sgd", 2.5e-4, "constant", 0.3),
}


def test_the_table_is_the_designs() -> None:
    assert tuple(METHODS) == ("source", "bn", "tent", "tent+", "pl", "hlr", "slr", "shot")
    for name, row in TABLE.items():
        m = METHODS[name]
        found = (m.confidence, m.delta, m.diversity, m.kappa, m.freeze_top, m.optimizer, m.lr, m.schedule)
        assert (*found, m.pseudo_label_weight) == row
        assert m.momentum == 0.9
    assert (METHODS["source"].adapts_parameters, METHODS["source"].adapts_statistics) == (False, False)
    assert (METHODS["bn"].adapts_parameters, METHODS["bn"].adapts_statistics) == (False, True)
    assert all(m.summary and m.name == name for name, m in METHODS.items())


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        METHODS["slr"] = METHODS["tent"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("slr+it", "input_transform", True),
        ("tent+it", "input_transform", True),
        ("tent++it", "diversity", True),
        ("tent++it", "input_transform", True),
        ("hlr+shot", "pseudo_label_weight", 0.3),
        ("slr-div", "diversity", False),
        ("slr+it+shot-div", "pseudo_label_weight", 0.3),
    ],
)
def test_suffixes(name: str, field: str, value: object) -> None:
    assert getattr(parse_method(name), field) == value
    assert parse_method(name).name == name


def test_a_method_is_a_method_already() -> None:
    method = METHODS["slr"].override({"lr": 1e-3})
    assert parse_method(method) is method


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slt", "did you mean 'slr'"),
        ("SLR", "did you mean 'slr'"),
        (3, "a name or a Method, got int"),
        ("slr+ti", r"did you mean 'slr\+it'"),
        ("xyzzy", "rows: 'source'.*suffixes"),
        ("bn+it", r"no loss.*'\+it'"),
    ],
)
def test_unknown_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_method(name)


def test_every_hyperparameter_can_be_overridden_and_no_other() -> None:
    changed = METHODS["slr"].override({"lr": 0.1, "kappa": 0.0, "betas": (0.8, 0.9)})
    assert (changed.lr, changed.kappa, changed.betas) == (0.1, 0.0, (0.8, 0.9))
    with pytest.raises(OptionError, match=r"unknown option 'learning_rate'.*'lr'.*'pseudo_count'"):
        METHODS["slr"].override({"learning_rate": 0.1})
    assert type(METHODS["slr"].override({"lr": np.float32(0.5)}).lr) is float
    with pytest.raises(OptionError, match="unknown option 'name'"):
        METHODS["slr"].override({"name": "mine"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1.0}, "lr must be a number, at least 0, got -1.0"),
        ({"lr": "fast"}, "lr must be a number, at least 0, got 'fast'"),
        ({"lr": float("nan")}, "lr must be a number, at least 0, got nan"),
        ({"kappa": 1.0}, "kappa must be a number, at least 0 and below 1"),
        ({"statistics_momentum": 1.5}, "at most 1"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm': did you mean 'adam'"),
        ({"schedule": "linear"}, "unknown schedule"),
        ({"confidence": "entrpy"}, "did you mean 'entropy'"),
        ({"pseudo_label_set": "all"}, "unknown pseudo_label_set"),
    ],
)
def test_bad_values_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        METHODS["slr"].override(change)


def test_an_input_transformation_needs_a_loss() -> None:
    with pytest.raises(OptionError, match="no loss"):
        Method(name="x", summary="x", input_transform=True)


def test_few_classes_have_a_setting_of_their_own() -> None:
    few, paper = Adapter(resnet(), "slr"), Adapter(resnet(), "slr", setting="paper")
    assert (few.setting, paper.setting) == ("few", "paper")
    assert paper.method == METHODS["slr"]
    assert few.method == dataclasses.replace(METHODS["slr"], **SETTINGS["few"].changes["slr"])
    assert Adapter(resnet(), "tent").method == METHODS["tent"]
    # what the user says counts most, and a Method is taken as it is
    assert Adapter(resnet(), "slr", lr=1e-5).method.lr == 1e-5
    given = Adapter(resnet(), METHODS["slr"])
    assert given.method == METHODS["slr"]
    assert given.setting is None
    with pytest.raises(OptionError, match="unknown setting 'papr': did you mean 'paper'"):
        Adapter(resnet(), "slr", setting="papr")


def test_the_number_of_outputs_decides() -> None:
    many = SmallResNet(blocks=1, num_classes=64)
    assert Adapter(many, "slr").setting == "paper"
    assert Adapter(many, "slr", classes=range(10)).setting == "few"
    assert count_outputs(nn.Identity()) is None
    many.num_classes = 12  # type: ignore[assignment]
    assert count_outputs(many) == 12
