"""Lean norms and activations against torch's own: whatever a network makes of what a norm gives."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate.fast import TRICKS
from acclimate.fast.lean import Lean
from lean_oracle import LAYOUTS, Program, adapting, check, kept, layouts_of, outcome, random, single

NORMS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "of rows": (nn.BatchNorm1d, (6, 4)),
    "of lines": (nn.BatchNorm1d, (3, 4, 5)),
    "of images": (nn.BatchNorm2d, (3, 4, 5, 6)),
    "of volumes": (nn.BatchNorm3d, (2, 4, 3, 4, 5)),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "without affine": {"affine": False},
    "untracked": {"track_running_stats": False},
    "bare": {"affine": False, "track_running_stats": False},
    "cumulative": {"momentum": None},
    "momentum 1, other eps": {"momentum": 1.0, "eps": 0.1},
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind: str, variant: str, training: bool) -> None:
    make, shape = NORMS[kind]
    net = adapting(make(4, **VARIANTS[variant])).train(training)
    check(net, 3 + 2 * random(*shape))
    check(nn.Sequential(net, nn.ReLU()), 3 + 2 * random(*shape))


@pytest.mark.parametrize("training", [True, False])
def test_norms_of_which_a_part_moves(training: bool) -> None:
    x = random(3, 4, 5, 6)
    for weight, bias in itertools.product((False, True), repeat=2):
        net = adapting(nn.BatchNorm2d(4), nn.ReLU()).train(training)
        net[0].weight.requires_grad_(weight)  # type: ignore[index]
        net[0].bias.requires_grad_(bias)  # type: ignore[index]
        check(net, x)
        if weight or bias:
            check(lambda y, net=net: net(y.detach()), x)  # the first norm: images have no gradient


def test_one_norm_called_twice() -> None:
    norm = adapting(nn.BatchNorm2d(4))

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = copy.deepcopy(norm)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = F.relu(self.norm(F.relu(self.norm(x)) + x))
            return made

    check(Twice(), random(3, 4, 5, 6))


def test_too_few_values_are_torchs_own_error() -> None:
    for lean in (True, False):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            outcome(adapting(nn.BatchNorm2d(4)), random(1, 4, 1, 1), "planes", lean=lean)


ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh, other ends": lambda y, inplace: F.hardtanh(y, -0.5, 2.0, inplace),
    "hardtanh from 0": lambda y, inplace: F.hardtanh(y, 0.0, 1.0, inplace),
    "leaky_relu": F.leaky_relu,
    "leaky_relu, steep": lambda y, inplace: F.leaky_relu(y, 0.5, inplace),
    "leaky_relu, flat": lambda y, inplace: F.leaky_relu(y, 0.0, inplace),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "elu": lambda y, inplace: F.elu(y, inplace=inplace),
    "mish": F.mish,
    "hardsigmoid": F.hardsigmoid,
    "gelu": lambda y, inplace: F.gelu(y),
    "leaky_relu, falling": lambda y, inplace: F.leaky_relu(y, -0.5),  # torch has none in place
}
MODULES = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.LeakyReLU, nn.SiLU, nn.Hardswish)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, inplace: bool) -> None:
    act, norm = ACTIVATIONS[name], adapting(nn.BatchNorm2d(4))
    plain = adapting(nn.BatchNorm2d(4)).eval()
    x = 3 * random(3, 4, 5, 6)
    corners = (2 * x).round() / 2  # 0, -0.0, 6 and the ends of hardtanh among them

    class Behind(nn.Module):
        """An activation behind a norm, behind an add, and behind nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.plain = copy.deepcopy(norm), copy.deepcopy(plain)

        def forward(self, y: Tensor) -> tuple[Tensor, ...]:
            behind = act(self.norm(y), inplace=inplace)
            fixed = act(self.plain(y * 2), inplace=inplace)
            added = act(behind + y, inplace=inplace)
            return behind, fixed, added, act(y * 2, inplace=inplace), act(y.flatten(1) * 1, inplace=inplace)

    check(Behind(), x)
    check(Behind(), corners)


@pytest.mark.parametrize("kind", MODULES)
def test_modules_of_activations(kind: Callable[..., nn.Module]) -> None:
    for inplace in (False, True):
        net = adapting(nn.BatchNorm2d(4), kind(inplace=inplace), nn.Conv2d(4, 4, 3), kind(inplace=inplace))
        check(net, 3 * random(3, 4, 5, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["relu", "relu6", "hardtanh", "hardtanh from 0", "leaky_relu"])
def test_activations_in_other_precisions_are_torchs_to_the_bit(name: str, dtype: torch.dtype) -> None:
    act = ACTIVATIONS[name]
    x = torch.cat([3 * random(2, 3, 5, 5), (random(2, 3, 5, 5) * 3).round(), torch.full((1, 3, 5, 5), 6.0)])
    x[0, 0, 0] = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 100.0])
    for layout in LAYOUTS:
        ours, torchs = (
            outcome(lambda y: act(y, inplace=False), x.to(dtype), layout, lean=lean) for lean in (True, False)
        )
        assert all(torch.equal(ours[name], torchs[name]) for name in torchs)


