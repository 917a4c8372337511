"""Lean layers against torch's own in float64: outputs, gradients, statistics; and the bytes they keep."""

from __future__ import annotations

import copy
import itertools
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acclimate.fast import TRICKS, bits
from acclimate.fast.lean import Lean
from acclimate.fast.weights import Weights
from acclimate.models.vision import import_torchvision
from lean_oracle import LAYOUTS, Net, adapting, check, kept, outcome, random, single

CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.Conv2d(4, 6, 3), (2, 4, 7, 6)),
    "no bias": (nn.Conv2d(4, 6, 3, padding=1, bias=False), (2, 4, 7, 6)),
    "stride": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 7, 6)),
    "oblong": (nn.Conv2d(4, 6, (3, 1), stride=(1, 2), padding=(2, 0)), (2, 4, 7, 6)),
    "dilated": (nn.Conv2d(4, 6, 3, padding=2, dilation=2), (2, 4, 7, 6)),
    "grouped": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 7, 6)),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 7, 6)),
    "depthwise, wide": (nn.Conv2d(4, 4, 5, padding=(0, 2), groups=4), (2, 4, 7, 6)),
    "depthwise, much padded": (nn.Conv2d(4, 4, 3, padding=3, groups=4), (2, 4, 7, 6)),
    "depthwise, stride": (nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), (2, 4, 7, 6)),
    "depthwise, dilated": (nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4), (2, 4, 7, 6)),
    "depthwise, doubled": (nn.Conv2d(4, 8, 3, padding=1, groups=4), (2, 4, 7, 6)),
    "same": (nn.Conv2d(4, 6, 4, padding="same", dilation=2), (2, 4, 9, 8)),
    "valid": (nn.Conv2d(4, 6, 3, padding="valid"), (2, 4, 7, 6)),
    "pointwise": (nn.Conv2d(4, 6, 1), (2, 4, 7, 6)),
    "one image, no batch": (nn.Conv2d(4, 6, 3), (4, 7, 6)),
    "of a line": (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "of a line, depthwise": (nn.Conv1d(4, 4, 5, padding=2, groups=4), (2, 4, 9)),
    "of a line, same": (nn.Conv1d(4, 6, 3, padding="same"), (2, 4, 9)),
    "of a volume": (nn.Conv3d(2, 3, 3, stride=(1, 2, 1), padding=1), (2, 2, 4, 5, 6)),
    "of a volume, depthwise": (nn.Conv3d(2, 2, 3, padding=1, groups=2), (2, 2, 4, 5, 6)),
    "of a volume, dilated": (nn.Conv3d(2, 3, 2, dilation=(1, 2, 1), groups=1), (2, 2, 4, 5, 6)),
    **{
        f"padding {mode}": (nn.Conv2d(4, 6, 3, padding=1, padding_mode=mode), (2, 4, 7, 6))
        for mode in ("reflect", "replicate", "circular")
    },
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(kind: str) -> None:
    layer, shape = CONVOLUTIONS[kind]
    check(adapting(layer), random(*shape))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions_of_any_shape(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, depthwise = draw(1, 3), data.draw(st.booleans())
    ins, outs = (1, 1) if depthwise else (draw(1, 2), draw(1, 2))
    most = (1, 1) if data.draw(st.booleans()) else (3, 2)  # of stride and dilation
    ends = ((1, 4), (1, most[0]), (0, 4), (1, most[1]))
    kernel, stride, padding, dilation = ([draw(*end) for _ in "hw"] for end in ends)
    least = [max(1, (k - 1) * d + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    height, width = (size + draw(0, 4) for size in least)
    weight, bias = random(outs * groups, ins, *kernel, seed=1), random(outs * groups, seed=2)
    x = random(draw(1, 2), ins * groups, height, width)
    layout = data.draw(st.sampled_from(LAYOUTS))
    given_bias = bias if data.draw(st.booleans()) else None
    check(lambda y: F.conv2d(y, weight, given_bias, stride, padding, dilation, groups), x, layout)


def test_functions_called_directly() -> None:
    x, weight = random(2, 4, 7, 6), random(4, 4, 3, 3, seed=1)
    line, kernel = random(2, 4, 9), random(4, 1, 3, seed=2)
    check(lambda y: F.conv2d(y, weight, stride=2), x)
    check(lambda y: torch.conv2d(y, weight, None, (1,), [1], 1), x)
    check(lambda y: F.conv1d(y, kernel, groups=4, padding=1), line)
    check(lambda y: F.linear(y, weight[:, 0, 0], weight[0, 0, 0].sum().expand(4)), random(5, 3))
    check(lambda y: F.max_pool2d(y, 2), x)
    check(lambda y: torch.max_pool2d(y, (3, 2), stride=1, padding=1), x)
    check(lambda y: F.avg_pool2d(y, 3, 2, 1, count_include_pad=False), x)
    check(lambda y: F.batch_norm(y, None, None, training=True), x)
    check(lambda y: F.batch_norm(y, weight[0, :, 0, 0], weight[1, :, 0, 0].exp()), x)
    check(lambda y: torch.relu(y) + y.relu() + torch.relu_(y * 2) + (y * 3).relu_() + F.relu(y, True), x)


NAMED: dict[str, Net] = {
    "conv2d": lambda y: F.conv2d(input=y, weight=random(6, 4, 3, 3), padding=1),
    "linear": lambda y: F.linear(input=y, weight=random(5, 6)),
    "F.max_pool2d": lambda y: F.max_pool2d(input=y, kernel_size=2),
    "torch.max_pool2d": lambda y: torch.max_pool2d(input=y, kernel_size=2),
    "avg_pool2d": lambda y: F.avg_pool2d(input=y, kernel_size=2),
    "F.relu": lambda y: F.relu(input=y),
    "torch.relu": lambda y: torch.relu(input=y),
    "leaky_relu": lambda y: F.leaky_relu(input=y, negative_slope=0.2),
    "batch_norm": lambda y: F.batch_norm(input=y, running_mean=None, running_var=None, training=True),
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_by_name(name: str) -> None:
    check(NAMED[name], random(2, 4, 7, 6))


def test_linear_layers() -> None:
    check(adapting(nn.Linear(4, 6)), random(5, 4))
    check(adapting(nn.Linear(4, 6, bias=False)), random(2, 3, 4))
    check(nn.Linear(4, 6).double(), random(5, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1)},
        {"kernel_size": 2, "stride": 3, "ceil_mode": True},
        {"kernel_size": 2, "dilation": 2, "stride": 1},
        {"kernel_size": 3, "dilation": (1, 2), "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "return_indices": True},
    ],
    ids=str,
)
def test_max_pooling(options: dict[str, Any]) -> None:
    for x in (random(2, 3, 8, 7), random(3, 8, 7), random(2, 3, 8, 7).round()):  # the last one has ties
        check(nn.MaxPool2d(**options), x)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(2, None, 0), (3, 2, 1), ((3, 2), (2, 1), (1, 0)), (4, 3, 2)],
    ids=str,
)
def test_average_pooling(kernel: Any, stride: Any, padding: Any) -> None:
    for ceil, count, divisor in itertools.product((False, True), (False, True), (None, 5)):
        layer = nn.AvgPool2d(kernel, stride, padding, ceil, count, divisor)
        check(layer, random(2, 3, 8, 7))
    check(nn.AvgPool2d(kernel, stride, padding), random(3, 8, 7))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pooling_of_any_shape(data: st.DataObject) -> None:
    pair = lambda low, high: [data.draw(st.integers(low, high)) for _ in "hw"]  # noqa: E731
    kernel, stride, dilation, ceil = pair(1, 4), pair(1, 4), pair(1, 2), data.draw(st.booleans())
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    more = pair(0, 5)
    size = [(k - 1) * d + 1 + m for k, d, m in zip(kernel, dilation, more, strict=True)]
    x, layout = random(2, 3, *size), data.draw(st.sampled_from(LAYOUTS))
    check(nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil), x, layout)
    check(nn.AvgPool2d(kernel, stride, padding, ceil, data.draw(st.booleans())), x, layout)


SOME_LAYERS = (nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2))


