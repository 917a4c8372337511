"""Packed weights against torch's own layers: outputs and gradients, of any shape; what is not packed."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate.fast import TRICKS, packing, weights
from acclimate.fast.lean import Lean
from lean_oracle import passed, random

pytestmark = pytest.mark.skipif(
    not packing.can_pack(torch.zeros(1)), reason="this torch has no oneDNN that takes packed weights"
)
DTYPES = {
    dtype: error
    for dtype, error in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2))
    if packing.can_pack(torch.zeros(1, dtype=dtype))
}
"""How far from float64 what is computed in each may be, as a part of the largest element."""


@pytest.fixture(autouse=True)
def _products_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on processors where they do not pay."""
    monkeypatch.setattr(weights, "pays_for_products", lambda dtype: True)


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def check(layer: nn.Module, x: Tensor, lean: Lean) -> None:
    """Near torch's own in float64."""
    ours = passed(layer, x, lean)
    for made, right in zip(ours, passed(copy.deepcopy(layer).double(), x.double(), None), strict=True):
        assert made.dtype == x.dtype
        error = (made.double() - right).abs().max().item()
        assert error <= DTYPES[x.dtype] * max(1, right.abs().max().item()), error


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_convolutions_of_any_shape(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, dtype = draw(1, 2), data.draw(st.sampled_from(list(DTYPES)))
    ends = ((1, 4), (1, 3), (0, 5), (1, 2))
    kernel, stride, padding, dilation = (tuple(draw(*end) for _ in "hw") for end in ends)
    sides = zip(kernel, dilation, padding, strict=True)
    height, width = (max(1, (k - 1) * d + 1 - 2 * p) + draw(0, 4) for k, d, p in sides)
    ins, outs = groups * draw(1, 9), groups * draw(1, 20)
    torch.manual_seed(0)
    layer = frozen(nn.Conv2d(ins, outs, kernel, stride, padding, dilation, groups, data.draw(st.booleans())))
    x = random(draw(1, 3), ins, height, width).to(dtype).contiguous(memory_format=torch.channels_last)
    check(layer.to(dtype), x, Lean(TRICKS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_one_column_from_one_channel(threads: int, groups: int, dtype: torch.dtype) -> None:
    """oneDNN's channels-last kernels, which torch's own layers take, get it wrong."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for size, kernel, padding in (((5, 3), (4, 3), 0), ((7, 1), (2, 2), (0, 1)), ((3, 2), (2, 3), 1)):
            torch.manual_seed(0)
            layer = frozen(nn.Conv2d(groups, 8 * groups, kernel, (1, 3), padding, groups=groups)).to(dtype)
            x = random(3, groups, *size).to(dtype).contiguous(memory_format=torch.channels_last)
            check(layer, x, Lean(TRICKS))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "ins", "outs"), [((1,), 3, 5), ((2, 7), 20, 33), ((2, 3, 4), 64, 16)])
def test_linear_layers(rows: tuple[int, ...], ins: int, outs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for bias in (True, False):
        check(frozen(nn.Linear(ins, outs, bias)).to(dtype), random(*rows, ins).to(dtype), Lean(TRICKS))


def test_convolutions_are_the_same_to_the_last_bit() -> None:
    torch.manual_seed(0)
    lean = Lean(TRICKS)
    for layer in (nn.Conv2d(16, 40, 3, padding=1), nn.Conv2d(16, 40, 1), nn.Conv2d(16, 40, 3, 2, 1)):
        form = torch.channels_last
        x = random(2, 16, 9, 8, dtype=torch.float32).contiguous(memory_format=form)
        ours = passed(frozen(layer), x, lean)
        torchs = passed(layer.to(memory_format=form), x, None)
        for made, right in zip(ours, torchs, strict=True):
            assert torch.equal(made, right)


def packed(lean: Lean) -> list[str]:
    """Which forms are kept of weights."""
    kept = lean._table[F.linear].__self__._made  # type: ignore[attr-defined]
    return sorted(form for _, form, _ in kept)


def counted(name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a weight is packed by this function."""
    made: list[int] = []
    stock = getattr(packing, name)

    def counting(*args: object) -> Tensor:
        made.append(1)
        result = stock(*args)
        assert isinstance(result, Tensor)
        return result

    monkeypatch.setattr(weights, name, counting)
    return made


def test_other_shapes_are_packed_for_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MOST_SHAPES", 3)
    made, lean, layer = counted("pack", monkeypatch), Lean(TRICKS), frozen(nn.Conv2d(8, 24, 3))
    for count in (2, 2, 3, 2, 4, 5, 2):
        x = random(count, 8, 6, 5, dtype=torch.float32)
        check(layer, x.contiguous(memory_format=torch.channels_last), lean)
    assert len(made) == 3
    assert packed(lean) == ["laid out", "packed", "transposed"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_layers_are_packed_once_and_only_where_they_are_cast(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lean, layer = counted("pack_linear", monkeypatch), Lean(TRICKS), frozen(nn.Linear(8, 24))
    for count in (2, 2, 3, 4):
        x = random(count, 8, dtype=torch.float32)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            found = passed(layer, x, lean)
        right = passed(copy.deepcopy(layer).double(), x.double(), None)
        for ours, exact in zip(found, right, strict=True):
            torch.testing.assert_close(ours.double(), exact, rtol=0, atol=3 * DTYPES[dtype])
    forms = [] if dtype == torch.float32 else ["packed", "transposed"]
    assert len(made) == len(forms)
    assert [form for form in packed(lean) if form != "cast"] == forms


@pytest.mark.parametrize("pays", [True, False])
def test_linear_layers_are_torchs_where_products_do_not_pay(
    pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "pays_for_products", lambda dtype: pays)
    with Lean(TRICKS):
        made = frozen(nn.Linear(8, 4))(torch.rand(3, 8, requires_grad=True))
    assert ("_Linear" in type(made.grad_fn).__name__) is pays


@pytest.mark.parametrize(("capability", "pays"), [("AVX512", True), ("AVX2", False), ("DEFAULT", False)])
def test_where_products_pay(capability: str, pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert packing.pays_for_products.__wrapped__(torch.float32) is pays
    assert packing.pays_for_products.__wrapped__(torch.bfloat16)


def test_convolutions_of_many_pixels_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = frozen(nn.Conv2d(8, 4, 3, 2, 1))
    monkeypatch.setattr(weights, "_MANY_PIXELS", 2 * 4 * 4)
    lean = Lean(TRICKS)
    for side, forms in ((8, ["packed", "transposed"]), (10, ["laid out"])):
        x = random(2, 8, side, side, dtype=torch.float32)
        check(layer, x.contiguous(memory_format=torch.channels_last), lean)
        assert packed(lean) == forms


@pytest.mark.parametrize("lies", ["turned", "with gaps", "repeated"])
def test_linear_weights_may_lie_as_they_like(lies: str) -> None:
    for ins, outs in ((3, 5), (1, 7), (7, 1), (64, 33)):
        torch.manual_seed(0)
        layer = nn.Linear(ins, outs)
        wide = {
            "turned": torch.randn(ins, outs).T,
            "with gaps": torch.randn(2 * outs, 2 * ins)[::2, ::2],
            "repeated": torch.randn(1, ins).expand(outs, ins),
        }
        layer.weight = nn.Parameter(wide[lies])
        check(frozen(layer), random(2, 4, ins).float(), Lean(TRICKS))


def test_what_is_not_packed() -> None:
    x = random(2, 8, 6, 5, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    depthwise, wide, plain = nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 3).double(), nn.Conv2d(8, 4, 3)
    for layer, inputs in (
        (depthwise, x),
        (wide, x.double()),
        (plain, x.clone(memory_format=torch.contiguous_format)),
    ):
        lean = Lean(TRICKS)
        passed(frozen(layer), inputs, lean)
        assert not {"packed", "transposed"} & set(packed(lean))
    for tricks, enabled in (([name for name in TRICKS if name != "packing"], True), (list(TRICKS), False)):
        lean = Lean(tricks)
        torch._C._set_mkldnn_enabled(enabled)
        try:
            passed(frozen(plain), x, lean)
        finally:
            torch._C._set_mkldnn_enabled(True)
        assert packed(lean) == ["laid out"]
    lean = Lean(TRICKS)
    passed(frozen(plain), x, lean)
    assert packed(lean) == ["packed", "transposed"]


def test_a_trained_weight_gets_its_gradient() -> None:
    layer, x = nn.Linear(8, 4), random(3, 8, dtype=torch.float32)
    with Lean(TRICKS):
        layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert torch.allclose(layer.weight.grad, x.sum(0).expand(4, 8))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_gradients_of_images(data: st.DataObject) -> None:
    """Through a convolution with strides, by places within a stride."""
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    channels, stride, dtype = draw(1, 4), draw(2, 5), data.draw(st.sampled_from(list(DTYPES)))
    is_single = channels == 1  # which may go another way
    kernel, padding = ((draw(*ends), draw(*ends)) for ends in ((1, 8), (0, 5)))
    height, width = (max(1, k - 2 * p) + draw(0, 12) for k, p in zip(kernel, padding, strict=True))
    torch.manual_seed(0)
    layer = frozen(nn.Conv2d(channels, draw(1, 20), kernel, stride, padding)).to(dtype)
    x = random(draw(1, 3), channels, height, width).to(dtype)
    lean = Lean(TRICKS)
    check(layer, x.contiguous(memory_format=torch.channels_last), lean)
    assert is_single or packed(lean) == ["packed", "subpixels"]


def test_a_weight_that_is_used_in_two_ways() -> None:
    """On images of two sizes, whose outputs have one."""
    torch.manual_seed(0)
    layer = frozen(nn.Conv2d(3, 5, 3, 2))
    lean, weight, bias = Lean(TRICKS), layer.weight, layer.bias
    found = []
    for mode, dtype in ((lean, torch.float32), (nullcontext(), torch.float64)):
        leaves = [random(2, 3, size, size).to(dtype) for size in (9, 8)]
        leaves = [x.contiguous(memory_format=torch.channels_last).requires_grad_() for x in leaves]
        kernel, shift = (nn.Parameter(p.detach().to(dtype), requires_grad=False) for p in (weight, bias))
        with mode:
            made = [F.conv2d(x, kernel, shift, 2, padding) for x, padding in zip(leaves, (0, 1), strict=True)]
        assert made[0].shape == made[1].shape
        (made[0] * made[1].detach() + made[1] * 3).sum().backward()
        found.append([x.grad for x in leaves])
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=1e-5)


def test_a_linear_weight_that_somebody_changes_is_used() -> None:
    layer, x, lean = frozen(nn.Linear(8, 4)), random(3, 8, dtype=torch.float32), Lean(TRICKS)
    for _ in range(3):
        check(layer, x, lean)
        layer.weight.mul_(-2)


@pytest.mark.parametrize(
    ("layer", "shape", "told"),
    [
        (nn.Conv2d(8, 4, 3), (2, 7, 6, 6), "channels"),
        (nn.Conv2d(8, 4, 3), (2, 8, 2, 2), "Kernel size"),
        (nn.Linear(8, 4), (2, 7), "shapes cannot be multiplied"),
    ],
)
def test_torch_tells_what_is_wrong(layer: nn.Module, shape: tuple[int, ...], told: str) -> None:
    x = random(*shape, dtype=torch.float32)
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    with pytest.raises(RuntimeError, match=told), Lean(TRICKS):
        frozen(layer)(x)
