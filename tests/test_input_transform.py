"""The input transformation: identity at the start, the formula after, and which gradients flow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from acclimate import InputTransformation
from acclimate.errors import InputError, OptionError


@pytest.mark.parametrize("channels", [1, 3, 4, 13])
@pytest.mark.parametrize(("width", "depth"), [(8, 1), (32, 2), (5, 3)])
def test_identity_at_the_start_to_the_last_bit(channels: int, width: int, depth: int) -> None:
    x = torch.rand(2, channels, 9, 7) * 4 - 2
    assert torch.equal(InputTransformation(channels, width, depth)(x), x)


def test_the_first_weights_are_those_that_torch_gives() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 3, 3)]
    before = torch.get_rng_state()
    made = InputTransformation(3, width=8, depth=2, generator=torch.Generator().manual_seed(3))
    found = [layer for layer in made.r if isinstance(layer, nn.Conv2d)]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.bias, other.bias)
    assert torch.equal(before, torch.get_rng_state())


def test_follows_its_formula() -> None:
    d = InputTransformation(3, width=8, depth=1)
    with torch.no_grad():
        d.tau.fill_(0.25)
        d.gamma.copy_(torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
        d.beta.copy_(torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1))
    x = torch.rand(2, 3, 6, 6)
    r = d.r(x)
    for c, (gamma, beta) in enumerate([(1, 0.1), (2, 0.2), (3, 0.3)]):
        torch.testing.assert_close(d(x)[:, c], gamma * (0.25 * x[:, c] + 0.75 * r[:, c]) + beta)


def test_only_tau_gamma_and_beta_move_in_the_first_step() -> None:
    d = InputTransformation(3, width=8)
    optimizer = torch.optim.Adam(d.parameters(), 0.01)
    before = {name: value.clone() for name, value in d.named_parameters()}
    moved = []
    for _ in range(2):
        optimizer.zero_grad()
        (d(torch.rand(4, 3, 8, 8)) ** 2).sum().backward()
        optimizer.step()
        changed = [name for name, value in d.named_parameters() if not torch.equal(value, before[name])]
        moved.append({name.partition(".")[0] for name in changed})
    assert moved == [{"tau", "gamma", "beta"}, {"tau", "gamma", "beta", "r"}]


def test_structure_is_the_papers() -> None:
    d = InputTransformation(3, width=32, depth=2)
    kinds = [type(layer).__name__ for layer in d.r]
    assert kinds == ["Conv2d", "GroupNorm", "ReLU", "Conv2d", "GroupNorm", "ReLU", "Conv2d"]
    convolutions = [layer for layer in d.r if isinstance(layer, torch.nn.Conv2d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [(3, 32), (32, 32), (32, 3)]
    assert all((c.kernel_size, c.stride, c.padding) == ((3, 3), (1, 1), (1, 1)) for c in convolutions)


def test_output_is_not_clamped() -> None:
    d = InputTransformation(3)
    with torch.no_grad():
        d.beta.fill_(5.0)
    assert d(torch.ones(1, 3, 4, 4)).min() == 6


@pytest.mark.parametrize("bad", [{"channels": 0}, {"width": 0}, {"depth": 0}, {"width": 2.5}])
def test_bad_sizes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(bad))} .* at least 1"):
        InputTransformation(**bad)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 1, 8, 8)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\(N, 3, H, W\), got"):
        InputTransformation(3)(torch.rand(shape))
