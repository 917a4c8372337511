"""Max pooling by our own kernels: to the last bit what torch gives, from a byte for each output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acclimate.fast import TRICKS, compiling, pooling
from acclimate.fast.compiling import compiled
from acclimate.fast.lean import Lean
from lean_oracle import kept, random

pytestmark = pytest.mark.skipif(pooling._kernels() is None, reason="there is no C compiler here")


def pixels(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def passed(x: Tensor, *options: Any, lean: bool) -> tuple[Tensor, Tensor, Any]:
    """What comes out, the gradient of what goes in, and what made it."""
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    if lean:
        with Lean(TRICKS):
            made = F.max_pool2d(leaf, *options)
    else:
        made = F.max_pool2d(leaf, *options)
    made.backward(pixels(random(*made.shape, seed=1)).to(made))
    assert leaf.grad is not None
    return made.detach(), leaf.grad, made.grad_fn


def check(x: Tensor, *options: Any) -> None:
    made, gradient, way = passed(x, *options, lean=True)
    right, exact, _ = passed(x.float(), *options, lean=False)
    assert "_PlacedMaxPool" in type(way).__name__
    assert made.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(made, right.to(x.dtype), rtol=0, atol=0, equal_nan=True)
    # in low precision a gradient comes rounded, and is rounded once more where windows overlap
    error = 0.0 if x.dtype == torch.float32 else 0.02
    torch.testing.assert_close(gradient.float(), exact, rtol=error, atol=error)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_window(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel, stride = [draw(1, 4) for _ in "hw"], [draw(1, 5) for _ in "hw"]
    padding = [draw(0, k // 2) for k in kernel]
    height, width = (max(1, k - 2 * p) + draw(0, 9) for k, p in zip(kernel, padding, strict=True))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    x = random(draw(1, 3), draw(1, 40), height, width).to(dtype)
    if data.draw(st.booleans()):
        x = (x * 2).round() / 2  # many are equal
    check(pixels(x), kernel, stride, padding, 1, data.draw(st.booleans()))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_averages_of_any_window(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel = (draw(1, 4), draw(1, 4))
    height, width = (k + draw(0, 9) for k in kernel)
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    x = pixels(random(draw(1, 3), draw(1, 40), height, width).to(dtype)).requires_grad_()
    with Lean(TRICKS):
        made = F.avg_pool2d(x, kernel)
    assert "_MeanPool" in type(made.grad_fn).__name__
    wide = x.detach().double().requires_grad_()
    right = F.avg_pool2d(wide, kernel)
    gradient = pixels(random(*made.shape, seed=1)).to(dtype)
    made.backward(gradient)
    right.backward(gradient.double())
    error = 1e-6 if dtype == torch.float32 else 0.005
    for ours, exact in ((made, right), (x.grad, wide.grad)):
        assert ours is not None
        torch.testing.assert_close(ours.double(), exact, rtol=error, atol=error)


@pytest.mark.parametrize("without", ["-mno-avx512f", "-mno-avx2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_processors_with_narrower_registers(
    dtype: torch.dtype, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compiled("pooling.c", *pooling._DEFINED[dtype], without)
    if library is None:
        pytest.skip("not a processor of this kind")
    monkeypatch.setattr(pooling, "_kernels", lambda: pooling._Kernels({dtype: library}))
    for channels in (5, 16, 40):
        check(pixels(random(2, channels, 9, 8).to(dtype)), 3, 2, 1)
    check_what_is_no_number(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number(dtype: torch.dtype) -> None:
    check_what_is_no_number(dtype)


def check_what_is_no_number(dtype: torch.dtype) -> None:
    x = pixels(random(2, 20, 9, 9).to(dtype))
    x[0, 3, 4, 4], x[1, :, 2, 2], x[1, 7] = torch.nan, torch.inf, -torch.inf
    made, gradient, _ = passed(x, 3, 2, 1, lean=True)
    right, exact, _ = passed(x, 3, 2, 1, lean=False)
    assert made[0].isnan().any()
    torch.testing.assert_close(made, right, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(gradient, exact, rtol=0.02, atol=0.02)


def test_a_gradient_that_lies_plane_by_plane() -> None:
    x = pixels(random(2, 20, 8, 8).float())
    found = []
    for lean in (True, False):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        if lean:
            with Lean(TRICKS):
                made = F.max_pool2d(leaf, 2)
        else:
            made = F.max_pool2d(leaf, 2)
        made.backward(random(*made.shape).float())
        found.append(leaf.grad)
    assert torch.equal(*found)  # type: ignore[arg-type]


def test_a_byte_for_each_output() -> None:
    x = pixels(random(2, 16, 8, 8).float()).requires_grad_()
    assert kept(lambda y: F.max_pool2d(y, 3, 2, 1), x) == 2 * 16 * 4 * 4


@pytest.mark.parametrize(
    ("shape", "options"),
    [((2, 3, 40, 40), (20,)), ((2, 3, 8, 8), (2, 2, 0, 2)), ((2, 3, 8, 8), ((1, 2), (2, 1)))],
    ids=["more places than a byte has", "dilation", "plane by plane"],
)
def test_what_is_left_to_torch(shape: tuple[int, ...], options: tuple[Any, ...]) -> None:
    x = random(*shape).float()
    x = x if options == ((1, 2), (2, 1)) else pixels(x)
    made, gradient, way = passed(x, *options, lean=True)
    right, exact, _ = passed(x, *options, lean=False)
    assert "_PlacedMaxPool" not in type(way).__name__
    assert torch.equal(made, right)
    assert torch.equal(gradient, exact)


@pytest.mark.parametrize(
    ("options", "told"), [((2, 1, 2), "pad should be"), ((9,), "too small"), ((2, 0), "stride")]
)
def test_torch_tells_what_is_wrong(options: tuple[int, ...], told: str) -> None:
    x = pixels(random(2, 3, 8, 8).float()).requires_grad_()
    with pytest.raises(RuntimeError, match=told), Lean(TRICKS):
        F.max_pool2d(x, *options)


def test_without_a_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    assert pooling._kernels.__wrapped__() is None
