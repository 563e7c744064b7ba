"""The figures that are stated for the paper's runs, and what they are when the batch is composed before the draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from gswgan.privacy import Accountant, DrawnOne, Gaussian, Repeated, Sampled, calibrate
from gswgan.privacy.accountant import drawn_one_lower_bound
from gswgan.privacy.claims import claimed_centralized, claimed_federated, subsampled_rdp

CRITICS, STEPS, BATCH, DELTA = 1000, 20_000, 32, 1e-5
CLIENTS, ROUNDS, FEDERATED_DELTA = 866, 30_000, 1.15e-3
REPLACED, ZEROED = Accountant("replace-one"), Accountant("zeroed")

SAMPLE = Gaussian(noise_std=1.07 * 2, sensitivity=2.0)


def step(noise: float = 1.07, releases: int = 1) -> Gaussian:
    """A step's 32 sample gradients as one release; noise in units of 2C a sample."""
    return Gaussian(noise_std=noise * 2, sensitivity=2 * math.sqrt(BATCH * releases))


def drawn(event: Gaussian, count: int, times: int) -> Repeated:
    return Repeated(event=DrawnOne(count=count, event=event), times=times)


def test_the_guarantee_of_the_centralized_run() -> None:
    assert REPLACED.epsilon(drawn(step(), CRITICS, STEPS), DELTA) == pytest.approx(610.3, abs=0.1)


def test_the_lower_bound_of_the_centralized_run() -> None:
    assert drawn_one_lower_bound(DrawnOne(count=CRITICS, event=step()), STEPS, DELTA) == pytest.approx(329.4, abs=0.1)


def is_possible(epsilon: float) -> None:
    """No honest figure for the centralized run is below what any analysis can prove."""
    assert epsilon > 329


