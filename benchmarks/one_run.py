"""A lower bound on epsilon from one training: "Privacy Auditing with One (1) Training Run", Steinke et al. 2023.

A fair coin S_i decides for each of m canaries which of two contents its record has. An attacker who sees what the
training lets out guesses r of the coins. If the training is (epsilon, delta)-private for each of these pairs, the
number of right guesses is hardly larger than Binomial(r, e^epsilon / (1 + e^epsilon)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from gswgan.errors import AuditError

MIN_GUESSES = 10
"""Fewer guesses, all of them right, show less than epsilon 1.1 at 95 %."""

LARGEST = 50.0
"""No bound is stated beyond this epsilon."""


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The largest bound over how many guesses are made; all of them hold at once with the stated confidence."""

    epsilon: float
    canaries: int
    guesses: int
    right: int
    accuracy: float  # of guessing all of them


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The probability of as many right guesses, or more, if (epsilon, delta) were true: Theorem 5.2, in this form
    the procedure of their appendix D.

    It is P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i for W ~ Binomial(r, e^epsilon / (1 + e^epsilon)).
    """
    if not 0 <= right <= guesses <= canaries:
        raise AuditError("guesses", (right, guesses, canaries), "right ones, at most all, of at most all canaries")
    rate = 1 / (1 + np.exp(-epsilon))
    by_chance = float(binom.sf(right - 1, guesses, rate))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
    worst = float(np.max(below / np.arange(1, right + 1))) if right else 0.0
    return min(1.0, by_chance + 2 * canaries * delta * worst)


def lower_bound(canaries: int, guesses: int, right: int, *, delta: float, error: float) -> float:
    """The largest epsilon that so many right guesses rule out; wrong with probability at most `error`."""
    low, high = 0.0, LARGEST
    if p_value(canaries, guesses, right, low, delta) > error:
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if p_value(canaries, guesses, right, middle, delta) > error:
            high = middle
        else:
            low = middle
    return low


def best_bound(scores: NDArray[np.float64], coins: NDArray[np.bool_], *, delta: float, error: float) -> OneRun:
    """Guess the coins of the canaries with the largest scores by their sign: of all, of half, of a quarter ...

    The error is divided between these numbers, which are fixed beforehand. Ties are broken by place.
    """
    count = len(coins)
    numbers = [count >> halvings for halvings in range(count.bit_length()) if count >> halvings >= MIN_GUESSES]
    if not numbers or len(scores) != count or not np.isfinite(scores).all():
        raise AuditError("canaries", count, f"at least {MIN_GUESSES}, with a finite score each")
    surest = np.argsort(-np.abs(scores), kind="stable")
    hits = (scores > 0) == coins
    found = []
    for number in numbers:
        right = int(hits[surest[:number]].sum())
        epsilon = lower_bound(count, number, right, delta=delta, error=error / len(numbers))
        found.append(OneRun(epsilon=epsilon, canaries=count, guesses=number, right=right, accuracy=float(hits.mean())))
    return max(found, key=lambda bound: bound.epsilon)
