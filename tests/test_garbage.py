"""Python's search for garbage waits for the end of a step, whatever becomes of it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.errors import DivergenceError
from acclimate.fast import TRICKS
from acclimate.fast.garbage import Uncollected
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


def test_whoever_leaves_last_takes_it_back() -> None:
    first, second = Uncollected(), Uncollected()
    with first:
        second.__enter__()
    assert not gc.isenabled()
    second.__exit__()
    assert gc.isenabled()


def test_a_step_that_never_ended_is_made_up_for_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between switching off and entering."""
    monkeypatch.setattr(Uncollected, "_is_ours", True)
    gc.disable()
    with Uncollected():
        pass
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_process_that_is_forked_within_a_step_has_it_back() -> None:
    with Uncollected():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() and not Uncollected._within else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
