"""Convolutions that are trained: against float64, for several processors, and what is left to torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate import Adapter, InputTransformation
from acclimate.demo.bundle import MEAN, STD, bundled_images, bundled_model
from acclimate.fast import TRICKS, compiling, narrow, trained, winograd
from acclimate.fast.compiling import compiled
from acclimate.fast.lean import Lean
from acclimate.fast.narrow import Narrow
from acclimate.fast.winograd import Winograd
from lean_oracle import random
from test_winograd import NARROWER, pixels

FEW, TILES = narrow.narrow(), winograd.winograd()
pytestmark = [
    pytest.mark.skipif(FEW is None or TILES is None, reason="there is no C compiler here"),
    pytest.mark.usefixtures("several_threads"),
]
PLAIN = [name for name in TRICKS if name != "trained"]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called."""
    names: list[str] = []

    def seen(kind: type, name: str) -> None:
        plain = getattr(kind, name)

        def call(*args: object) -> object:
            names.append(f"{kind.__name__}.{name}")
            return plain(*args)

        monkeypatch.setattr(kind, name, call)

    for kind, name in (
        (Narrow, "convolved"),
        (Narrow, "products"),
        (Winograd, "convolved"),
        (Winograd, "gradients"),
    ):
        seen(kind, name)
    return names


def layer_of(ins: int, outs: int, *, bias: bool = True, padding: int | str = 1, **more: int) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(ins, outs, 3, padding=padding, bias=bias, **more)


def passed(layer: nn.Module, x: Tensor, tricks: Sequence[str]) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    layer = copy.deepcopy(layer)
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with Lean(tricks):
        made = layer(leaf)
    made.backward(random(*made.shape, seed=3).to(made))
    found = [made, leaf.grad, *(p.grad for p in layer.parameters())]
    assert all(tensor is not None for tensor in found)
    return [tensor.detach() for tensor in found if tensor is not None]


def errors(layer: nn.Module, x: Tensor, tricks: Sequence[str] = tuple(TRICKS)) -> list[float]:
    """How far all of it is from float64, as parts of the largest element."""
    exact = passed(copy.deepcopy(layer).double(), x.double(), [])
    pairs = zip(passed(layer, x, tricks), exact, strict=True)
    return [((made.double() - right).abs().max() / right.abs().max()).item() for made, right in pairs]


