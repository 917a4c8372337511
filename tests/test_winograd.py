"""Convolutions with fewer products: against float64, for several processors, and what is left to torch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate.fast import TRICKS, compiling, winograd
from acclimate.fast.compiling import compiled
from acclimate.fast.lean import Lean
from acclimate.fast.packing import Geometry
from acclimate.fast.winograd import Winograd
from lean_oracle import passed, random

WAY = winograd.winograd()
pytestmark = [
    pytest.mark.skipif(WAY is None, reason="there is no C compiler here"),
    pytest.mark.usefixtures("several_threads"),
]
NARROWER = {"as here": (), "without AVX-512": ("-mno-avx512f",), "without AVX": ("-mno-avx",)}
"""Options of the compiler that make the kernel for less of a processor."""
PLAIN = Geometry((1, 1), (1, 1), (1, 1), 1)


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed, dtype=torch.float32).contiguous(memory_format=torch.channels_last)


def layer_of(ins: int, outs: int, padding: int | tuple[int, int] = 1, *, bias: bool = False) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(ins, outs, 3, padding=padding, bias=bias).requires_grad_(False)


def errors(layer: nn.Module, x: Tensor, lean: Lean | None) -> list[float]:
    """How far both are from float64, as parts of the largest element."""
    exact = passed(copy.deepcopy(layer).double(), x.double())
    found = passed(layer, x, lean)
    pairs = zip(found, exact, strict=True)
    return [((made.double() - right).abs().max() / right.abs().max()).item() for made, right in pairs]


def forms(lean: Lean) -> list[str]:
    """Of weights that are kept."""
    return sorted(form for _, form, _ in lean._table[F.linear].__self__._made)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("always_winograd")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions_of_any_shape(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    assert WAY is not None
    ins, outs = (draw(1, 3) * WAY._columns for _ in range(2))
    padding = (draw(0, 2), draw(0, 2))
    height, width = (max(1, 3 - 2 * p) + draw(0, 9) for p in padding)
    x, lean = pixels(draw(1, 4), ins, height, width), Lean(TRICKS)
    assert max(errors(layer_of(ins, outs, padding, bias=data.draw(st.booleans())), x, lean)) <= 2e-6
    assert forms(lean) == ["winograd", "winograd, turned"]


def test_it_is_more_exact_than_torch() -> None:
    layer, x = layer_of(128, 64), pixels(4, 128, 28, 28)
    ours, torchs = errors(layer, x, Lean(TRICKS)), errors(layer, x, None)
    assert all(mine < theirs for mine, theirs in zip(ours, torchs, strict=True))


@pytest.mark.usefixtures("always_winograd")
@pytest.mark.parametrize("options", NARROWER.values(), ids=NARROWER)
def test_on_other_processors(options: tuple[str, ...]) -> None:
    library = compiled("winograd.c", *options)
    if library is None:
        pytest.skip("not a processor of this kind")
    way = Winograd(library)
    for size in (5, 12):
        x, weight, bias = pixels(3, 64, size, size), random(32, 64, 3, 3, seed=1), random(32, seed=2)
        assert way.pays(weight.float(), PLAIN, x)
        made = way.convolved(x, way.pack(weight.float()), bias.float(), 32, (1, 1))
        exact = F.conv2d(x.double(), weight.float().double(), bias, padding=1)
        torch.testing.assert_close(made.double(), exact, rtol=0, atol=3e-6 * exact.abs().max().item())


def test_neither_the_batch_nor_threads_matter() -> None:
    layer, x, lean = layer_of(64, 32), pixels(7, 64, 17, 20), Lean(TRICKS)
    whole = passed(layer, x, lean)[0]
    torch.set_num_threads(1)
    assert torch.equal(passed(layer, x, lean)[0], whole)
    alone = passed(layer, x[3:4].clone(memory_format=torch.channels_last), lean)[0]
    assert torch.equal(alone[0], whole[3])


def test_what_is_no_number_stays_in_its_image() -> None:
    layer, x = layer_of(32, 32), pixels(3, 32, 16, 16)
    right = passed(layer, x, Lean(TRICKS))[0]
    x[1, 5, 7, 7] = torch.nan
    made = passed(layer, x, Lean(TRICKS))[0]
    assert made[1].isnan().any()
    assert torch.equal(made[::2], right[::2])


LEFT_ALONE: dict[str, tuple[nn.Module, Tensor]] = {
    "strides": (nn.Conv2d(32, 32, 3, 2, 1), pixels(2, 32, 16, 16)),
    "dilation": (nn.Conv2d(32, 32, 3, 1, 2, 2), pixels(2, 32, 16, 16)),
    "groups": (nn.Conv2d(64, 64, 3, 1, 1, groups=2), pixels(2, 64, 16, 16)),
    "another kernel": (nn.Conv2d(32, 32, (3, 1), 1, (1, 0)), pixels(2, 32, 16, 16)),
    "much padding": (nn.Conv2d(32, 32, 3, 1, 3), pixels(2, 32, 16, 16)),
    "few channels": (nn.Conv2d(8, 32, 3, 1, 1), pixels(2, 8, 16, 16)),
    "channels that fill no registers": (nn.Conv2d(40, 24, 3, 1, 1), pixels(2, 40, 16, 16)),
    "few pixels": (nn.Conv2d(32, 32, 3, 1, 1), pixels(1, 32, 6, 6)),
    "tiles with little in them": (nn.Conv2d(32, 32, 3, 1, 1), pixels(32, 32, 1, 1)),
    "planes": (nn.Conv2d(32, 32, 3, 1, 1), pixels(2, 32, 16, 16).contiguous()),
    "double precision": (nn.Conv2d(32, 32, 3, 1, 1).double(), pixels(2, 32, 16, 16).double()),
    "low precision": (nn.Conv2d(32, 32, 3, 1, 1).bfloat16(), pixels(2, 32, 16, 16).bfloat16()),
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_what_is_left_alone(kind: str) -> None:
    layer, x = LEFT_ALONE[kind]
    lean = Lean(TRICKS)
    passed(layer.requires_grad_(False), x, lean)
    assert not any(form.startswith("winograd") for form in forms(lean))


def test_a_saving_of_its_own() -> None:
    layer, x = layer_of(32, 32), pixels(2, 32, 16, 16)
    for left_out in ("winograd", "native"):  # without the latter nothing is compiled
        without = Lean([name for name in TRICKS if name != left_out])
        passed(layer, x, without)
        assert not any(form.startswith("winograd") for form in forms(without))


def test_a_weight_that_is_computed_is_not_packed_for_it() -> None:
    layer, x, lean = layer_of(32, 32), pixels(2, 32, 16, 16), Lean(TRICKS)
    with lean:
        F.conv2d(x.requires_grad_(), layer.weight * 2, padding=1)
    assert not any(form.startswith("winograd") for form in forms(lean))


def test_a_weight_that_somebody_changes_is_used() -> None:
    layer, x, lean = layer_of(32, 32), pixels(2, 32, 16, 16), Lean(TRICKS)
    for _ in range(3):
        assert max(errors(layer, x, lean)) <= 2e-6
        layer.weight.mul_(-2)


def test_a_trained_weight_gets_its_gradient() -> None:
    layer, x = layer_of(32, 32), pixels(2, 32, 16, 16)
    layer.weight.requires_grad_()
    with Lean(TRICKS):
        layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_torch_tells_what_is_wrong() -> None:
    for x, told in ((pixels(2, 64, 16, 16), "channels"), (pixels(2, 32, 2, 2), "Kernel size")):
        with pytest.raises(RuntimeError, match=told), Lean(TRICKS):
            layer_of(32, 32, 0)(x)


def test_without_memory_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WAY is not None

    class Poor:
        pack, convolve = WAY._library.pack, staticmethod(lambda *_: 1)

    monkeypatch.setattr(WAY, "_library", Poor)
    with pytest.raises(MemoryError, match="tiles of a convolution"):
        passed(layer_of(32, 32), pixels(2, 32, 16, 16), Lean(TRICKS))


def test_without_a_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    assert winograd.winograd.__wrapped__() is None
