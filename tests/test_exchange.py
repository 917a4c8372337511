"""Pointwise convolutions before an average pooling: what torch gives, of fewer pixels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.fast import TRICKS
from acclimate.fast.lean import Lean
from lean_oracle import random

SIZE = 8


class Transition(nn.Module):
    """A norm that adapts, a pointwise convolution, and what ``behind`` makes of both."""

    def __init__(self, behind: Callable[..., Tensor], *, bias: bool = False, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm2d(6)
        self.convolution = nn.Conv2d(6, 4, **{"kernel_size": 1, **options}, bias=bias).requires_grad_(False)
        self.behind = behind
        self.double().requires_grad_(False)
        self.norm.requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.convolution(self.norm(x)))


def images(seed: int = 0) -> Tensor:
    return random(2, 6, SIZE, SIZE, seed=seed).contiguous(memory_format=torch.channels_last)


def outcome(net: nn.Module, x: Tensor, lean: Lean | None) -> list[Tensor]:
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    for parameter in net.parameters():
        parameter.grad = None
    if lean is None:
        made = net(leaf)
    else:
        with lean:
            made = net(leaf)
    made.backward(random(*made.shape, seed=5))
    assert leaf.grad is not None
    moved = [p.grad for p in net.parameters() if p.grad is not None]
    return [made.detach(), leaf.grad, *moved, *net.buffers()]


def seen_pixels(lean: Lean, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the pixels of every image that is convolved."""
    assert lean._exchange is not None
    found: list[int] = []
    plain = lean._exchange.plain

    def counted(x: Tensor, *args: Any, is_put_off: bool = False, **named: Any) -> Any:
        found.extend([] if is_put_off else [x.shape[2] * x.shape[3]])
        return plain(x, *args, is_put_off=is_put_off, **named)

    monkeypatch.setattr(lean._exchange, "plain", counted)
    return found


def watched(lean: Lean, net: nn.Module) -> None:
    """Passes in which it is seen that nobody else looks at what the convolution makes."""
    for _ in range(2):
        with lean:
            F.avg_pool2d(net(images().requires_grad_()), 2)


def check(net: nn.Module, lean: Lean, passes: int = 4) -> None:
    """The same as torch's own in every pass, in float64."""
    stock = copy.deepcopy(net)
    for number in range(passes):
        x = images(number)
        for made, right in zip(outcome(net, x, lean), outcome(stock, x, None), strict=True):
            torch.testing.assert_close(made, right, rtol=1e-12, atol=1e-12)


POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda y: F.avg_pool2d(y, 2),
    "pairs": lambda y: F.avg_pool2d(y, (2, 4), (2, 4)),
    "what is left over": lambda y: F.avg_pool2d(y, 3, 3),
    "windows that overlap": lambda y: F.avg_pool2d(y, 3, 2),
    "by name": lambda y: F.avg_pool2d(input=y, kernel_size=2, stride=2, count_include_pad=False),
    "a layer": nn.AvgPool2d(2, 2),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", POOLINGS)
