"""Losses against float64 brute force, closed-form gradients, limits and the facts of the paper's figure."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

from acclimate import losses
from acclimate.errors import InputError

NAMES = tuple(losses.LOSSES)


def brute_force(name: str, logits: Tensor) -> Tensor:
    """The definitions, word for word, in float64 and O(N n^2)."""
    o = logits.double()
    n = o.shape[1]
    log_p = o - o.logsumexp(1, keepdim=True)
    p = log_p.exp()
    top = o.argmax(1, keepdim=True)
    ratios = torch.stack(
        [-o[:, c] + torch.cat([o[:, :c], o[:, c + 1 :]], dim=1).logsumexp(1) for c in range(n)], dim=1
    )
    return {
        "entropy": -(p * log_p).sum(1),
        "pseudo_label": -log_p.gather(1, top).squeeze(1),
        "hard_likelihood_ratio": ratios.gather(1, top).squeeze(1),
        "soft_likelihood_ratio": (p * ratios).sum(1),
    }[name]


def closed_form_gradient(name: str, logits: Tensor) -> Tensor:
    """Derived by hand, in float64, arranged so that nothing cancels."""
    o = logits.double()
    p = o.softmax(1)
    top = o.argmax(1, keepdim=True)
    is_top = torch.zeros_like(o).scatter(1, top, 1.0)
    others = o.scatter(1, top, -torch.inf).softmax(1)
    if name == "pseudo_label":
        return p - is_top
    if name == "hard_likelihood_ratio":
        return others - is_top
    if name == "entropy":
        log_p = o.log_softmax(1)
        return -p * (log_p - (p * log_p).sum(1, keepdim=True))
    p_below = p * (1 - is_top)
    ratio_top = o.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True) - o.gather(1, top)
    ratio = torch.where(is_top.bool(), ratio_top, torch.log1p(-p_below) - o.log_softmax(1))
    excess = (p_below * (ratio - ratio_top)).sum(1, keepdim=True)  # L - R_*
    odds = p_below / (1 - p_below)  # p_c / (1 - p_c) below the top
    odds_of_others = odds.sum(1, keepdim=True) - odds
    gradient = p * (ratio - ratio_top - excess) - p + p * odds_of_others
    return gradient + (1 - is_top) * p.gather(1, top) * others


def worst(actual: Tensor, expected: Tensor) -> float:
    return float(((actual.double() - expected).abs() / expected.abs().clamp(min=1)).max())


def value_and_gradient(name: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = losses.LOSSES[name](leaf)
    value.sum().backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def logits_of(kind: str, seed: int, n: int, scale: float) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    o = torch.randn(5, n, generator=g) * scale
    if kind == "tied":
        o = o.round()
        o[:, : max(2, n // 2)] = o.amax(1, keepdim=True)
    elif kind == "extreme":
        o = (torch.rand(5, n, generator=g) * 2 - 1) * 1e4
        o[1] = torch.where(torch.rand(n, generator=g) < 0.5, 1e4, -1e4)
        o[2, 0] = 1e4  # one class far above others that differ little among themselves
        o[2, 1:] = torch.rand(n - 1, generator=g)
        o[3] = 1e4 - torch.rand(n, generator=g)
    elif kind == "confident":
        o[:, n // 2] += torch.tensor([4.0, 8.0, 16.0, 32.0, 64.0])
    return o


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["random", "tied", "extreme", "confident"]),
    seed=st.integers(0, 2**31),
    n=st.one_of(st.integers(2, 12), st.sampled_from([100, 1000])),
    scale=st.floats(0.01, 30),
)
def test_equals_float64_brute_force(name: str, kind: str, seed: int, n: int, scale: float) -> None:
    logits = logits_of(kind, seed, n, scale)
    value, gradient = value_and_gradient(name, logits)
    # The plain form of entropy is torch's softmax, which loses a digit over a thousand classes.
    bound = 2e-6 if name == "entropy" and n > 100 else 1e-6
    assert worst(value, brute_force(name, logits)) <= bound
    assert worst(gradient, closed_form_gradient(name, logits)) <= bound


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 3, 10])
def test_closed_forms_are_the_derivatives_of_the_definitions(name: str, n: int) -> None:
    logits = torch.randn(6, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaf = logits.clone().requires_grad_()
    brute_force(name, leaf).sum().backward()
    torch.testing.assert_close(closed_form_gradient(name, logits), leaf.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_float64_stays_float64_and_passes_gradcheck(name: str) -> None:
    logits = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert losses.LOSSES[name](logits).dtype == torch.float64
    torch.testing.assert_close(losses.LOSSES[name](logits), brute_force(name, logits), rtol=1e-14, atol=1e-14)
    assert torch.autograd.gradcheck(losses.LOSSES[name], logits.requires_grad_())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(3)).to(dtype)
    value, gradient = value_and_gradient(name, logits)
    assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
    assert worst(value, brute_force(name, logits)) <= 1e-6
    expected = closed_form_gradient(name, logits).to(dtype)
    torch.testing.assert_close(gradient, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing(name: str) -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(4))
    plain = value_and_gradient(name, logits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = value_and_gradient(name, logits)
    assert torch.equal(plain[0], cast[0])
    assert torch.equal(plain[1], cast[1])


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 200), scale=st.floats(0, 1e4))
def test_hard_likelihood_ratio_has_gradient_minus_one_to_the_last_bit(
    seed: int, n: int, scale: float
) -> None:
    logits = torch.randn(3, n, generator=torch.Generator().manual_seed(seed)) * scale
    _, gradient = value_and_gradient("hard_likelihood_ratio", logits)
    assert gradient.gather(1, logits.argmax(1, keepdim=True)).eq(-1).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_finite_for_any_finite_logits(name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    logits = torch.tensor(
        [[largest, -largest, 0], [largest] * 3, [-largest, -largest, largest / 2]], dtype=dtype
    )
    value, gradient = value_and_gradient(name, logits)
    assert value.isfinite().all()
    assert gradient.isfinite().all()


def test_two_classes_are_functions_of_the_gap() -> None:
    gap = torch.linspace(0.1, 30, 50, dtype=torch.float64)
    logits = torch.stack([gap, torch.zeros_like(gap)], dim=1)
    torch.testing.assert_close(losses.hard_likelihood_ratio(logits), -gap)
    torch.testing.assert_close(losses.soft_likelihood_ratio(logits), -gap * torch.tanh(gap / 2))


def test_entropy_gradient_of_two_classes_peaks_at_confidence_082() -> None:
    p = torch.linspace(0.5, 0.9999, 100_000, dtype=torch.float64)
    _, gradient = value_and_gradient("entropy", torch.stack([p.log(), (1 - p).log()], dim=1))
    assert round(float(p[gradient[:, 0].abs().argmax()]), 2) == 0.82


def test_saturating_losses_vanish_and_likelihood_ratios_do_not() -> None:
    logits = torch.tensor([[20.0, 0.0]])
    tops = {name: value_and_gradient(name, logits)[1][0, 0].item() for name in NAMES}
    assert abs(tops["entropy"]) < 1e-6
    assert abs(tops["pseudo_label"]) < 1e-6
    assert tops["hard_likelihood_ratio"] == -1
    assert tops["soft_likelihood_ratio"] == pytest.approx(-1, abs=1e-5)


def test_soft_tends_to_hard_as_confidence_tends_to_one() -> None:
    for n in (2, 1000):
        distance = []
        for gap in (5.0, 10.0, 20.0, 40.0):
            logits = torch.zeros(1, n, dtype=torch.float64)
            logits[0, 0] = gap + math.log(n - 1)
            distance.append(
                (losses.soft_likelihood_ratio(logits) - losses.hard_likelihood_ratio(logits)).abs().item()
            )
        assert distance == sorted(distance, reverse=True)
        assert distance[-1] < 1e-14


def test_gradient_at_high_confidence_is_not_clamped_away() -> None:
    # at p = 0.995 and n = 1000, copies that clamp p at 0.99 give -0.05
    logits = torch.full((1, 1000), math.log(0.005 / 999), dtype=torch.float64)
    logits[0, 0] = math.log(0.995)
    assert value_and_gradient("soft_likelihood_ratio", logits)[1][0, 0].item() == pytest.approx(
        -1.08, abs=0.005
    )


@pytest.mark.parametrize("name", NAMES)
def test_adding_a_constant_changes_nothing(name: str) -> None:
    logits = torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(losses.LOSSES[name](logits + 100), losses.LOSSES[name](logits))


def test_entropy_is_bit_for_bit_the_plain_form() -> None:
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(6)) * 5
    plain = logits.clone().requires_grad_()
    expected = -(plain.softmax(1) * plain.log_softmax(1)).sum(1)
    expected.sum().backward()
    value, gradient = value_and_gradient("entropy", logits)
    assert torch.equal(value, expected)
    assert torch.equal(gradient, plain.grad)


def test_pseudo_label_is_cross_entropy_with_the_argmax() -> None:
    logits = torch.randn(16, 9, generator=torch.Generator().manual_seed(7))
    expected = F.cross_entropy(logits, logits.argmax(1), reduction="none")
    torch.testing.assert_close(losses.pseudo_label(logits), expected)


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_linear_in_classes(name: str) -> None:
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        losses.LOSSES[name](torch.randn(4, 5000, requires_grad=True)).sum()
    assert sum(saved) <= 12 * 4 * 5000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(4, 1), r"at least 2 classes, got \(4, 1\)"),
        (torch.zeros(4), r"\(samples, classes\).*got \(4,\)"),
        (torch.zeros(2, 3, 4), r"got \(2, 3, 4\)"),
        (torch.zeros(2, 3, dtype=torch.long), "floating-point.*got torch.int64"),
        ([[0.0, 1.0]], "floating-point.*got list"),
    ],
)
def test_bad_logits_are_refused(name: str, logits: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        losses.LOSSES[name](logits)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_has_no_losses(name: str) -> None:
    assert losses.LOSSES[name](torch.zeros(0, 3)).shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_exact_for_twenty_thousand_classes(name: str) -> None:
    logits = torch.randn(8, 21_841, generator=torch.Generator().manual_seed(8)) * 4
    logits[4:, 7] += 20
    value, gradient = value_and_gradient(name, logits)
    expected, _ = value_and_gradient(name, logits.double())
    assert worst(value, expected) <= 1e-6
    assert worst(gradient, closed_form_gradient(name, logits)) <= 1e-6
