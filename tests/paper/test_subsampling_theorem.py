"""The appendix's theorem (Wang et al. 2019): its formula, what it bounds, and where its premises end."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from gswgan.privacy import Gaussian
from gswgan.privacy.claims import gaussian_rdp, subsampled_rdp


def sample(mu: float) -> Gaussian:
    return Gaussian(noise_std=1.0, sensitivity=mu)


def slow_formula(mu: float, rate: Fraction, order: int) -> float:
    """The theorem term by term, binomials and powers of the rate as fractions, exponentials to 50 digits.

    With epsilon(infinity) infinite both inner minima are 2.
    """
    with mpmath.workdps(50):

        def epsilon(j: int) -> mpmath.mpf:
            return j * mpmath.mpf(mu) ** 2 / 2

        def exact(x: Fraction) -> mpmath.mpf:
            return mpmath.mpf(x.numerator) / x.denominator

        total = mpmath.mpf(1)
        at_two = mpmath.exp(epsilon(2))
        total += exact(rate**2 * math.comb(order, 2)) * min(4 * (at_two - 1), 2 * at_two)
        for j in range(3, order + 1):
            total += exact(rate**j * math.comb(order, j)) * mpmath.exp((j - 1) * epsilon(j)) * 2
        return float(mpmath.log(total) / (order - 1))


@pytest.mark.parametrize("mu", [0.05, 0.5, 1 / 1.07, 3.0])  # both branches of the outer minimum
@pytest.mark.parametrize("rate", [Fraction(1, 1000), Fraction(1, 10), Fraction(1, 2)])
def test_the_formula_term_by_term(mu: float, rate: Fraction) -> None:
    for order in (2, 3, 4, 7, 16, 40):
        assert subsampled_rdp(sample(mu), float(rate), order) == pytest.approx(
            slow_formula(mu, rate, order), rel=1e-9, abs=1e-14
        )


def second_order(mu: float, rate: float) -> float:
    """Renyi divergence of order 2 of (1 - rate) N(0) + rate N(mu) from N(0), in closed form."""
    return math.log1p(rate**2 * math.expm1(mu**2))


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0])
def test_the_bound_covers_one_subsampled_release(mu: float) -> None:
    for rate in (0.001, 0.1, 0.5):
        assert second_order(mu, rate) <= subsampled_rdp(sample(mu), rate, 2)
    assert subsampled_rdp(sample(mu), 0.001, 2) < float(gaussian_rdp(sample(mu), 2))  # and amplifies


def test_samples_that_share_one_draw_are_not_covered_by_subsampling_each() -> None:
    """The paper's accounting of a step: B releases, each subsampled by itself. One draw for all B is far worse.

    With the draw shared, the B samples of a step are one release at mu sqrt(B), present or absent as a whole.
    """
    mu, rate, batch_size = 1 / 1.07, 1 / 1000, 32
    claimed = batch_size * subsampled_rdp(sample(mu), rate, 2)
    truth = second_order(mu * math.sqrt(batch_size), rate)
    assert claimed < 1e-3
    assert truth > 10
    composed_first = subsampled_rdp(sample(mu * math.sqrt(batch_size)), rate, 2)
    assert composed_first >= truth  # the theorem in the right order is a bound


# --- drawing exactly one critic, when critics keep state

X = np.linspace(-9, 9, 721)
CELL = X[1] - X[0]


def density(answer: float) -> NDArray[np.float64]:
    return np.asarray(norm.pdf(X, answer))


def stateless_delta(epsilon: float) -> float:
    """The most that two steps could spend if each were half "same" and half "different", whatever came before.

    One step is dominated, for each gamma, by the worse of two pairs: the shared answer equals one or the other
    of the differing ones. The larger of two convex curves, taken piecewise linear from above, is a pair of
    discrete distributions; that pair is composed with itself.
    """
    both, low, high = density(-1.0) / 2 + density(1.0) / 2, density(-1.0), density(1.0)
    gamma = np.exp(np.linspace(-13, 13, 4001))

    def curve(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([np.clip(p - g * q, 0, None).sum() * CELL for g in gamma])

    stick = np.maximum(np.maximum(curve(both, low), curve(high, both)), np.maximum(1 - gamma, 0))
    slopes = np.concatenate([[(stick[0] - 1) / gamma[0]], np.diff(stick) / np.diff(gamma), [0.0]])
    under_p = np.clip(np.diff(slopes), 0, None) * gamma  # mass at each ratio
    rest = np.exp(epsilon) / gamma
    second = np.where(rest < gamma[0], 1.0, np.interp(rest, gamma, stick))
    return float((under_p * second).sum() + stick[-1])


def stateful_delta(epsilon: float, threshold: float) -> float:
    """Two critics, two steps, exactly one drawn in each; answers in [-1, 1], noise 1.

    Critic A differs between the worlds: it answers +1 in the first, -1 in the second. Critic B answers -1 in
    step 1. In step 2, if the first output was above the threshold, B answers +1 when it was *not* drawn in
    step 1: its memory of its own draw tells what A did. Otherwise it answers -1 again.
    """
    half = 0.5
    first = [half * density(1.0), half * density(-1.0)]  # world one: A drawn, B drawn in step 1
    second = [half * density(-1.0), half * density(-1.0)]
    total = 0.0
    for i, output in enumerate(X):
        memory = (1.0, -1.0) if output >= threshold else (-1.0, -1.0)  # B's answer if A, if B was drawn in step 1
        p = sum(first[drawn][i] * (half * density(1.0) + half * density(memory[drawn])) for drawn in (0, 1))
        q = sum(second[drawn][i] * (half * density(-1.0) + half * density(memory[drawn])) for drawn in (0, 1))
        total += float(np.clip(p - math.exp(epsilon) * q, 0, None).sum()) * CELL**2
    return total


def test_memory_of_the_draw_breaks_the_argument_of_same_or_different() -> None:
    epsilon = 3.0
    bound = stateless_delta(epsilon)
    assert stateful_delta(epsilon, math.inf) <= bound  # without memory the argument holds
    assert stateful_delta(epsilon, 1.5) > 1.02 * bound  # with it, it does not