def test_a_graph_that_is_kept_can_be_gone_through_again() -> None:
    net = adapting(*SOME_LAYERS, nn.Flatten(), nn.SiLU())
    x = random(3, 4, 8, 8).requires_grad_()
    with Lean(TRICKS):
        y = net(x).sum()
    first, again = (torch.autograd.grad(y, x, retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, again)


def test_nobody_differentiates_twice() -> None:
    x, net = single(2, 4, 7, 6), adapting(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()).float()
    with Lean(TRICKS):
        made = net(x)
    (gradient,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="trying to differentiate twice"):
        gradient.sum().backward()


def test_trainable_weights_are_torchs_own() -> None:
    x = random(2, 4, 7, 6)
    for layer in (nn.Conv2d(4, 6, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Linear(6, 3)):
        check(layer.double(), x)
        layer.weight.requires_grad_(False)  # type: ignore[union-attr]
        check(layer, x)  # its bias still moves
    with Lean(TRICKS):
        made = nn.Conv2d(4, 6, 3).double()(x.requires_grad_())
    assert type(made.grad_fn).__name__ == "ConvolutionBackward0"


def test_without_gradients_it_is_torchs_own() -> None:
    net, x = adapting(*SOME_LAYERS, nn.AvgPool2d(2)), random(3, 4, 10, 9)
    other = copy.deepcopy(net)
    with torch.no_grad():
        right = net(x)
        with Lean(TRICKS):
            made = other(x)
    assert torch.equal(made, right)
    assert made.grad_fn is None
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(net.buffers(), other.buffers(), strict=True))


def test_each_trick_works_by_itself() -> None:
    net = adapting(*SOME_LAYERS, nn.Conv2d(4, 6, 2), nn.ReLU6(), nn.AvgPool2d(2))
    x = random(3, 4, 12, 12)
    right = outcome(net, x, "planes", lean=False)
    for trick in TRICKS:
        mine, leaf = copy.deepcopy(net), x.clone().requires_grad_()
        with Lean([trick]) or nullcontext():
            made = mine(leaf * 1)
        made.backward(random(*made.shape, seed=9))
        assert leaf.grad is not None
        assert torch.allclose(leaf.grad, right["gradient of the input"], rtol=0, atol=1e-12), trick
    assert not Lean([])
    assert not Lean(["native", "fusion", "concatenations", "optimizer", "objective", "recycling"])


KEEPING = ("same", "valid", "no batch", "reflect", "replicate")
"""Torch's own, or padded by a layer of torch's own that keeps its input."""


@pytest.mark.parametrize("kind", [k for k in CONVOLUTIONS if not any(word in k for word in KEEPING)])
def test_a_convolution_keeps_nothing(kind: str) -> None:
    layer, shape = CONVOLUTIONS[kind]
    net = adapting(layer).float()
    assert kept(net, single(*shape)) == 0
    assert kept(net, single(*shape), lean=False) > 0


def test_an_activation_keeps_a_bit_for_each_element() -> None:
    x, y = single(2, 16, 8, 8), single(2, 16, 8, 8)
    for act in (F.relu, F.relu6, F.hardtanh, F.leaky_relu):
        assert kept(lambda x, act=act: act(x + y), x) == x.numel() / 8
        assert kept(lambda x, act=act: act(x + y, inplace=True), x) == x.numel() / 8
    last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    assert kept(lambda x: F.relu(x + 1), last) == x.numel() / 8


def test_pooling_keeps_positions() -> None:
    x = single(2, 16, 8, 8)
    assert kept(nn.MaxPool2d(2), x) == 4 * x.numel() // 4
    assert kept(nn.AvgPool2d(2), x) == 0


def test_what_is_not_kept_is_gone() -> None:
    """Hooks see what is saved, not what a node holds on to in other ways."""
    layers = [nn.Conv2d(4, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2)]
    for layer in layers:
        net = adapting(layer).float()
        x = single(2, 4, 8, 8) * 1
        held = weakref.ref(x)
        with Lean(TRICKS):
            made = net(x)
        assert made.requires_grad
        del x
        assert held() is None, layer


def test_weights_that_are_made_for_one_pass_are_forgotten() -> None:
    """As those of standardised and of reparametrised layers."""
    kernel, lean, weights, gone = random(4, 1, 3, 3), Lean(TRICKS), Weights(), []
    for _ in range(2):
        made = kernel * 1
        with lean:
            F.conv2d(random(2, 4, 7, 6).requires_grad_(), made, groups=4).sum().backward()
        weights.cast(made, torch.bfloat16)
        gone.append(weakref.ref(made))
    del made
    assert [held() for held in gone] == [None, None]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 4])
