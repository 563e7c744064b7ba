"""Releases chosen after earlier ones were seen: what the filter admits, and what a run with repeats may state."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import norm

from gswgan.privacy import Accountant, Composed, DrawnOne, Event, Gaussian, Laplace, Repeated, Sampled, calibrate
from gswgan.privacy.events import tally
from gswgan.privacy.filter import Filter, epsilon_with_repeats, is_plain, with_repeats

REPLACED = Accountant("replace-one")
GRID = np.linspace(-45, 45, 4_501)

FIRST, SECOND = (Gaussian(noise_std=std, sensitivity=2.0) for std in (1.5273, 1.3226))
"""The releases of preset kernel at epsilon 6 and at 7.12 (60,000 records, delta 1e-5)."""

FEW_STEPS = Repeated(event=Sampled(rate=1024 / 60_000, event=Gaussian(noise_std=0.44772, sensitivity=2.0)), times=20)
"""The releases of dp-sgd-gan at epsilon 8.05 in 10 steps."""


@functools.cache
def curve(event: Event) -> NDArray[np.float64]:
    """delta at each epsilon of the grid; below 0 by the mirror image, since all pairs here are symmetric."""
    positive = GRID[GRID >= 0]
    delta = REPLACED.delta(event, positive)
    mirrored = 1 - np.exp(-positive) + np.exp(-positive) * delta
    return np.concatenate([mirrored[:0:-1], delta])


def chosen_after(first: Gaussian, events: Iterable[Event], epsilon: float) -> float:
    """delta at `epsilon` where the second event is chosen, by what the first released, as the best attacker would."""
    loss = np.linspace(-20, 40, 60_001)  # the privacy loss of the first release, which is all that matters of it
    weight = norm.pdf(loss, first.mu**2 / 2, first.mu) * (loss[1] - loss[0])
    best = np.max([np.interp(epsilon - loss, GRID, curve(event)) for event in events], axis=0)
    return float(np.sum(weight * best))


def test_the_attack_is_exact_where_nothing_is_chosen() -> None:
    for second in (SECOND, FEW_STEPS):
        (expected,) = REPLACED.delta(Composed(events=(FIRST, second)), np.array([10.0]))
        assert chosen_after(FIRST, [second], 10) == pytest.approx(float(expected), rel=0.01)


def test_a_choice_between_runs_that_each_fit_spends_more_than_the_budget_and_is_not_admitted() -> None:
    for second in (SECOND, FEW_STEPS):  # each of them has room beside the first by composition of fixed mechanisms
        assert REPLACED.epsilon(Composed(events=(FIRST, second)), 1e-5) <= 10
    assert chosen_after(FIRST, [SECOND, FEW_STEPS], 10) == pytest.approx(1.51e-5, rel=0.01)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        rule = Filter(epsilon=10, delta=1e-5, share=share, neighbours="replace-one")
        both = [rule.has_room(rule.used([rule.charge(e, 5e-6) for e in (FIRST, s)])) for s in (SECOND, FEW_STEPS)]
        assert both in ([False, False], [True, False])
    gaussian_alone = Filter(epsilon=10, delta=1e-5, share=0.0, neighbours="replace-one")
    assert gaussian_alone.has_room(gaussian_alone.used([gaussian_alone.charge(e, 1e-5) for e in (FIRST, SECOND)]))


def loudest(make: Callable[[float], Event], epsilon: float, delta: float) -> Event:
    return make(calibrate(make, epsilon=epsilon, delta=delta, accountant=REPLACED))


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_whatever_is_chosen_within_fixed_parts_stays_within_the_budget(share: float) -> None:
    rule = Filter(epsilon=10, delta=1e-5, share=share, neighbours="replace-one")
    whole = loudest(lambda std: Gaussian(noise_std=std, sensitivity=2.0), 10 * (1 - share), 1e-5 * (1 - share))
    assert isinstance(whole, Gaussian)
    half = Gaussian(noise_std=whole.noise_std * math.sqrt(2), sensitivity=2.0)
    few = loudest(
        lambda std: Repeated(event=Sampled(rate=0.02, event=Gaussian(noise_std=std, sensitivity=2.0)), times=20),
        10 * share, 1e-5 * share,
    )  # fmt: skip
    most = [rule.charge(event, 1e-5 * share) for event in (half, half, few)]
    assert rule.has_room(rule.used(most))  # all of the budget
    for event in (half, few):
        assert not rule.has_room(rule.used([*most, rule.charge(event, 1e-7)]))
    options = [half, few, Composed(events=(half, few))]
    assert chosen_after(half, options, 10) <= 1e-5


def test_which_events_count_by_their_noise_and_which_by_epsilon_and_delta() -> None:
    sampled, drawn = Sampled(rate=0.1, event=FIRST), DrawnOne(count=10, event=FIRST)
    vote = Laplace(scale=2.0, sensitivity=1.0, values=3)
    rule = Filter(epsilon=100, delta=1e-5, share=0.5, neighbours="replace-one")
    assert is_plain(Repeated(event=FIRST, times=3))
    assert is_plain(Sampled(rate=1.0, event=FIRST))
    assert rule.charge(FIRST, 1e-6).cost is None
    for event in (sampled, drawn, Composed(events=(FIRST, sampled))):
        assert not is_plain(event)
        assert rule.charge(event, 1e-6).cost == (REPLACED.epsilon(event, 1e-6), 1e-6)
    assert rule.charge(vote, 1e-6).cost == (1.5, 0.0)
    used = rule.used([rule.charge(event, 1e-6) for event in (FIRST, FIRST, sampled, vote)])
    assert used.plain == REPLACED.epsilon(Repeated(event=FIRST, times=2), 5e-6)
    assert used.epsilon == pytest.approx(1.5 + REPLACED.epsilon(sampled, 1e-6))
    assert used.delta == 1e-6
    alone = Filter(epsilon=100, delta=1e-5, share=1.0, neighbours="replace-one")
    assert alone.charge(FIRST, 1e-6).cost == (REPLACED.epsilon(FIRST, 1e-6), 1e-6)  # no part for it


# --- a run that repeats releases


def covered(event: Event, repeats: int) -> tuple[float, float]:
    """mu^2 that is stated for a run of one Gaussian, and at which share of delta."""
    planned = tally(event)
    (single,) = planned
    total, share = with_repeats(planned, {single: planned[single] + repeats})
    return sum(one.mu**2 * times for one, times in tally(total).items() if isinstance(one, Gaussian)), share


def test_repeats_are_covered_by_levels_that_are_fixed_beforehand() -> None:
    mu = FIRST.mu**2
    found = [covered(FIRST, repeats) for repeats in range(6)]
    assert [share for _, share in found] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 8, 1 / 16]
    assert [size / mu for size, _ in found] == pytest.approx([1, 2, 3, 5, 5, 9], rel=1e-6)
    epsilons = [epsilon_with_repeats({FIRST: 1}, {FIRST: 1 + n}, 1e-5, "replace-one") for n in range(6)]
    assert epsilons[0] == REPLACED.epsilon(FIRST, 1e-5)
    assert all(a <= b for a, b in itertools.pairwise(epsilons))
    for n, epsilon in enumerate(epsilons[1:], 1):
        assert epsilon > REPLACED.epsilon(Repeated(event=FIRST, times=1 + n), 1e-5)


def test_repeats_of_sampled_and_of_laplace_releases_are_covered_without_sampling() -> None:
    sampled, vote = Sampled(rate=0.1, event=FIRST), Laplace(scale=2.0, sensitivity=1.0, values=3)
    total, share = with_repeats({sampled: 10}, {sampled: 10, FIRST: 3})
    assert tally(total)[sampled] == 10
    assert share == 1 / 8
    assert sum(e.mu**2 for e in tally(total) if isinstance(e, Gaussian)) == pytest.approx(4 * FIRST.mu**2)
    assert with_repeats({vote: 10}, {vote: 13}) == (
        Composed(events=(Repeated(event=vote, times=10), Repeated(event=vote, times=4))), 1 / 8
    )  # fmt: skip
    loud, quiet = FIRST, Gaussian(noise_std=20.0, sensitivity=2.0)
    total, share = with_repeats({loud: 1, quiet: 5}, {loud: 2, quiet: 5})  # levels count in the smallest release
    assert share < 1 / 64
    extra = sum(e.mu**2 * n for e, n in tally(total).items() if isinstance(e, Gaussian)) - 5 * quiet.mu**2
    assert 2 * loud.mu**2 <= extra <= 3 * loud.mu**2 + 1e-6


def failure(stated: Callable[[int], float], mu: float, most: int) -> float:
    """By how much P(A) exceeds e^stated Q(A), summed over how often the attacker repeated a mu-Gaussian release.

    It goes on until the privacy loss is beyond what would be stated, and stops there.
    """
    step = 0.01
    loss = np.arange(-60, 100, step)
    kernel = norm.pdf(np.arange(-30, 30 + step, step), mu**2 / 2, mu) * step
    density, total = norm.pdf(loss, mu**2 / 2, mu) * step, 0.0
    for repeats in range(most + 1):
        gain = np.maximum(0.0, -np.expm1(stated(repeats) - loss))
        total += float(np.sum(density * gain))
        density = fftconvolve(np.where(gain > 0, 0.0, density), kernel, mode="same")
    return total


def test_a_run_that_repeats_until_it_has_shown_too_much_fails_no_more_often_than_is_said() -> None:
    """An odometer: what would be stated by composition after the fact fails several times as often as delta."""
    mu, delta = 0.5, 1e-5
    one = Gaussian(noise_std=2 / mu, sensitivity=2.0)

    def by_composition(repeats: int) -> float:
        return REPLACED.epsilon(Repeated(event=one, times=1 + repeats), delta)

    def by_levels(repeats: int) -> float:
        return epsilon_with_repeats({one: 1}, {one: 1 + repeats}, delta, "replace-one")

    assert failure(by_composition, mu, 0) == pytest.approx(delta, rel=0.02)
    assert failure(by_composition, mu, 40) > 2.5 * delta
    assert failure(by_levels, mu, 40) < 2 * delta
