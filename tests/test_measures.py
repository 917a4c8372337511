"""What a step shows of itself: by the kernel, by torch, and by float64."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate import Adapter
from acclimate.fast import measures
from acclimate.fast.measures import Measures, NativeMeasures, Numbers, Shown, native_measures

NATIVE = native_measures(())
WAYS = [Measures()] if NATIVE is None else [Measures(), NATIVE]


def shown(sizes: Sequence[int], rows: int, classes: int, *, way: int = 2, seed: int = 0) -> Shown:
    """Of so many images, parameters of these sizes, and as many of them with a way."""
    draw = torch.Generator().manual_seed(seed)
    vectors, now, source = ([torch.randn(n, generator=draw) for n in sizes] for _ in range(3))
    logits = 3 * torch.randn(rows, classes, generator=draw)
    p = logits.softmax(1).mean(0)
    return Shown(logits.mean(), p.amax(), p, vectors, now[:way], source[:way], logits)


def exact(seen: Shown) -> Numbers:
    """In float64, one element after another."""

    def length(vectors: Sequence[Tensor]) -> float:
        return math.sqrt(math.fsum(x * x for vector in vectors for x in vector.double().tolist()))

    assert seen.logits is not None
    ways = [a.double() - b.double() for a, b in zip(seen.now, seen.source, strict=True)]
    norms = [length([row]) for row in seen.logits]
    p = seen.p.double().tolist()
    return Numbers(
        seen.loss.item(),
        seen.confidence.item(),
        -math.fsum(x * math.log(x) for x in p if x),
        length(seen.gradients),
        length(ways),
        math.fsum(norms) / len(norms),
        max(p),
    )


@pytest.mark.parametrize("measure", WAYS, ids=lambda measure: type(measure).__name__)
@given(
    sizes=st.lists(st.integers(1, 70), max_size=5),
    rows=st.integers(1, 9),
    classes=st.integers(2, 70),
    seed=st.integers(0, 9),
)
def test_they_are_those_of_float64(
    measure: Measures, sizes: list[int], rows: int, classes: int, seed: int
) -> None:
    seen = shown(sizes, rows, classes, seed=seed)
    assert measure(seen) == pytest.approx(exact(seen), rel=2e-6, abs=1e-12)
    if seen.now:
        assert measure.way(seen.now, seen.source) == pytest.approx(exact(seen).way, rel=2e-6)


@pytest.mark.parametrize("measure", WAYS, ids=lambda measure: type(measure).__name__)
def test_without_a_guard_there_is_less_to_see(measure: Measures) -> None:
    seen = shown([5, 3], 4, 6)
    few = measure(Shown(*seen[:4]))
    whole = measure(seen)
    assert few[:4] == whole[:4]
    assert (few.way, few.logit_norm, few.top_share) == (0.0, None, whole.top_share)
    assert measure(Shown(*seen[:3], ())).gradient_norm == 0


@pytest.mark.parametrize("measure", WAYS, ids=lambda measure: type(measure).__name__)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 16, 18])
def test_what_is_no_number_is_seen(measure: Measures, bad: float, place: int) -> None:
    seen = shown([19, 19], 2, 19)
    assert seen.logits is not None
    for tensor in (seen.gradients[1], seen.now[0], seen.logits[1], seen.p):
        tensor[place] = bad
    numbers = measure(seen)
    lengths = (numbers.gradient_norm, numbers.way, numbers.logit_norm)
    assert not any(math.isfinite(value) for value in lengths if value is not None)
    assert not math.isfinite(numbers.class_entropy)
    assert (numbers.top_share <= 1) == (bad == -math.inf)


@pytest.mark.parametrize("measure", WAYS, ids=lambda measure: type(measure).__name__)
@pytest.mark.parametrize(("size", "length"), [(1e20, math.inf), (1e-30, 0.0)])
def test_lengths_that_single_precision_cannot_square(measure: Measures, size: float, length: float) -> None:
    """Neither can an optimiser that keeps squares: it must not be given such a gradient."""
    seen = shown([5], 2, 4)
    seen = seen._replace(
        gradients=[torch.full((20,), size)], now=[torch.full((3,), size)], source=[torch.zeros(3)]
    )
    assert measure(seen).gradient_norm == measure(seen).way == measure.way(seen.now, seen.source) == length


@pytest.mark.skipif(NATIVE is None, reason="no C compiler")
def test_a_class_that_never_comes_adds_nothing() -> None:
    assert NATIVE is not None
    seen = shown([3], 2, 4)._replace(p=torch.tensor([0.5, 0.0, 0.5, 0.0]))
    assert NATIVE(seen).class_entropy == pytest.approx(math.log(2), rel=1e-7)


@pytest.mark.skipif(NATIVE is None, reason="no C compiler")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda logits: logits.double(), id="double"),
        pytest.param(lambda logits: logits.t().contiguous().t(), id="by columns"),
    ],
)
def test_logits_of_another_kind_are_torchs(change: Any) -> None:
    assert NATIVE is not None
    seen = shown([3, 4], 5, 6)
    assert NATIVE(seen._replace(logits=change(seen.logits))) == pytest.approx(exact(seen), rel=2e-6)


@pytest.mark.skipif(NATIVE is None, reason="no C compiler")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda p: p.double(), id="double"),
        pytest.param(lambda p: p.repeat_interleave(2)[::2], id="with gaps"),
    ],
)
@pytest.mark.parametrize("has_logits", [True, False])
def test_a_distribution_of_another_kind_is_torchs(change: Any, has_logits: bool) -> None:
    assert NATIVE is not None
    seen = shown([3, 4], 5, 6)
    found = NATIVE(seen._replace(p=change(seen.p), logits=seen.logits if has_logits else None))
    assert found.class_entropy == pytest.approx(exact(seen).class_entropy, rel=2e-6)
    assert found.top_share == pytest.approx(exact(seen).top_share, rel=2e-6)


@pytest.mark.skipif(NATIVE is None, reason="no C compiler")
def test_zeros_that_lie_nowhere_are_torchs() -> None:
    assert NATIVE is not None
    seen = shown([3, 4], 5, 6)
    zeros = torch._efficientzerotensor(3)
    assert zeros.data_ptr() == 0
    found = NATIVE(seen._replace(gradients=[zeros, seen.gradients[1]]))
    assert found.gradient_norm == pytest.approx(seen.gradients[1].norm().item(), rel=2e-6)
    assert NATIVE.way([zeros], [torch.ones(3)]) == pytest.approx(math.sqrt(3))


def test_a_network_in_float64_is_seen_as_without() -> None:
    images = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    lean, plain = (Adapter(network().double(), "bn", fast=fast) for fast in (["measures"], False))
    for adapter in (lean, plain):
        adapter(images)
    assert lean.history.class_entropy == pytest.approx(plain.history.class_entropy)
    assert 0 < lean.history.class_entropy[0] < math.log(10)


def test_parameters_of_another_kind_are_torchs() -> None:
    assert native_measures([torch.zeros(3, dtype=torch.float64)]) is None
    assert native_measures([torch.zeros(2, 3).t()]) is None


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


@pytest.mark.skipif(NATIVE is None, reason="no C compiler")
@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("method", ["slr", "bn"])
def test_a_step_shows_the_same_with_and_without(method: str, guard: bool) -> None:
    images = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    lean, plain = (
        Adapter(network(), method, freeze="none", guard=guard, fast=fast) for fast in (["measures"], False)
    )
    assert isinstance(lean._engine._measures, NativeMeasures)
    assert not isinstance(plain._engine._measures, NativeMeasures)
    for _ in range(3):
        assert torch.equal(lean(images), plain(images))
    for name, values in lean.history.per_step().items():
        assert values == pytest.approx(plain.history.per_step()[name], rel=2e-6), name
    if method == "slr" and guard:
        ours, theirs = (adapter._engine.guard._lengths for adapter in (lean, plain))
        assert [x for pair in ours for x in pair] == pytest.approx([x for p in theirs for x in p], rel=2e-6)


@pytest.mark.skipif(NATIVE is None, reason="no C compiler")
def test_copies_measure_too() -> None:
    adapter, images = Adapter(network(), "slr", freeze="none"), torch.rand(16, 3, 8, 8)
    adapter(images)
    for other in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        assert isinstance(other._engine._measures, NativeMeasures)
        assert torch.equal(other(images), copy.deepcopy(adapter)(images))


def test_a_copy_that_is_opened_without_a_compiler_measures_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, images = Adapter(network(), "slr", freeze="none"), torch.rand(16, 3, 8, 8)
    adapter(images)
    written = pickle.dumps(adapter)
    monkeypatch.setattr(measures, "_native", lambda: None)
    opened = pickle.loads(written)
    assert type(opened._engine._measures) is Measures
    assert torch.equal(opened(images), adapter(images))