def test_pooled_first(kind: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lean, net = Lean(TRICKS), Transition(POOLINGS[kind], bias=bias)
    found = seen_pixels(lean, monkeypatch)
    check(net, lean)
    pooled = POOLINGS[kind](images()).shape[2:].numel()
    assert found == [SIZE * SIZE, *[pooled] * 3]


LEFT_ALONE: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "another call": (lambda y: y * 2, {}),
    "another call before it": (lambda y: F.avg_pool2d(y * 2, 2), {}),
    "another pooling": (lambda y: F.max_pool2d(y, 2), {}),
    "padding": (lambda y: F.avg_pool2d(y, 2, 2, 1), {}),
    "a window in part": (lambda y: F.avg_pool2d(y, 3, 3, 0, True), {}),
    "another divisor": (lambda y: F.avg_pool2d(y, 2, 2, 0, False, True, 3), {}),
    "as many pixels": (lambda y: F.avg_pool2d(y, 1, 1), {}),
    "of another tensor": (lambda y: F.avg_pool2d(images()[:, :4], 2) + F.avg_pool2d(y, 2), {}),
    "wanted afterwards": (lambda y: F.avg_pool2d(y, 2) + y[:, :, ::2, ::2], {}),
    "a larger kernel": (lambda y: F.avg_pool2d(y, 2), {"kernel_size": 3}),
    "strides": (lambda y: F.avg_pool2d(y, 2), {"stride": 2}),
    "padding before": (lambda y: F.avg_pool2d(y, 2), {"padding": 1}),
    "groups": (lambda y: F.avg_pool2d(y, 2), {"groups": 2}),
    "a trained weight": (lambda y: F.avg_pool2d(y, 2), {}),
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_left_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    behind, options = LEFT_ALONE[kind]
    lean, net = Lean(TRICKS), Transition(behind, **options)
    if kind == "a trained weight":
        net.convolution.requires_grad_(True)
    found = seen_pixels(lean, monkeypatch)
    check(net, lean)
    assert len({*found}) == 1  # always as many pixels, all of them
    assert len(found) == 4


class Scripted(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y.abs()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_what_a_script_sees_is_written() -> None:
    script = torch.jit.script(Scripted())
    lean, found = Lean(TRICKS), []

    def behind(y: Tensor) -> Tensor:
        with torch.no_grad():
            found.append(script(y).clone())
        return F.avg_pool2d(y, 2)

    check(Transition(behind), lean)
    torch.testing.assert_close(found[-2], found[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("later", ["kept", "not pooled", "summed"])
def test_a_network_that_changes_its_mind(later: str) -> None:
    """What was seen three times need not hold the fourth time."""
    kept: list[Tensor] = []

    def behind(y: Tensor) -> Tensor:
        number = next(numbers)
        if number // 2 == 3 and later == "kept":
            kept.append(y)
        if number // 2 == 3 and later == "not pooled":
            return y[:, :, ::2, ::2] * 3
        if number // 2 == 3 and later == "summed":
            return F.avg_pool2d(images()[:, :4], 2) * y.sum()
        return F.avg_pool2d(y, 2)

    numbers = iter(range(100))
    check(Transition(behind), Lean(TRICKS), passes=6)
    if later == "kept":
        torch.testing.assert_close(*(y.detach() for y in kept), rtol=1e-12, atol=1e-12)


def test_at_the_end_of_a_network_it_is_written() -> None:
    """Pooled in three passes; in the fourth the convolution is the last call."""
    numbers = iter(range(100))

    def behind(y: Tensor) -> Tensor:
        return y if next(numbers) // 2 == 3 else F.avg_pool2d(y, 2)

    check(Transition(behind), Lean(TRICKS))


def test_without_gradients() -> None:
    net, lean = Transition(lambda y: F.avg_pool2d(y, 2)), Lean(TRICKS)
    check(net, lean)
    net.eval()
    with torch.no_grad():
        with lean:
            made = net(images())
        torch.testing.assert_close(made, net(images()), rtol=1e-12, atol=1e-12)


class Own(torch.autograd.Function):
    """A function of the network's own, in which a convolution is the last call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, convolution: nn.Module) -> Tensor:
        made = convolution(x)
        assert isinstance(made, Tensor)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient.new_full((2, 6, SIZE, SIZE), 7.0), None


def test_a_function_of_the_networks_own_keeps_its_gradient() -> None:
    convolution, lean = nn.Conv2d(6, 4, 1, bias=False).double().requires_grad_(False), Lean(TRICKS)
    for _ in range(3):
        x = images().requires_grad_()
        with lean:
            made = F.avg_pool2d(Own.apply(x, convolution), 2)  # type: ignore[no-untyped-call]
        made.sum().backward()
        assert x.grad is not None
        assert (x.grad == 7).all()


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("later", ["pooled", "added"])
def test_autocast_that_ends_behind_a_convolution(later: str, given: torch.dtype) -> None:
    net = nn.Conv2d(6, 4, 1, bias=False).requires_grad_(False)
    lean, x = Lean(TRICKS), images().to(given)

    def run(number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y: Tensor = net(x)
            if later == "added" and number < 2:
                return F.avg_pool2d(y, 2)
        return F.avg_pool2d(y, 2) if later == "pooled" else F.avg_pool2d(y + 0, 2)

    for number in range(4):
        with lean:
            made = run(number)
        right = run(number)
        assert made.dtype == right.dtype == torch.bfloat16
        torch.testing.assert_close(made, right, rtol=0.02, atol=0.02)


def test_inference_that_ends_behind_a_convolution() -> None:
    net, lean = nn.Conv2d(6, 4, 1, bias=False).double().requires_grad_(False), Lean(TRICKS)
    for _ in range(3):
        x = images().requires_grad_()
        with lean:
            with torch.inference_mode():
                y = net(x)
            made = F.avg_pool2d(y, 2)
        assert not made.requires_grad
        torch.testing.assert_close(made, F.avg_pool2d(net(x.detach()), 2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kernel", "stride", "told"), [(16, None, "too small"), (2, 0, "stride should")])
def test_a_pooling_that_fails_is_torchs_error(kernel: int, stride: int | None, told: str) -> None:
    net, lean = nn.Conv2d(6, 4, 1, bias=False).double().requires_grad_(False), Lean(TRICKS)
    watched(lean, net)
    for _ in range(2):
        x = images().requires_grad_()
        with lean:
            y = net(x)
            with pytest.raises(RuntimeError, match=told):
                F.avg_pool2d(y, kernel, stride)
        torch.testing.assert_close(y, net(x), rtol=1e-12, atol=1e-12)


def test_without_memory_for_the_pooling_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    net, lean = nn.Conv2d(6, 4, 1, bias=False).double().requires_grad_(False), Lean(TRICKS)
    assert lean._exchange is not None
    watched(lean, net)
    x = images().requires_grad_()
    with lean:
        y = net(x)
        monkeypatch.setattr(lean._exchange, "_pool", lambda *_: [][0])
        with pytest.raises(IndexError):
            F.avg_pool2d(y, 2)
    torch.testing.assert_close(y, net(x), rtol=1e-12, atol=1e-12)


def test_parts_that_are_run_again_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lean, net = Lean(TRICKS), Transition(lambda y: F.avg_pool2d(y, 2))
    found = seen_pixels(lean, monkeypatch)
    for _ in range(3):
        with lean.in_part():
            net(images())
    assert found == [SIZE * SIZE] * 3


def test_a_saving_of_its_own() -> None:
    assert Lean([name for name in TRICKS if name != "exchange"])._exchange is None
    assert Lean([name for name in TRICKS if name != "weights"])._exchange is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_lower_precision_it_is_as_exact(dtype: torch.dtype) -> None:
    net, x, lean = Transition(lambda y: F.avg_pool2d(y, 2)), images(), Lean(TRICKS)
    exact = outcome(copy.deepcopy(net), x, None)
    net.float()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        ours = [outcome(net, x.float(), lean) for _ in range(3)][-1]
        torchs = outcome(net, x.float(), None)
    for made, theirs, right in list(zip(ours, torchs, exact, strict=True))[:4]:
        error, usual = ((found - right).abs().max().item() for found in (made, theirs))
        assert error <= 1.5 * usual
