"""What is made in the pass of a norm: the same bits as one after the other, whatever else happens to it."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate.fast import TRICKS
from acclimate.fast.fusion import Fusion
from acclimate.fast.lean import Lean
from acclimate.fast.native import native_kernels
from lean_oracle import Program, adapting

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="there is no C compiler here")
APART = [name for name in TRICKS if name != "fusion"]
Net = Callable[[Tensor], Any]


def images(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(3, 4, 7, 6, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def passes(net: Net, tricks: list[str], *, grad: bool = True, low: bool = False) -> list[list[Tensor]]:
    """All that comes of three passes; the first one is only looked at."""
    net, lean, found = copy.deepcopy(net), Lean(tricks), []
    for seed in range(3):
        leaf = images(seed).requires_grad_()
        with (
            torch.set_grad_enabled(grad),
            lean,
            torch.autocast("cpu", torch.bfloat16, enabled=low),
        ):
            made = net(leaf * 1)
        outputs = [made] if isinstance(made, Tensor) else [*made]
        moving = [output for output in outputs if output.requires_grad]
        if moving:
            torch.autograd.backward(moving, [output.detach().cos() for output in moving])
        found += [[*outputs, leaf.grad]] if leaf.grad is not None else [outputs]
        if isinstance(net, nn.Module):
            found[-1] += [p.grad.clone() for p in net.parameters() if p.grad is not None]
            found[-1] += [buffer.clone() for buffer in net.buffers()]
    return found


def check(net: Net, **how: bool) -> None:
    for number, (one, other) in enumerate(
        zip(passes(net, list(TRICKS), **how), passes(net, APART, **how), strict=True)
    ):
        assert len(one) == len(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), number


def fused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills with what is made in the pass of a norm."""
    seen: list[str] = []
    for name in ("_sum", "_clamped"):
        method = getattr(Fusion, name)

        def noted(*args: Any, method: Any = method, name: str = name) -> Any:
            seen.append(name)
            return method(*args)

        monkeypatch.setattr(Fusion, name, noted)
    return seen


class Block(nn.Module):
    """A residual block, as networks have them."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        y += x
        out: Tensor = self.act(y)
        return out


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), nn.ReLU6(inplace=True), nn.Hardtanh(inplace=True)])
def test_a_residual_block(act: nn.Module, low: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = adapting(nn.Conv2d(4, 4, 1), Block(act), Block(act)).float()
    check(net, low=low)
    check(net, grad=False, low=low)
    seen = fused(monkeypatch)
    passes(net, list(TRICKS), low=low)
    assert seen == 2 * 2 * ["_clamped", "_sum", "_clamped"]  # from the second pass on, in both blocks


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_program(data: st.DataObject) -> None:
    net, low = Program(data.draw).float(), data.draw(st.booleans())
    try:
        passes(net, APART, low=low)
    except RuntimeError as error:  # as torch's own: it writes to what is needed in backward
        with pytest.raises(RuntimeError, match=str(error).split(":")[0][:40]):
            passes(net, list(TRICKS), low=low)
    else:
        check(net, low=low)


NORM = {"weight": torch.linspace(0.5, 2, 4), "bias": torch.linspace(-1, 1, 4)}


def norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, **NORM, training=True)


def scripted(y: Tensor) -> Tensor:
    """As many networks in use have them: what is called within is not seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made: Tensor = torch.jit.script(_relu_twice)(y)
    return made


def _relu_twice(y: Tensor) -> Tensor:
    return y.relu_() * 2


