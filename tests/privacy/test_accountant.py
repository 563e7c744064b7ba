from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from gswgan.privacy import Accountant, Composed, DrawnOne, Event, Gaussian, PrivacyCost, Repeated, Sampled
from gswgan.privacy.accountant import PLD, VISIBLE_DRAW, drawn_one_lower_bound, gaussian_log_delta, visible_draw_epsilon
from gswgan.privacy.errors import PrivacyError
from privacy.oracle import epsilon_bracket, gaussian_delta, gaussian_epsilon, replaced, zeroed

REPLACED = Accountant("replace-one")
ZEROED = Accountant("zeroed")


def gaussian(multiplier: float, neighbours: Any = "replace-one") -> Gaussian:
    """Noise relative to one contribution's bound."""
    return Gaussian(
        noise_std=multiplier, sensitivity=2.0 if neighbours == "replace-one" else 1.0, neighbours=neighbours
    )


def sampled(rate: float, multiplier: float, times: int, neighbours: Any = "replace-one") -> Repeated:
    return Repeated(event=Sampled(rate=rate, event=gaussian(multiplier, neighbours)), times=times)


# --- plain Gaussians, against the closed form


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 2.0, 7.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_a_plain_gaussian_has_the_epsilon_of_its_closed_form(mu: float, delta: float) -> None:
    truth = gaussian_epsilon(mu, delta)
    for accountant in (REPLACED, ZEROED):
        event = Gaussian(noise_std=3.0, sensitivity=3.0 * mu, neighbours=accountant.neighbours)
        found = accountant.epsilon(event, delta)
        assert truth - 1e-9 <= found <= truth * 1.001 + 1e-3


def test_a_relation_counts_its_own_factor_of_two() -> None:
    """The same noise on the same contribution: replaced costs what twice the sensitivity costs."""
    assert REPLACED.epsilon(gaussian(1.0), 1e-5) == pytest.approx(gaussian_epsilon(2.0, 1e-5), rel=1e-4)
    assert ZEROED.epsilon(gaussian(1.0, "zeroed"), 1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-3)
    assert REPLACED.epsilon(gaussian(1.0), 1e-5) == pytest.approx(9.997, abs=1e-3)  # the RDP accountant says 4.73


def test_plain_gaussians_add_their_squares() -> None:
    parts = (gaussian(2.0), Repeated(event=gaussian(5.0), times=7), Sampled(rate=1.0, event=gaussian(3.0)))
    mu = math.sqrt(1.0 + 7 * 0.4**2 + (2 / 3) ** 2)
    found = REPLACED.epsilon(Composed(events=parts), 1e-5)
    assert found == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)
    assert found >= gaussian_epsilon(mu, 1e-5) - 1e-9


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 5.0, 400.0])
@pytest.mark.parametrize("mu", [0.1, 1.0, 20.0])
def test_the_closed_form_of_the_accountant_is_exact(mu: float, epsilon: float) -> None:
    truth = gaussian_delta(mu, epsilon)
    if truth > 1e-280:
        assert math.exp(float(gaussian_log_delta(mu, epsilon))) == pytest.approx(float(truth), rel=1e-9)


# --- sampled Gaussians, against a composition of our own


@pytest.mark.parametrize("accountant", [REPLACED, ZEROED], ids=["replaced", "zeroed"])
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.1, 1.0, 40), (0.3, 2.0, 60), (0.02, 0.7, 100)])
def test_sampled_sums_agree_with_a_composition_of_our_own(
    accountant: Accountant, rate: float, noise: float, steps: int
) -> None:
    pairs = replaced(rate) if accountant is REPLACED else zeroed(rate)
    low, high = epsilon_bracket(pairs, noise, steps, 1e-5, grid=5e-5, reach=26)
    assert high - low < 0.015
    assert low - 1e-4 <= accountant.epsilon(sampled(rate, noise, steps, accountant.neighbours), 1e-5) <= high + 1e-3
    for wrong in ((rate / 2, noise, steps), (rate, noise * 1.1, steps), (rate, noise, steps - 4)):
        assert accountant.epsilon(sampled(*wrong, accountant.neighbours), 1e-5) < low - 1e-4  # caught