def test_our_figure_for_the_papers_run_is_possible_and_the_claimed_one_is_not() -> None:
    is_possible(REPLACED.epsilon(drawn(step(), CRITICS, STEPS), DELTA))
    is_possible(
        REPLACED.epsilon(Repeated(event=step(), times=STEPS // CRITICS), DELTA)
    )  # balanced: each exactly 20 times
    claim = claimed_centralized(SAMPLE, critics=CRITICS, steps=STEPS, batch_size=BATCH, delta=DELTA).epsilon
    assert claim == pytest.approx(9.993, abs=0.01)
    amplified_first = [
        claim,
        REPLACED.epsilon(drawn(SAMPLE, CRITICS, STEPS), DELTA),  # the batch forgotten altogether
        REPLACED.epsilon(Repeated(event=Sampled(rate=1 / CRITICS, event=SAMPLE), times=STEPS * BATCH), DELTA),
    ]
    for epsilon in amplified_first:
        with pytest.raises(AssertionError):
            is_possible(epsilon)


def test_counting_loud_steps_refutes_the_claim_without_any_accountant() -> None:
    """An observer counts the steps whose projection on the known direction exceeds a threshold.

    All other critics answer -v in both worlds; the changed one answers v in the first and -v in the second.
    The count is binomial in both worlds, and no (epsilon, delta) below this can cover it.
    """
    mu, threshold = step().mu, 5.0
    quiet = norm.sf(threshold)
    loud = (1 - 1 / CRITICS) * quiet + norm.sf(threshold - mu) / CRITICS
    counts = np.arange(1, 100)
    here, there = binom.sf(counts - 1, STEPS, loud) - DELTA, binom.logsf(counts - 1, STEPS, quiet)
    epsilon = (np.log(here[here > 0]) - there[here > 0]).max()
    assert epsilon > 200
    claim = claimed_centralized(SAMPLE, critics=CRITICS, steps=STEPS, batch_size=BATCH, delta=DELTA).epsilon
    assert epsilon > 20 * claim


def test_the_other_accountings_of_the_centralized_run() -> None:
    balanced = Repeated(event=step(), times=STEPS // CRITICS)
    assert REPLACED.epsilon(balanced, DELTA) == pytest.approx(379.4, abs=0.1)
    vacuous = min(
        STEPS * subsampled_rdp(step(), 1 / CRITICS, order) + math.log(1 / DELTA) / (order - 1)
        for order in range(2, 257)
    )
    assert vacuous == pytest.approx(296_560, rel=1e-4)


def test_the_same_run_as_a_poisson_sum() -> None:
    poisson_sum = Repeated(event=Sampled(rate=1 / CRITICS, event=step()), times=STEPS)
    assert REPLACED.epsilon(poisson_sum, DELTA) == pytest.approx(24.17, abs=0.01)


def test_the_per_sample_poisson_figures() -> None:
    """As if each sample had a draw of its own: Poisson-sampled, at distance 2C from the shared answer and replaced."""
    shared = drawn_one_lower_bound(DrawnOne(count=CRITICS, event=SAMPLE), STEPS * BATCH, DELTA)
    assert shared == pytest.approx(4.115, abs=0.005)
    each = Repeated(event=Sampled(rate=1 / CRITICS, event=SAMPLE), times=STEPS * BATCH)
    assert REPLACED.epsilon(each, DELTA) == pytest.approx(3.150, abs=0.01)


@pytest.mark.parametrize(("epsilon", "visible", "balanced"), [(10.0, 14.02, 12.65), (1.0, 100.8, 94.4)])
def test_the_noise_that_would_make_the_paper_true(epsilon: float, visible: float, balanced: float) -> None:
    def noise(event: object) -> float:
        return calibrate(event, epsilon=epsilon, delta=DELTA, accountant=REPLACED)  # type: ignore[arg-type]

    assert noise(lambda m: drawn(step(m), CRITICS, STEPS)) == pytest.approx(visible, rel=1e-3)
    assert noise(lambda m: Repeated(event=step(m), times=STEPS // CRITICS)) == pytest.approx(balanced, rel=1e-3)


def test_the_federated_figures() -> None:
    claim = claimed_federated(SAMPLE, clients=CLIENTS, rounds=ROUNDS, batch_size=BATCH, delta=FEDERATED_DELTA)
    assert claim.epsilon == pytest.approx(598.61, abs=0.1)
    uses = ROUNDS * BATCH / CLIENTS
    expected = Gaussian(noise_std=1.07 * 2, sensitivity=2 * math.sqrt(uses))
    assert REPLACED.epsilon(expected, FEDERATED_DELTA) == pytest.approx(578.0, abs=0.1)
    assert REPLACED.epsilon(drawn(step(), CLIENTS, ROUNDS), FEDERATED_DELTA) == pytest.approx(774.3, abs=0.1)


def test_five_releases_a_round_as_algorithm_2_is_written() -> None:
    run = drawn(step(releases=5), CLIENTS, ROUNDS)
    assert REPLACED.epsilon(run, FEDERATED_DELTA) == pytest.approx(3788, abs=1)


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "multiplier"),
    [
        (10, 0.05, 1000, 1.584),
        (10, 0.1, 1000, 3.150),
        (10, 0.2, 1000, 6.311),
        (10, 0.1, 2000, 4.462),
        (10, 0.1, 5000, 7.064),
        (10, 1.0, 1000, 31.62),
        (1, 0.05, 1000, 11.80),
        (1, 0.1, 1000, 23.60),
        (1, 0.2, 1000, 47.20),
        (1, 0.1, 2000, 33.37),
        (1, 0.1, 5000, 52.77),
        (1, 1.0, 1000, 235.95),
    ],
)
def test_the_table_of_noise_multipliers(epsilon: float, rate: float, steps: int, multiplier: float) -> None:
    def cost(noise: float) -> float:
        event = Sampled(rate=rate, event=Gaussian(noise_std=noise, sensitivity=2.0))
        return REPLACED.epsilon(Repeated(event=event, times=steps), DELTA)

    assert cost(multiplier) <= epsilon
    assert cost(multiplier * 0.997) > epsilon  # the table's last digit


def test_the_kernel_release() -> None:
    for noise_std, epsilon in ((1.000, 10), (2.782, 3), (7.462, 1), (61.5, 0.1)):
        found = REPLACED.epsilon(Gaussian(noise_std=noise_std, sensitivity=2.0), DELTA)
        assert epsilon * 0.997 < found <= epsilon


def test_replaced_and_zeroed_are_different_promises() -> None:
    """One noise on one person's contribution, both epsilons."""
    noise = calibrate(
        lambda m: Gaussian(noise_std=m, sensitivity=1.0, neighbours="zeroed"),
        epsilon=10,
        delta=1e-3,
        accountant=ZEROED,
    )
    assert REPLACED.epsilon(Gaussian(noise_std=noise, sensitivity=2.0), 1e-3) == pytest.approx(26.6, abs=0.05)


def test_a_record_is_not_a_person() -> None:
    """116 records of one person at record-level epsilon 10."""
    assert REPLACED.epsilon(Gaussian(noise_std=1.0, sensitivity=2.0 * 116), DELTA) == pytest.approx(27_900, rel=1e-3)