def scripted_before(y: Tensor) -> Tensor:
    """Reads what a norm made, which nobody sees; and then comes what could be fused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        gate = torch.jit.script(_gate)(y)
    return y.relu_() * gate


def _gate(y: Tensor) -> Tensor:
    return (y > 0.5).to(y.dtype).mean(dim=[2, 3], keepdim=True)


def scripted_and_added(y: Tensor) -> Tensor:
    y += scripted_before(y.clone())
    return y.relu_()


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, other: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        return y.add_(other).relu_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient * 2, gradient


def own_function(y: Tensor) -> Any:
    return _Own.apply(y, images(8))  # type: ignore[no-untyped-call]


class _OwnClamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        return y.relu_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def own_clamp(y: Tensor) -> Any:
    return _OwnClamp.apply(y)  # type: ignore[no-untyped-call]


def halves(y: Tensor) -> Tensor:
    return y[:, :2].relu_()


def twice(y: Tensor) -> tuple[Tensor, Tensor]:
    return y.mean((2, 3)), y.relu_()


def itself(y: Tensor) -> Tensor:
    y += y
    return y.relu_()


def itself_turned(y: Tensor) -> Tensor:
    y += y.flip(0)
    return y.relu_()


def narrow(y: Tensor) -> Tensor:
    y += torch.ones(4, 1, 1)
    return y.relu_()


def only_added(y: Tensor) -> Tensor:
    y += images(9)
    return y * 2


FOLLOWERS = (
    *(scripted, scripted_before, scripted_and_added, own_function, halves, twice, itself, itself_turned),
    *(narrow, only_added, own_clamp, F.relu, F.silu, Tensor.relu_),
)


@pytest.mark.parametrize("after", FOLLOWERS, ids=lambda after: after.__name__)
def test_whatever_follows(after: Callable[[Tensor], Any]) -> None:
    check(lambda x: after(norm(x)))


def test_nothing_follows() -> None:
    check(norm)


def test_one_norm_before_a_clamp_and_before_an_own_function() -> None:
    check(lambda x: own_clamp(norm(norm(x).relu_())))


def test_a_clamp_is_no_function_of_its_own() -> None:
    lean, net = Lean(TRICKS), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    for _ in range(2):
        with lean:
            made = net(images(0))
    assert made._version == 1
    assert [type(node).__name__ for node, _ in made.grad_fn.next_functions if node] == ["AccumulateGrad"] * 2


class Fickle(nn.Module):
    """Does something else in every pass."""

    def __init__(self, *followers: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.norm, self.followers, self.passes = nn.BatchNorm2d(4), followers, 0

    def forward(self, x: Tensor) -> Any:
        after = self.followers[self.passes % len(self.followers)]
        self.passes += 1
        return after(self.norm(x))


def test_what_is_expected_need_not_come() -> None:
    """It was a clamp in place, and then is something else: or an error, or the end."""
    relu_, same = Tensor.relu_, torch.nn.Identity()
    for others in ((relu_, twice, relu_), (relu_, same, relu_), (only_added, relu_, itself)):
        check(Fickle(*others))

    def fails(y: Tensor) -> Tensor:
        kept.append(y)
        raise KeyError("the network's own")

    kept: list[Tensor] = []
    net, lean = Fickle(relu_, fails), Lean(TRICKS)
    with lean:
        net(images(0).requires_grad_())
    with pytest.raises(KeyError), lean:
        net(images(1).requires_grad_())
    right = F.batch_norm(images(1), None, None, net.norm.weight, net.norm.bias, training=True)
    torch.testing.assert_close(kept[0], right)


def test_a_hook_sees_what_a_norm_made() -> None:
    """Before something is added to it and it is clamped."""
    net, seen = Block(nn.ReLU(inplace=True)), []
    net.norm2.register_forward_hook(lambda module, args, y: seen.append(y.detach().clone()))
    lean = Lean(TRICKS)
    for _ in range(3):
        with lean:
            net(images(0).requires_grad_())
    assert all(torch.equal(other, seen[0]) for other in seen)
    assert seen[0].min() < 0


def test_what_was_put_off_is_not_held() -> None:
    """Once it is written, only the input of a norm and a bit for each element stay until backward."""
    net, lean = adapting(nn.Conv2d(4, 4, 1), Block(nn.ReLU(inplace=True))).float(), Lean(TRICKS)
    made: list[weakref.ref[Tensor]] = []
    for name in ("act", "norm1", "norm2"):
        net[1].get_submodule(name).register_forward_hook(lambda *a: made.append(weakref.ref(a[-1])))
    for _ in range(2):
        with lean:
            y = net(images(0).requires_grad_()).mean()
    assert y.requires_grad
    assert [held() for held in made] == [None] * 8
