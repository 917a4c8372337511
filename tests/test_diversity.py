"""The running class distribution against its definition, its limits and its closed-form gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from acclimate import ClassDistribution
from acclimate.errors import InputError, OptionError


def logits(seed: int, n: int = 6, batch: int = 8) -> Tensor:
    return torch.randn(batch, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3


def test_follows_its_definition_over_steps() -> None:
    prior = [0.1, 0.1, 0.2, 0.2, 0.3, 0.1]
    distribution = ClassDistribution(6, kappa=0.7, target=prior, dtype=torch.float64)
    p = torch.tensor(prior, dtype=torch.float64)
    for seed in range(5):
        p = 0.7 * p + 0.3 * logits(seed).softmax(1).mean(0)
        expected = sum(p[c] * math.log(p[c] / prior[c]) for c in range(6))
        assert distribution(logits(seed)).item() == pytest.approx(float(expected), rel=1e-12)
        torch.testing.assert_close(distribution.p, p)


def test_gradient_is_the_closed_form_with_the_history_held_fixed() -> None:
    kappa, batch = 0.9, 8
    distribution = ClassDistribution(6, kappa=kappa, dtype=torch.float64)
    distribution(logits(0))
    history = distribution.p.clone()
    o = logits(1).requires_grad_()
    distribution(o).backward()
    p = o.detach().softmax(1)
    p_t = kappa * history + (1 - kappa) * p.mean(0)
    g = (p_t * 6).log() + 1
    expected = (1 - kappa) / batch * p * (g - (p * g).sum(1, keepdim=True))
    torch.testing.assert_close(o.grad, expected, rtol=1e-10, atol=1e-14)


def test_kappa_zero_is_the_batchwise_term() -> None:
    distribution = ClassDistribution(6, kappa=0, dtype=torch.float64)
    for seed in range(3):
        p = logits(seed).softmax(1).mean(0)
        batchwise = math.log(6) + float((p * p.log()).sum())
        assert distribution(logits(seed)).item() == pytest.approx(batchwise, rel=1e-12)


def test_predictions_at_the_target_have_no_divergence() -> None:
    prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    distribution = ClassDistribution(3, target=prior, dtype=torch.float64)
    assert distribution(prior.log().expand(4, 3)).item() == pytest.approx(0, abs=1e-15)


def test_a_class_without_any_mass_gives_finite_loss_and_gradient() -> None:
    distribution = ClassDistribution(3, kappa=0)
    o = torch.tensor([[0.0, -300.0, 0.0], [0.0, -300.0, 1.0]], requires_grad=True)
    loss = distribution(o)
    loss.backward()
    assert distribution.p[1] == 0
    p = o.detach().double().softmax(1).mean(0)
    expected = float((p[[0, 2]] * (3 * p[[0, 2]]).log()).sum())
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert o.grad is not None
    assert o.grad.isfinite().all()
    assert distribution.entropy().isfinite()


def test_history_carries_no_gradient_and_restarts() -> None:
    distribution = ClassDistribution(6)
    first = logits(0).float().requires_grad_()
    distribution(first)
    distribution(logits(1).float().requires_grad_()).backward()
    assert first.grad is None
    assert not distribution.p.requires_grad
    distribution.restart()
    assert torch.equal(distribution.p, distribution.target)


def test_state_dict_holds_the_state() -> None:
    a, b = ClassDistribution(6), ClassDistribution(6)
    a(logits(0).float())
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(logits(1).float()), b(logits(1).float()))


def test_low_precision_logits_are_followed_in_float32() -> None:
    distribution = ClassDistribution(6)
    assert distribution(logits(0).bfloat16()).dtype == torch.float32
    assert distribution.entropy().item() <= math.log(6)


def test_a_prior_of_counts_is_scaled() -> None:
    torch.testing.assert_close(ClassDistribution(2, target=[30, 10]).target, torch.tensor([0.75, 0.25]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "at least 2 classes"),
        ({"num_classes": 3, "kappa": 1.0}, "kappa .* below 1"),
        ({"num_classes": 3, "kappa": -0.1}, "kappa"),
        ({"num_classes": 3, "target": [0.5, 0.5]}, "each of the 3 classes"),
        ({"num_classes": 3, "target": [0.5, 0.5, 0.0]}, r"not so at \[2\].*classes="),
        ({"num_classes": 3, "target": [0.5, 0.5, math.inf]}, r"not so at \[2\]"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ClassDistribution(**arguments)


def test_logits_of_another_width_are_refused() -> None:
    for bad in (logits(0, n=5), logits(0, batch=0)):
        with pytest.raises(InputError, match=r"\(samples, 6\) and at least one sample"):
            ClassDistribution(6)(bad)
