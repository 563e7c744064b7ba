"""One-run bounds: right on laws that are known, wrong no more often than they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from gswgan.errors import AuditError
from one_run import best_bound, lower_bound, p_value


def by_the_book(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Appendix D of Steinke et al., term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    beta = sum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(v, r + 1))
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += math.comb(r, v - i) * q ** (v - i) * (1 - q) ** (r - v + i)
        alpha = max(alpha, total / i)
    return min(1.0, beta + 2 * m * delta * alpha)


@pytest.mark.parametrize(("m", "r", "v"), [(100, 50, 45), (60, 60, 40), (30, 10, 10), (20, 20, 0), (40, 30, 1)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_p_value_is_that_of_the_paper(m: int, r: int, v: int, epsilon: float, delta: float) -> None:
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(by_the_book(m, r, v, epsilon, delta), rel=1e-9)


def test_a_bound_is_where_the_p_value_meets_the_error() -> None:
    found = lower_bound(200, 100, 90, delta=1e-5, error=0.05)
    assert p_value(200, 100, 90, found, 1e-5) <= 0.05 < p_value(200, 100, 90, found + 1e-4, 1e-5)
    assert lower_bound(200, 100, 90, delta=1e-3, error=0.05) < found  # a larger delta explains some of it
    assert lower_bound(200, 100, 90, delta=1e-5, error=0.01) < found
    assert lower_bound(200, 100, 55, delta=0.0, error=0.05) == 0.0
    assert lower_bound(10, 10, 10, delta=0.0, error=0.05) == pytest.approx(-math.log(0.05**-0.1 - 1), abs=1e-5)


def test_guesses_that_cannot_be_are_refused() -> None:
    with pytest.raises(AuditError, match="guesses"):
        p_value(10, 5, 6, 1.0, 0.0)
    with pytest.raises(AuditError, match="canaries"):
        best_bound(np.zeros(5), np.zeros(5, bool), delta=0.0, error=0.05)
    with pytest.raises(AuditError, match="canaries"):
        best_bound(np.full(50, np.nan), np.zeros(50, bool), delta=0.0, error=0.05)


def answers(epsilon: float, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Randomized response: each coin is told truly with probability e^epsilon / (1 + e^epsilon), the worst there is."""
    coins = rng.integers(0, 2, count).astype(bool)
    truly = rng.random(count) < 1 / (1 + math.exp(-epsilon))
    return np.where(coins == truly, 1.0, -1.0) * rng.random(count), coins


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_the_bound_is_wrong_in_at_most_five_of_a_hundred_runs(epsilon: float) -> None:
    """With sizes of scores that mean nothing, so that all numbers of guesses are tried on the worst mechanism."""
    rng, runs = np.random.default_rng(1), 150
    wrong = sum(best_bound(*answers(epsilon, 100, rng), delta=0.0, error=0.05).epsilon > epsilon for _ in range(runs))
    assert wrong <= binom.isf(1e-3, runs, 0.05)


def test_the_bound_is_tight_for_many_canaries() -> None:
    found = best_bound(*answers(1.0, 20_000, np.random.default_rng(2)), delta=1e-9, error=0.05)
    assert 0.9 < found.epsilon < 1.0
    assert found.guesses == found.canaries == 20_000


def test_the_surest_guesses_show_more_than_all() -> None:
    """A Gaussian mechanism with mu = 2, epsilon 10 at 10^-5: half a coin is a coin too many to guess."""
    rng = np.random.default_rng(3)
    coins = rng.integers(0, 2, 1000).astype(bool)
    scores = np.where(coins, 1.0, -1.0) + rng.standard_normal(1000)
    found = best_bound(scores, coins, delta=1e-5, error=0.05)
    assert found.guesses < 1000
    assert lower_bound(1000, 1000, int(((scores > 0) == coins).sum()), delta=1e-5, error=0.05) < found.epsilon < 10
    assert found.accuracy == pytest.approx(0.84, abs=0.03)


def test_a_leak_is_found_and_its_opposite_is_not() -> None:
    coins = np.random.default_rng(4).integers(0, 2, 50).astype(bool)
    told = np.where(coins, 1.0, -1.0)
    assert best_bound(told, coins, delta=1e-5, error=0.05).epsilon > 2
    assert best_bound(-told, coins, delta=1e-5, error=0.05).epsilon == 0.0