def test_weights_that_somebody_changes_are_used(groups: int, precision: torch.dtype) -> None:
    """By loading others into the network between two steps, as a check of a checkpoint does."""
    layer = nn.Conv2d(4, 4, 3, groups=groups).requires_grad_(False)
    x = single(2, 4, 7, 6).contiguous(memory_format=torch.channels_last).detach().requires_grad_()
    lean = Lean(TRICKS)
    for change in ("none", "in place", "another tensor"):
        if change == "in place":
            layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()})
        elif change == "another tensor":
            layer.weight.data = 3 * layer.weight.data
        found = []
        for mode in (lean, Lean(TRICKS)):
            with mode, torch.autocast("cpu", precision, enabled=precision != torch.float32):
                found += torch.autograd.grad(layer(x).square().sum(), x)
        assert torch.equal(*found), change
        wide = x.detach().double().requires_grad_()
        (exact,) = torch.autograd.grad(copy.deepcopy(layer).double()(wide).square().sum(), wide)
        error = 1e-6 if precision == torch.float32 else 0.02
        assert (found[0] - exact).abs().max() < error * exact.abs().max(), change


def test_a_resnet_50_keeps_little_more_than_half() -> None:
    model = import_torchvision().models.resnet50(weights=None).requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(True)
    x = random(2, 3, 64, 64, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    assert kept(model, x) < 0.56 * kept(model, x, lean=False)


@pytest.mark.parametrize("on", ["cpu", "other devices"])
def test_bits_are_packed_and_unpacked(on: str) -> None:
    pack, unpack = (bits.pack, bits.unpack) if on == "cpu" else (bits._pack, bits._unpack)
    for length in range(101):
        mask = torch.rand(length, generator=torch.Generator().manual_seed(length)) > 0.5
        packed = pack(mask)
        made = unpack(packed, length)
        assert packed.tolist() == np.packbits(mask.numpy(), bitorder="little").tolist()
        assert made.tolist() == mask.int().tolist()
        assert packed.dtype == made.dtype == torch.uint8
