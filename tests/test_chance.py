"""Intervals and tests against scipy, published examples and how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from acclimate.chance import T95, Z95, Estimate, compare_paired, estimate, mcnemar, wilson
from acclimate.errors import InputError


@pytest.mark.parametrize(
    ("hits", "count"), [(81, 263), (15, 148), (0, 20), (1, 29), (20, 20), (40123, 50000)]
)
def test_an_accuracy_has_wilsons_interval(hits: int, count: int) -> None:
    oracle = stats.binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson(hits / count, count) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_wilsons_published_examples() -> None:
    """Newcombe, "Two-sided confidence intervals for the single proportion" (1998), Table I, method 3."""
    published = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605)}
    published |= {(0, 20): (0.0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for (hits, count), ends in published.items():
        assert wilson(hits / count, count) == pytest.approx(ends, abs=5e-5)


def test_quantiles_are_those_of_scipy() -> None:
    assert pytest.approx(stats.norm.ppf(0.975)) == Z95
    assert pytest.approx([stats.t.ppf(0.975, n) for n in range(1, len(T95) + 1)], abs=1e-4) == list(T95)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (9, 1), (7, 7), (12, 30), (520, 431), (3000, 2)])
def test_mcnemar_is_a_binomial_test_of_the_images_that_changed(won: int, lost: int) -> None:
    oracle = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert mcnemar(won, lost) == pytest.approx(oracle, rel=1e-9)
    assert mcnemar(won, lost) == mcnemar(lost, won)


def masks(both: int, won: int, lost: int, neither: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which images are right before and after, in an order drawn at random."""
    order = torch.randperm(both + won + lost + neither, generator=torch.Generator().manual_seed(0))
    before = torch.tensor([True] * both + [False] * won + [True] * lost + [False] * neither)
    after = torch.tensor([True] * both + [True] * won + [False] * lost + [False] * neither)
    return before[order], after[order]


@pytest.mark.parametrize(
    ("counts", "ends"),
    [
        ((36, 12, 2, 0), (0.0569, 0.3404)),
        ((20, 12, 2, 16), (0.0562, 0.3292)),
        ((0, 0, 0, 50), (-0.0713, 0.0713)),
    ],
)
def test_newcombes_published_examples_of_paired_images(
    counts: tuple[int, int, int, int], ends: tuple[float, float]
) -> None:
    """Newcombe, "… based on paired data" (1998), method 10."""
    found = compare_paired(*masks(*counts))
    assert (found.won, found.lost, found.images) == (counts[1], counts[2], sum(counts))
    assert found.difference == pytest.approx((counts[1] - counts[2]) / sum(counts))
    assert found.interval == pytest.approx(ends, abs=5e-5)


def test_newcombes_published_example_of_different_images() -> None:
    """56 of 70 against 48 of 80: Newcombe, "… between independent proportions" (1998), method 10."""
    one, other = (
        Estimate(hits / count, *wilson(hits / count, count)) for hits, count in ((56, 70), (48, 80))
    )
    found = one.minus(other)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert one.apart_from(other) and other.apart_from(one) and not one.apart_from(one)  # noqa: PT018


def test_what_nothing_changed_is_chance() -> None:
    same = torch.tensor([True, False, True])
    found = compare_paired(same, same)
    assert (found.difference, found.p, found.within_chance) == (0.0, 1.0, True)
    assert not compare_paired(*masks(10, 20, 2, 10)).within_chance
    with pytest.raises(InputError, match="two masks of the same images"):
        compare_paired(same, same[:2])


@pytest.mark.parametrize(("won", "lost", "both"), [(0.1, 0.1, 0.5), (0.3, 0.05, 0.4), (0.02, 0.01, 0.9)])
def test_the_interval_of_a_difference_holds_it_as_often_as_it_says(
    won: float, lost: float, both: float
) -> None:
    rng = np.random.default_rng(0)
    neither = 1 - both - won - lost
    draws = rng.multinomial(120, [both, won, lost, neither], size=1500)
    ends = [compare_paired(*masks(*map(int, draw))).interval for draw in draws]
    holds = np.mean([low <= won - lost <= high for low, high in ends])
    assert 0.935 < holds < 0.995


def test_no_difference_is_rarely_taken_for_one() -> None:
    """Of two networks that are equally good on the same images, at most one in twenty is called better."""
    rng = np.random.default_rng(1)
    draws = rng.multinomial(200, [0.5, 0.08, 0.08, 0.34], size=1500)
    assert np.mean([mcnemar(int(won), int(lost)) < 0.05 for _, won, lost, _ in draws]) < 0.05
    # where only counts are known the test is more cautious still
    apart = [
        (lambda one, other: one.apart_from(other))(
            *(Estimate(k / 200, *wilson(k / 200, 200)) for k in (int(both + won), int(both + lost)))
        )
        for both, won, lost, _ in draws
    ]
    assert np.mean(apart) < 0.01


def test_a_mean_is_as_wide_as_its_parts_where_the_same_images_stand_behind_all() -> None:
    one = estimate([[0.6]], [500])
    assert (one.low, one.high) == pytest.approx(wilson(0.6, 500))
    same = estimate([[0.6, 0.6], [0.6]], [500, 500])
    assert (same.low, same.high) == pytest.approx((one.low, one.high))


def test_the_interval_of_a_mean_holds_it_whether_images_are_shared_or_not() -> None:
    """Three corruptions of the same 100 images; seeds that shift the accuracy of all images."""
    rng = np.random.default_rng(2)
    for shared in (True, False):
        held = 0
        for _ in range(600):
            ease = rng.normal(size=(1 if shared else 3, 100))  # of the images
            shift = rng.normal(scale=0.2, size=3)  # of each seed
            accuracies = [
                [
                    float((ease[0 if shared else c] + rng.normal(scale=0.2, size=100) + s > 0).mean())
                    for s in shift
                ]
                for c in range(3)
            ]
            by_seed = np.mean(accuracies, axis=0).tolist()
            found = estimate(accuracies, [100] * 3, by_seed)
            held += found.low <= 0.5 <= found.high
        assert held / 600 > 0.95


def test_seeds_widen_an_interval_by_students() -> None:
    seeds = [0.50, 0.54, 0.49]
    found = estimate([seeds], [1000], seeds)
    images = np.mean([mean - wilson(mean, 1000)[0] for mean in seeds])
    of_seeds = stats.t.ppf(0.975, 2) * np.std(seeds, ddof=1) / math.sqrt(3)
    assert found.value - found.low == pytest.approx(math.hypot(images, of_seeds), abs=1e-5)