@pytest.mark.parametrize(("rate", "noise", "steps", "start"), [(0.1, 1.0, 40, 3.0), (0.02, 0.7, 100, 2.0)])
def test_a_start_and_sampled_sums_agree_with_a_composition_of_our_own(
    rate: float, noise: float, steps: int, start: float
) -> None:
    """One release of everybody beside sampled ones: the ensemble after its start, an embedding after DP-SGD."""
    low, high = epsilon_bracket(replaced(rate), noise, steps, 1e-5, grid=5e-5, reach=26, start=start)
    assert high - low < 0.015
    both = Composed(events=(gaussian(start), sampled(rate, noise, steps)))
    assert low - 1e-4 <= REPLACED.epsilon(both, 1e-5) <= high + 1e-3
    for wrong in (sampled(rate, noise, steps), Composed(events=(gaussian(start * 1.1), sampled(rate, noise, steps)))):
        assert REPLACED.epsilon(wrong, 1e-5) < low - 1e-4  # a start that is forgotten, or noisier than it was


def test_mixed_releases_are_composed_together() -> None:
    run = Composed(events=(sampled(0.1, 2.0, 50), gaussian(4.0)))
    both = REPLACED.epsilon(run, 1e-5)
    assert both > max(REPLACED.epsilon(part, 1e-5) for part in run.events)
    assert both < sum(REPLACED.epsilon(part, 5e-6) for part in run.events)


def test_finer_steps_of_the_discretization_change_little_and_coarser_ones_only_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    from gswgan.privacy import accountant

    original = pld.from_gaussian_mechanism

    def with_interval(times: float) -> float:
        def scaled(*noise: float, value_discretization_interval: float, **rest: Any) -> Any:
            return original(*noise, value_discretization_interval=times * value_discretization_interval, **rest)

        monkeypatch.setattr(pld, "from_gaussian_mechanism", scaled)
        accountant._epsilon.cache_clear()
        return REPLACED.epsilon(sampled(0.1, 3.15, 1000), 1e-5)

    try:
        found, finer, coarser = (with_interval(times) for times in (1, 0.25, 30))
    finally:
        accountant._epsilon.cache_clear()  # nobody else gets what was computed here
    assert found - 5e-4 < finer < found < coarser - 5e-3


def hockey_stick(rate: float, one: tuple[float, float], two: tuple[float, float], noise: float, gamma: float) -> float:
    """H of two sampled points of the plane, by integration."""
    x = np.linspace(-9 * noise, 9 * noise, 401)
    cell = (x[1] - x[0]) ** 2

    def density(point: tuple[float, float]) -> Any:
        here = norm.pdf(x, point[0], noise)[:, None] * norm.pdf(x, point[1], noise)[None, :]
        return (1 - rate) * norm.pdf(x, 0, noise)[:, None] * norm.pdf(x, 0, noise)[None, :] + rate * here

    return float(np.clip(density(one) - gamma * density(two), 0, None).sum() * cell)


def test_the_antipodal_pair_is_the_worst_in_the_ball() -> None:
    rate, noise = 0.2, 1.0
    angles = [2 * math.pi * k / 12 for k in range(12)]
    for gamma in (1.0, 1.3, 2.0, 5.0):
        worst = hockey_stick(rate, (1.0, 0.0), (-1.0, 0.0), noise, gamma)
        for size, other, angle in itertools.product((0.3, 1.0), (0.0, 0.6, 1.0), angles):
            pair = (size, 0.0), (other * math.cos(angle), other * math.sin(angle))
            assert hockey_stick(rate, *pair, noise, gamma) <= worst + 1e-9


