"""Bounds from scores: right on laws that are known, wrong about as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from gswgan.audit.bounds import (
    GaussianFamily,
    LossFamily,
    Rates,
    by_trade_off,
    distribution_free,
    lower_bounds,
    measure,
)
from gswgan.plan.plan import PrivacySettings
from gswgan.privacy import Accountant, Gaussian
from gswgan.privacy.accountant import visible_draw_epsilon

DELTA = 1e-5


def normal_scores(mu: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


def rates(power: float, level: float, trials: int = 1000) -> Rates:
    return Rates(trials=trials, power=power, level=level, power_low=power, level_high=level)


@pytest.mark.parametrize(("hits", "false"), [(0, 0), (7, 1), (400, 20), (500, 500)])
def test_rates_are_clopper_pearson(hits: int, false: int) -> None:
    first, second = np.zeros(500), np.zeros(500)
    first[:hits], second[:false] = 2, 2
    found = measure(first, second, 1.0, error=0.05)
    exact = [binomtest(k, 500).proportion_ci(0.95, "exact") for k in (hits, false)]  # 2.5 % on each side
    assert found.power_low == pytest.approx(exact[0].low)
    assert found.level_high == pytest.approx(exact[1].high)


def test_distribution_free_is_the_definition_in_both_directions() -> None:
    assert distribution_free(rates(0.5, 0.01), 0.1) == pytest.approx(math.log(0.4 / 0.01))
    assert distribution_free(rates(0.99, 0.5), 0.1) == pytest.approx(math.log(0.4 / 0.01))
    assert distribution_free(rates(0.05, 0.05), 0.1) == 0.0


def test_trade_off_of_exact_rates_gives_the_exact_epsilon() -> None:
    family = GaussianFamily(mu=2.0, delta=DELTA)
    exact = rates(float(norm.sf(1 - 1.5)), float(norm.sf(1)))  # mu = 1.5 of the rates, whatever the plan says
    truth = visible_draw_epsilon(1.5, 1, 1, DELTA)
    assert by_trade_off(exact, family) == pytest.approx(truth, rel=3e-3)
    assert by_trade_off(exact, family) <= truth
    assert by_trade_off(rates(0.3, 0.3), family) == 0.0


def test_the_loss_family_is_the_gaussian_one_where_everybody_takes_part() -> None:
    privacy = PrivacySettings(delta=DELTA, noise_std=2.0, clip_norm=1.0, releases=4, critics=4)
    loss, closed = LossFamily(privacy.total(), DELTA), GaussianFamily(mu=2.0, delta=DELTA)
    for scale in (0.7, 1.0, 2.0):
        assert loss.epsilon(scale) == pytest.approx(closed.epsilon(scale), rel=1e-3)
        for level in (1e-4, 0.01, 0.1, 0.5, 0.9):
            assert loss.power(level, scale) >= closed.power(level, scale)  # never claims more
            assert loss.power(level, scale) == pytest.approx(closed.power(level, scale), rel=0.02)


def test_a_sampled_release_needs_its_own_curve() -> None:
    """The loss family of a rate of 0.1 allows much less than the same Gaussian without sampling."""
    sampled = PrivacySettings(delta=DELTA, noise_std=1.0, clip_norm=1.0, sampling="poisson", rate=0.1, critics=10)
    family = LossFamily(sampled.total(), DELTA)
    assert family.power(0.01, 1.0) < 0.11 + 0.01
    assert family.epsilon(1.0) == Accountant().epsilon(sampled.total(1), DELTA)
    assert family.epsilon(1.0) < Accountant().epsilon(Gaussian(noise_std=1.0, sensitivity=2.0), DELTA)


def test_bounds_hold_and_are_close() -> None:
    truth = visible_draw_epsilon(2.0, 1, 1, DELTA)
    first, second = normal_scores(2.0, 60_000, 0)
    free, own = lower_bounds(first, second, delta=DELTA, family=GaussianFamily(mu=2.0, delta=DELTA), error=0.05)
    assert own is not None
    assert 0.95 * truth < own.epsilon < truth
    assert 2.0 < free.epsilon < own.epsilon
    assert own.rates.trials == 50_000


def test_bounds_are_wrong_no_more_often_than_they_say() -> None:
    """Over 400 audits of 600 trials each with 20 % of error allowed: coverage is never below it."""
    truth = visible_draw_epsilon(1.0, 1, 1, DELTA)
    family = GaussianFamily(mu=1.0, delta=DELTA)
    wrong = 0
    for seed in range(200):
        _, own = lower_bounds(*normal_scores(1.0, 600, seed), delta=DELTA, family=family, error=0.2)
        assert own is not None
        wrong += own.epsilon > truth
    assert wrong <= 40


def test_perfect_separation_shows_what_the_trials_allow() -> None:
    first, second = normal_scores(60.0, 3000, 0)
    free, _ = lower_bounds(first, second, delta=DELTA, family=None, error=0.05)
    assert free.epsilon == pytest.approx(math.log(2500 / -math.log(0.025)), rel=0.01)
    assert free.rates.level == 0


def test_thresholds_are_chosen_apart_from_the_trials_that_count() -> None:
    """With the pilot's scores spoilt, the bound is spoilt; with the same scores elsewhere, it is not better."""
    first, second = normal_scores(3.0, 6000, 0)
    first[:1000], second[:1000] = -50.0, -50.0
    free, _ = lower_bounds(first, second, delta=DELTA, family=None, error=0.05)
    assert free.epsilon == 0.0
