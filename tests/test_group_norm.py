"""Group norms by our own kernels, and activations behind them: against float64, and what they keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.fast import TRICKS
from acclimate.fast.lean import Lean
from acclimate.fast.native import native_kernels
from lean_oracle import kept, laid, random

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="there is no C compiler here")

DTYPES = {torch.float32: 3e-6, torch.bfloat16: 2e-2}
"""How far from float64 what is computed in each may be, as a part of the largest element."""
SHAPES = [((2, 8, 5, 4), 2), ((3, 32, 9, 7), 8), ((1, 6, 3, 3), 3), ((2, 40, 1, 1), 4), ((4, 5, 6, 6), 1)]
SHAPES += [((2, 4, 3, 3), 4), ((2, 64, 33, 31), 8)]

Behind = Callable[[Tensor], Tensor]
BEHIND: dict[str, Behind] = {
    "nothing": lambda y: y,
    "relu": F.relu,
    "relu in place": lambda y: F.relu(y, inplace=True),
    "relu6 in place": lambda y: F.relu6(y, inplace=True),
    "both": lambda y: F.relu(y) + y,
    "silu": F.silu,
    "leaky": lambda y: F.leaky_relu(y, 0.2, inplace=True),
    "written to": lambda y: F.relu(y.mul_(-1)),
}


def passed(
    x: Tensor, groups: int, affine: tuple[Tensor | None, ...], behind: Behind, *, lean: bool
) -> list[Tensor]:
    """What comes out, and all gradients."""
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    weight, bias = (None if part is None else part.clone().requires_grad_() for part in affine)
    with Lean(TRICKS if lean else []):
        made = behind(F.group_norm(leaf * 1, groups, weight, bias))
    made.backward(random(*made.shape, seed=5).to(made))
    return [made.detach()] + [p.grad for p in (leaf, weight, bias) if p is not None and p.grad is not None]


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_float64(dtype: torch.dtype, behind: str) -> None:
    for shape, groups in SHAPES:
        x = laid((2 * random(*shape) + 3).to(dtype), "pixels")
        weight, bias = (random(shape[1], seed=seed, dtype=torch.float32) for seed in (1, 2))
        for affine in ((weight, bias), (weight, None), (None, None)):
            ours = passed(x, groups, affine, BEHIND[behind], lean=True)
            wide = tuple(None if part is None else part.double() for part in affine)
            right = passed(x.double().contiguous(), groups, wide, BEHIND[behind], lean=False)
            assert len(ours) == len(right)
            for made, wanted in zip(ours, right, strict=True):
                error = (made.double() - wanted).abs().max().item()
                assert error <= DTYPES[dtype] * max(1, wanted.abs().max().item()), (shape, error)


def test_nothing_but_the_input_is_kept() -> None:
    x = laid(random(2, 32, 16, 16, dtype=torch.float32), "pixels").requires_grad_()

    def net(x: Tensor) -> Tensor:
        return F.relu(F.group_norm(x * 1, 4), inplace=True)

    statistics = 2 * 2 * 32 * 4
    assert kept(net, x) <= x.nbytes + statistics


def test_what_a_far_mean_leaves_of_the_variance() -> None:
    """Sums of squares would lose all of it."""
    x = laid(random(2, 8, 9, 9, dtype=torch.float32) + 4000, "pixels")
    with Lean(TRICKS):
        made = F.group_norm(x, 2)
    wanted = F.group_norm(x.double(), 2)
    assert (made - wanted).abs().max() < 2e-3  # what float32 leaves of x itself


@pytest.mark.parametrize("groups", [0, 3, -1])
def test_torch_tells_what_is_wrong(groups: int) -> None:
    x = laid(random(2, 8, 4, 4, dtype=torch.float32), "pixels").requires_grad_()
    with pytest.raises((RuntimeError, ZeroDivisionError)), Lean(TRICKS):
        F.group_norm(x, groups)