def test_a_pair_at_the_same_distance_but_farther_from_absence_is_worse() -> None:
    """Two counted records of different classes: 2 apart, sqrt(2) from 0. Radius 1 would be a wrong claim."""
    rate, noise, root = 0.1, 1.0, math.sqrt(2)
    gamma = 1.4
    counted = hockey_stick(rate, (root, 0.0), (0.0, root), noise, gamma)
    assert counted > 1.3 * hockey_stick(rate, (1.0, 0.0), (-1.0, 0.0), noise, gamma)
    assert counted < hockey_stick(rate, (root, 0.0), (-root, 0.0), noise, gamma)


# --- order, refusals


@pytest.mark.parametrize("accountant", [REPLACED, ZEROED], ids=["replaced", "zeroed"])
def test_more_noise_rarer_sampling_and_fewer_steps_cost_less(accountant: Accountant) -> None:
    def cost(rate: float, noise: float, steps: int) -> float:
        return accountant.epsilon(sampled(rate, noise, steps, accountant.neighbours), 1e-5)

    assert cost(0.1, 2.0, 100) > cost(0.1, 2.2, 100) > cost(0.1, 3.0, 100)
    assert cost(0.11, 2.0, 100) > cost(0.1, 2.0, 100) > cost(0.05, 2.0, 100)
    assert cost(0.1, 2.0, 101) > cost(0.1, 2.0, 100) > cost(0.1, 2.0, 10)
    assert cost(1.0, 2.0, 100) > cost(0.99, 2.0, 100)


def test_amplification_is_never_worse_than_none() -> None:
    for rate in (0.01, 0.5):
        assert REPLACED.epsilon(sampled(rate, 1.0, 10), 1e-5) <= REPLACED.epsilon(sampled(1.0, 1.0, 10), 1e-5)


@pytest.mark.parametrize("event", [gaussian(1.0, "zeroed"), Sampled(rate=0.1, event=gaussian(1.0, "zeroed"))])
def test_an_event_of_another_relation_is_refused(event: Event) -> None:
    with pytest.raises(PrivacyError):
        REPLACED.epsilon(Composed(events=(gaussian(1.0), event)), 1e-5)
    with pytest.raises(PrivacyError):
        Accountant("add-one")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_is_a_probability_strictly_between(delta: float) -> None:
    with pytest.raises(PrivacyError):
        REPLACED.epsilon(gaussian(1.0), delta)


def test_nothing_released_costs_nothing() -> None:
    assert REPLACED.epsilon(Composed(events=()), 1e-5) == 0.0
    assert REPLACED.epsilon(Repeated(event=gaussian(1.0), times=0), 1e-5) == 0.0


# --- the visible draw


def drawn(count: int, steps: int, mu: float) -> Repeated:
    return Repeated(event=DrawnOne(count=count, event=Gaussian(noise_std=1.0, sensitivity=mu)), times=steps)


def test_the_visible_draw_is_the_average_over_its_uses_by_integration() -> None:
    """Small enough to integrate: draws and outputs together, density by density."""
    count, steps, mu, delta = 3, 4, 1.3, 1e-4
    epsilon = visible_draw_epsilon(mu, count, steps, delta)

    def spent(e: float) -> float:
        total = 0.0
        for uses in range(1, steps + 1):
            shift = mu * math.sqrt(uses)
            crossing = e / shift + shift / 2  # where the densities' ratio is e^epsilon
            gap = quad(lambda x, s=shift: norm.pdf(x, s) - math.exp(e) * norm.pdf(x), crossing, crossing + 12)[0]
            total += binom.pmf(uses, steps, 1 / count) * gap
        return float(total)

    assert spent(epsilon) == pytest.approx(delta, rel=1e-5)
    assert spent(epsilon) <= delta
    assert spent(epsilon * 0.99) > delta