class Branches(nn.Module):
    """A norm, and what a network makes of its output."""

    def __init__(self, made: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.norm = adapting(nn.BatchNorm2d(4))
        self.made = made

    def forward(self, x: Tensor) -> Any:
        return self.made(self.norm(x), x)


@torch.no_grad()
def changed(y: Tensor) -> Tensor:
    return y.mul_(-1)


BRANCHES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "used twice": lambda y, x: F.relu(y) + 2 * y,
    "used by two activations": lambda y, x: (F.relu(y), F.silu(y), F.hardswish(y)),
    "used before, then in place": lambda y, x: (y + 1, F.relu(y, inplace=True)),
    "activated before, then in place": lambda y, x: (F.relu(y), F.relu(y, inplace=True)),
    "in place, then used": lambda y, x: (F.relu(y, inplace=True), y * 3),
    "residual": lambda y, x: F.relu(y + x, inplace=True),
    "residual in place": lambda y, x: F.relu(y.add_(x), inplace=True),
    "scaled in place": lambda y, x: F.relu(y.mul_(-2)),
    "in place through a view": lambda y, x: (F.relu(y.flatten(1), inplace=True), y * 3),
    "in place on a part": lambda y, x: (F.relu(y[:, :2], inplace=True), y * 3),
    "a part": lambda y, x: F.relu(y[:, :, ::2]),
    "twice activated": lambda y, x: F.relu6(F.silu(y), inplace=True),
    "changed behind the graph's back": lambda y, x: (changed(y), F.relu(y)),
    "not used": lambda y, x: x * 2,
    "expanded": lambda y, x: F.relu(y[:, :1].expand(-1, 4, -1, -1)),
    "transposed": lambda y, x: F.relu(y.transpose(0, 1)),
}


@pytest.mark.parametrize("kind", BRANCHES)
def test_what_becomes_of_a_norm(kind: str) -> None:
    check(Branches(BRANCHES[kind]), random(3, 4, 5, 6))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda y, x: (y.square(), F.relu(y, inplace=True)),  # what square needs is gone
        lambda y, x: F.relu(y.chunk(2, 1)[0], inplace=True),
    ],
)
def test_what_torch_refuses_is_refused(wrong: Callable[[Tensor, Tensor], Any]) -> None:
    for lean in (True, False):
        with pytest.raises(RuntimeError, match=r"modified (by an inplace operation|inplace)"):
            outcome(Branches(wrong), random(3, 4, 5, 6), "planes", lean=lean)
    for lean in (True, False):
        leaf = random(3, 4).requires_grad_()
        with Lean(TRICKS) if lean else nullcontext(), pytest.raises(RuntimeError, match="leaf"):
            F.relu(leaf, inplace=True)


def test_an_input_that_changes_between_a_norm_and_its_activation_is_refused() -> None:
    def between(x: Tensor) -> Tensor:
        own = x * 2
        y = F.batch_norm(own, None, None, training=True)
        own.mul_(3)
        return F.relu(y)

    for lean in (False, True):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outcome(between, random(3, 4, 5, 6), "planes", lean=lean)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_networks_of_any_parts(data: st.DataObject) -> None:
    net, layout, x = Program(data.draw), data.draw(st.sampled_from(LAYOUTS)), random(2, 4, 5, 4)
    try:
        outcome(net, x, layout, lean=False)
    except RuntimeError:  # something was changed in place that its gradient needs
        return
    check(net, x, layout)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-5), (torch.bfloat16, 5e-2)], ids=str)
@pytest.mark.parametrize("act", ["none", "relu", "relu6", "leaky_relu", "silu"])
@pytest.mark.parametrize("kind", NORMS)
def test_norms_in_other_precisions_are_near_the_oracle(
    kind: str, act: str, dtype: torch.dtype, error: float
) -> None:
    """In these the kernels of our own do the work, where there is a compiler."""
    make, shape = NORMS[kind]
    net = adapting(make(4), *([] if act == "none" else [_Apply(ACTIVATIONS[act])]))
    x = (1 + random(shape[0] * 8, *shape[1:])).to(dtype)
    kinds = {"output 0": dtype, "gradient of the input": dtype, "0.num_batches_tracked": torch.int64}
    for training, layout in itertools.product((True, False), layouts_of(x)):
        right = outcome(net.train(training), x.double(), layout, lean=False)
        made = outcome(copy.deepcopy(net).float(), x, layout, lean=True)
        for name, value in right.items():
            far = (made[name].double() - value.double()).norm() / value.double().norm().clamp(min=1)
            assert far <= error, (name, layout, far)
            assert made[name].dtype == kinds.get(name, torch.float32)


class _Apply(nn.Module):
    def __init__(self, act: Callable[..., Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x, inplace=False)


@pytest.mark.parametrize("act", MODULES)
def test_a_norm_and_its_activation_keep_the_norms_input(act: Callable[..., nn.Module]) -> None:
    planes = single(2, 16, 8, 8)
    pixels = planes.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    statistics = 4 * 16 * planes.element_size()
    for x, inplace in itertools.product((planes, pixels), (False, True)):
        net = adapting(nn.BatchNorm2d(16), act(inplace=inplace)).float()
        assert x.nbytes <= kept(net, x) <= x.nbytes + statistics
