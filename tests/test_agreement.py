"""A fast step and a plain one compute the same: all of a network, the kinks of which are held."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from acclimate.models.vision import import_timm, import_torchvision
from kinks import Way, errors, step
from networks import images, resnet

PLAIN, FAST = Way(fast=False), Way()


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "small":
        return resnet()
    if name.startswith("tf_"):
        made = import_timm().create_model(name, num_classes=7)
    else:
        made = getattr(import_torchvision().models, name)(num_classes=7)
    assert isinstance(made, nn.Module)
    return made.eval()


@pytest.mark.parametrize("name", ["small", "resnet18", "resnet50", "densenet121"])
def test_logits_and_gradients_agree_to_five_digits(name: str) -> None:
    model, x = network(name), images(4, size=96)
    fast = step(model, x, FAST)
    held = step(model, x, PLAIN, held=fast.sides)
    exact = step(model, x, Way(fast=False, dtype=torch.float64), held=fast.sides)
    # no two results in float32 can be expected to agree better than one of them agrees with the exact one
    own = errors(held, exact)
    for right in (held, exact):
        for what, found in errors(fast, right).items():
            assert found <= max(1e-5, 2 * own[what]), what


@pytest.mark.parametrize(
    "name", ["small", "resnet18", "resnet50", "densenet121", "mobilenet_v2", "tf_efficientnet_lite0"]
)
def test_in_float64_they_are_the_same(name: str) -> None:
    model, x = network(name), images(4, size=64)
    fast, plain = (step(model, x, Way(fast, torch.float64)) for fast in (True, False))
    for what, found in errors(fast, plain).items():
        assert found < 1e-9, what


def test_who_watches_a_step_does_not_change_it() -> None:
    model, x = network("resnet18"), images(4, size=64)
    watched, alone = step(model, x, FAST), step(model, x, FAST, watched=False)
    assert len(watched.sides) == 17
    assert torch.equal(watched.logits, alone.logits)
    assert torch.equal(watched.gradient, alone.gradient)


def test_held_on_its_own_sides_a_step_is_the_same() -> None:
    model, x = network("mobilenet_v2"), images(4, size=64)
    plain = step(model, x, PLAIN)
    held = step(model, x, PLAIN, held=plain.sides)
    assert held.turned == 0
    assert torch.equal(held.logits, plain.logits)
    assert torch.equal(held.gradient, plain.gradient)


def test_a_unit_on_the_other_side_is_counted_and_felt() -> None:
    model, x = network("small"), images(4)
    plain = step(model, x, PLAIN)
    plain.sides[-1].inside.view(-1)[:10] ^= True
    held = step(model, x, PLAIN, held=plain.sides)
    assert held.turned == 10
    assert not torch.equal(held.gradient, plain.gradient)


def test_an_update_that_is_not_made_is_seen() -> None:
    model, x = network("small"), images(4)
    made = step(model, x, PLAIN)
    before = made._replace(parameters=made.parameters + made.gradient)  # by SGD, with a rate of 1
    assert errors(before, made)["parameters"] > 1e-3
