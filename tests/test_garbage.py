"""Python's search for garbage waits for the end of a step, whatever becomes of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.errors import DivergenceError
from acclimate.fast import TRICKS
from networks import NORMALIZE, images, resnet


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()


class Watching(nn.Module):
    """A network that notes whether garbage may be searched for, forwards and backwards."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.inner, self.factor = resnet(), factor
        self.seen: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        self.seen.append(gc.isenabled())
        if logits.requires_grad:
            logits.register_hook(lambda _: self.seen.append(gc.isenabled()))
        return logits * self.factor


def make(network: nn.Module, **options: object) -> tuple[Adapter, list[bool]]:
    adapter = Adapter(network, "tent", normalize=NORMALIZE, memory="off", **options)
    watching = adapter._engine.prepared.model
    assert isinstance(watching, Watching)
    return adapter, watching.seen


def test_none_within_a_step_and_as_before_after_it() -> None:
    adapter, seen = make(Watching())
    adapter(images(8))
    assert seen == [False, False]
    assert gc.isenabled()


def test_who_switched_it_off_finds_it_so() -> None:
    adapter, _ = make(Watching())
    gc.disable()
    adapter(images(8))
    assert not gc.isenabled()


def test_as_before_after_a_step_that_failed() -> None:
    adapter, seen = make(Watching(float("nan")))
    with pytest.raises(DivergenceError):
        adapter(images(8))
    assert seen[0] is False
    assert gc.isenabled()


def test_it_can_be_left_out() -> None:
    adapter, seen = make(Watching(), fast=[name for name in TRICKS if name != "garbage"])
    adapter(images(8))
    assert seen == [True, True]


def test_the_same_to_the_last_bit() -> None:
    rest = [name for name in TRICKS if name != "garbage"]
    made = [Adapter(resnet(), "slr", normalize=NORMALIZE, fast=fast) for fast in (True, rest)]
    for seed in range(3):
        assert torch.equal(*(adapter(images(8, seed)) for adapter in made))