def test_the_visible_draw_of_one_contributor_is_a_plain_composition() -> None:
    assert visible_draw_epsilon(0.7, 1, 9, 1e-5) == pytest.approx(gaussian_epsilon(2.1, 1e-5), rel=1e-7)


def test_the_visible_draw_lies_between_never_and_always() -> None:
    values = [visible_draw_epsilon(1.0, count, 50, 1e-5) for count in (1, 2, 10, 100, 10**9)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0.0  # drawn with probability below delta


def test_plain_releases_beside_a_visible_draw_are_added() -> None:
    run = Composed(events=(drawn(10, 20, 1.0), Gaussian(noise_std=1.0, sensitivity=2.0)))
    alone, both = REPLACED.epsilon(drawn(10, 20, 1.0), 1e-5), REPLACED.epsilon(run, 1e-5)
    assert both == pytest.approx(visible_draw_epsilon(1.0, 10, 20, 1e-5, also_mu_squared=4.0))
    assert both > max(alone, gaussian_epsilon(2.0, 1e-5))


def test_two_kinds_of_draw_are_not_mixed() -> None:
    for other in (sampled(0.1, 1.0, 2), drawn(11, 20, 1.0)):
        with pytest.raises(PrivacyError):
            REPLACED.epsilon(Composed(events=(drawn(10, 20, 1.0), other)), 1e-5)


def test_the_guarantee_of_a_draw_is_above_its_lower_bound() -> None:
    for count, steps, mu in ((10, 50, 1.0), (40, 100, 2.0)):
        single = DrawnOne(count=count, event=Gaussian(noise_std=1.0, sensitivity=mu))
        assert drawn_one_lower_bound(single, steps, 1e-5) < REPLACED.epsilon(drawn(count, steps, mu), 1e-5)


def test_the_lower_bound_is_what_the_composition_of_our_own_says() -> None:
    single = DrawnOne(count=10, event=Gaussian(noise_std=1.0, sensitivity=1.0))
    low, high = epsilon_bracket(zeroed(0.1), 1.0, 50, 1e-5, grid=5e-5, reach=26)
    assert low - 1e-4 <= drawn_one_lower_bound(single, 50, 1e-5) <= high + 5e-3


# --- in words


def test_the_method_is_named() -> None:
    assert REPLACED.method(sampled(0.1, 1.0, 3)) == PLD
    assert REPLACED.method(drawn(10, 3, 1.0)) == VISIBLE_DRAW


def test_a_cost_says_all_that_it_means() -> None:
    cost = PrivacyCost(
        epsilon=9.997,
        delta=1e-5,
        neighbours="replace-one",
        unit="record",
        observer="public",
        sampling="poisson",
        accountant=PLD,
    )
    assert str(cost) == "epsilon 9.997 at delta 1e-05 (one record replaced; observer: public)"
    assert cost.to_json()["sampling"] == "poisson"
    with pytest.raises(PrivacyError):
        PrivacyCost(**{**cost.to_json(), "delta": 0.0})


def test_what_was_asked_before_is_answered_alike_and_nothing_else_is() -> None:
    """Answers are remembered: by events, how many of each, delta and relation."""
    event = Sampled(rate=0.1, event=Gaussian(noise_std=2.0, sensitivity=1.0, neighbours="zeroed"))
    replaced = Sampled(rate=0.1, event=Gaussian(noise_std=2.0, sensitivity=1.0))
    questions = [
        ("zeroed", Repeated(event=event, times=times), delta) for times in (10, 20) for delta in (1e-5, 1e-6)
    ] + [("replace-one", Repeated(event=replaced, times=10), 1e-5)]
    answers = [Accountant(relation).epsilon(asked, delta) for relation, asked, delta in questions]
    assert len(set(answers)) == len(answers)
    assert [Accountant(relation).epsilon(asked, delta) for relation, asked, delta in questions] == answers
    with pytest.raises(PrivacyError, match="neighbours"):
        Accountant("replace-one").epsilon(Repeated(event=event, times=10), 1e-5)