@pytest.mark.usefixtures("always_winograd")
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_convolutions_of_any_shape(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    assert TILES is not None
    many, less = draw(1, 2) * TILES._columns, draw(1, 4)
    sides = data.draw(st.sampled_from([(many, less), (less, many), (many, TILES._columns)]))
    x = pixels(draw(1, 4), sides[0], draw(1, 40), draw(1, 40))
    assert max(errors(layer_of(*sides, bias=data.draw(st.booleans())), x)) <= 3e-6


KINDS = {
    "to few": (32, 3, ["Narrow.convolved", "Narrow.products"]),
    "from few": (3, 32, ["Narrow.products"]),
    "tiles": (32, 64, ["Winograd.convolved", "Winograd.convolved", "Winograd.gradients"]),
}


@pytest.mark.parametrize(("ins", "outs", "kernels"), KINDS.values(), ids=KINDS)
def test_each_by_its_kernel_and_as_exact_as_torch(
    ins: int, outs: int, kernels: list[str], used: list[str]
) -> None:
    layer, x = layer_of(ins, outs), pixels(4, ins, 56, 60)
    ours = errors(layer, x)
    assert used == kernels
    torchs = errors(layer, x, PLAIN)
    # the output, and the gradients of input, weight and bias
    assert all(mine <= max(theirs, 1e-6) for mine, theirs in zip(ours, torchs, strict=True)), (ours, torchs)


@pytest.mark.usefixtures("always_winograd")
@pytest.mark.parametrize("options", NARROWER.values(), ids=NARROWER)
def test_on_other_processors(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = [compiled(source, *options) for source in ("narrow.c", "winograd.c")]
    if None in libraries:
        pytest.skip("not a processor of this kind")
    few, tiles = Narrow(libraries[0]), Winograd(libraries[1])  # type: ignore[arg-type]
    monkeypatch.setattr(trained, "narrow", lambda: few)
    monkeypatch.setattr(trained, "find_winograd", lambda: tiles)
    for size in (5, 12, 37):
        for ins, outs in ((32, 1), (64, 3), (32, 4), (2, 32), (64, 32)):
            assert max(errors(layer_of(ins, outs), pixels(3, ins, size, size + 1))) <= 3e-6


@pytest.mark.parametrize(("ins", "outs"), [kind[:2] for kind in KINDS.values()], ids=KINDS)
def test_neither_the_batch_nor_threads_matter_to_outputs(ins: int, outs: int) -> None:
    layer, x = layer_of(ins, outs), pixels(7, ins, 37, 20)
    whole, in_x = passed(layer, x, tuple(TRICKS))[:2]
    torch.set_num_threads(1)
    single = passed(layer, x, tuple(TRICKS))[:2]
    assert all(torch.equal(a, b) for a, b in zip(single, (whole, in_x), strict=True))
    alone = passed(layer, x[3:4].clone(memory_format=torch.channels_last), tuple(TRICKS))[0]
    assert torch.equal(alone[0], whole[3])


@pytest.mark.parametrize(("ins", "outs"), [kind[:2] for kind in KINDS.values()], ids=KINDS)
def test_the_same_threads_give_the_same_bits(ins: int, outs: int) -> None:
    layer, x = layer_of(ins, outs), pixels(7, ins, 37, 20)
    first, second = (passed(layer, x, tuple(TRICKS)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_what_is_no_number_stays_in_its_image() -> None:
    for ins, outs, _ in KINDS.values():
        layer, x = layer_of(ins, outs), pixels(3, ins, 16, 17)
        right = passed(layer, x, tuple(TRICKS))[0]
        x[1, 2, 7, 7] = torch.nan
        made, _, in_weight, _ = passed(layer, x, tuple(TRICKS))
        assert made[1].isnan().any()
        assert torch.equal(made[::2], right[::2])
        assert in_weight.isnan().any()


def training(layer: nn.Module, **changed: bool) -> nn.Module:
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(changed.get(name, True))
    return layer


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_one_of_both_may_be_frozen(frozen: str) -> None:
    for ins, outs, _ in KINDS.values():
        layer, x = training(layer_of(ins, outs), **{frozen: False}), pixels(2, ins, 16, 16)
        exact = copy.deepcopy(layer).double()
        exact(x.double()).square().sum().backward()
        with Lean(TRICKS):
            layer(x).square().sum().backward()
        for name, parameter in layer.named_parameters():
            right = exact.get_parameter(name).grad
            assert (parameter.grad is None) == (right is None) == (name == frozen)
            if right is not None and parameter.grad is not None:
                torch.testing.assert_close(
                    parameter.grad.double(), right, rtol=0, atol=1e-5 * right.abs().max().item()
                )


LEFT_ALONE = {
    "strides": (layer_of(3, 32, stride=2), pixels(2, 3, 16, 16)),
    "dilation": (layer_of(3, 32, dilation=2), pixels(2, 3, 16, 16)),
    "groups": (layer_of(32, 32, groups=32), pixels(2, 32, 16, 16)),
    "another kernel": (nn.Conv2d(3, 32, (3, 1), padding=(1, 0)), pixels(2, 3, 16, 16)),
    "other padding": (layer_of(32, 3, padding=2), pixels(2, 32, 16, 16)),
    "padding by a word": (layer_of(32, 3, padding="same"), pixels(2, 32, 16, 16)),
    "channels that fill no registers": (layer_of(40, 3), pixels(2, 40, 16, 16)),
    "neither few nor many": (layer_of(5, 32), pixels(2, 5, 16, 16)),
    "very many": (layer_of(512, 256), pixels(1, 512, 8, 8)),
    "planes": (layer_of(32, 3), pixels(2, 32, 16, 16).contiguous()),
    "double precision": (layer_of(32, 3).double(), pixels(2, 32, 16, 16).double()),
    "low precision": (layer_of(32, 3).bfloat16(), pixels(2, 32, 16, 16).bfloat16()),
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_what_is_left_alone(kind: str, used: list[str]) -> None:
    layer, x = LEFT_ALONE[kind]
    ours, torchs = passed(layer, x, tuple(TRICKS)), passed(layer, x, ())
    assert not used
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))


def test_under_autocast_it_is_torchs(used: list[str]) -> None:
    layer, x = layer_of(32, 3), pixels(2, 32, 16, 16)
    with torch.autocast("cpu", torch.bfloat16), Lean(TRICKS):
        assert layer(x).dtype == torch.bfloat16
    assert not used


@pytest.mark.parametrize("left_out", ["trained", "native", "weights"])
def test_a_saving_of_its_own(left_out: str, used: list[str]) -> None:
    passed(layer_of(32, 3), pixels(2, 32, 16, 16), [name for name in TRICKS if name != left_out])
    assert not used


def test_without_winograd_few_channels_only(used: list[str]) -> None:
    tricks = [name for name in TRICKS if name != "winograd"]
    passed(layer_of(32, 32), pixels(2, 32, 16, 16), tricks)
    assert not used
    passed(layer_of(32, 3), pixels(2, 32, 16, 16), tricks)
    assert used == ["Narrow.convolved", "Narrow.products"]


def test_a_weight_that_is_computed_gets_its_gradient() -> None:
    layer, x = layer_of(32, 3), pixels(2, 32, 16, 16)
    gradients = []
    for tricks in (tuple(TRICKS), ()):
        scale = torch.ones(3, 1, 1, 1, requires_grad=True)
        with Lean(tricks):
            torch.conv2d(x, layer.weight * scale, layer.bias, padding=1).square().sum().backward()
        assert scale.grad is not None
        gradients.append(scale.grad)
    torch.testing.assert_close(*gradients)


def test_an_input_that_is_changed_after_all_is_told() -> None:
    layer, x = layer_of(32, 3), pixels(2, 32, 16, 16)
    with Lean(TRICKS):
        made = layer(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


def test_nobody_differentiates_twice() -> None:
    layer, x = layer_of(32, 3), pixels(2, 32, 16, 16)
    with Lean(TRICKS):
        made = layer(x).square().sum()
    (gradient,) = torch.autograd.grad(made, layer.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_torch_tells_what_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="channels"), Lean(TRICKS):
        layer_of(32, 3)(pixels(2, 64, 16, 16))
    with pytest.raises(RuntimeError, match="at least 1"), Lean(TRICKS):
        torch.conv2d(pixels(2, 32, 16, 16), torch.empty(0, 32, 3, 3, requires_grad=True), padding=1)


@pytest.mark.parametrize(("ins", "outs"), [kind[:2] for kind in KINDS.values()], ids=KINDS)
def test_signs_that_are_not_in_memory(ins: int, outs: int) -> None:
    layer, x = layer_of(ins, outs), pixels(2, ins, 16, 16)
    right = passed(layer, x, ())
    weight, bias = (torch._neg_view(-p.detach()).requires_grad_() for p in layer.parameters())
    with Lean(TRICKS):
        made = torch.conv2d(x, weight, bias, padding=1)
    torch.testing.assert_close(made, right[0])
    with Lean(TRICKS):
        layer(x).backward(torch._neg_view(-random(2, outs, 16, 16, seed=3).float()))
    for parameter, gradient in zip(layer.parameters(), right[2:], strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "kind"), [("convolve", Narrow), ("products", Narrow), ("gradients", Winograd)]
)
def test_without_memory_it_says_so(name: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    way = FEW if kind is Narrow else TILES
    assert way is not None

    class Poor:
        def __getattr__(self, asked: str) -> object:
            return (lambda *_: 1) if asked == name else getattr(library, asked)

    library = way._library
    monkeypatch.setattr(way, "_library", Poor())
    with pytest.raises(MemoryError, match=r"there is no memory left for the \w+ of a convolution"):
        passed(layer_of(32, 3 if kind is Narrow else 32), pixels(2, 32, 16, 16), tuple(TRICKS))


def test_without_a_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    assert narrow.narrow.__wrapped__() is None
    monkeypatch.setattr(trained, "narrow", lambda: None)
    monkeypatch.setattr(trained, "find_winograd", lambda: None)
    layer, x = layer_of(32, 3), pixels(2, 32, 16, 16)
    assert all(
        torch.equal(a, b)
        for a, b in zip(passed(layer, x, tuple(TRICKS)), passed(layer, x, PLAIN), strict=True)
    )


@pytest.mark.parametrize(("channels", "depth"), [(2, 1), (3, 2), (4, 3)])
def test_the_input_transformation_is_that_of_float64(channels: int, depth: int, used: list[str]) -> None:
    d = InputTransformation(channels, 32, depth, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        d.tau.fill_(0.7)  # at 1 nothing of r moves
    x = pixels(4, channels, 40, 33).abs()
    ours, torchs = (errors(d, x, tricks) for tricks in (tuple(TRICKS), ()))
    assert set(used) >= {"Narrow.convolved", "Narrow.products"}
    assert all(mine <= max(2 * theirs, 3e-6) for mine, theirs in zip(ours, torchs, strict=True)), (
        ours,
        torchs,
    )


def test_steps_are_those_without_it(used: list[str]) -> None:
    images = bundled_images()[0][:64]
    found = []
    for fast in (PLAIN, True):
        assert "Winograd.gradients" not in used
        adapter = Adapter(
            bundled_model(), "slr+it", normalize=(MEAN, STD), fast=fast, optimizer="sgd", lr=0.01
        )
        found.append([adapter(images) for _ in range(4)])
    assert {"Winograd.gradients", "Narrow.convolved", "Narrow.products"} <= set(used)
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
