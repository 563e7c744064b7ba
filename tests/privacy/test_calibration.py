from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gswgan.privacy import Accountant, Composed, DrawnOne, Gaussian, Repeated, Sampled, calibrate
from gswgan.privacy.calibration import round_up
from gswgan.privacy.errors import PrivacyError
from privacy.oracle import gaussian_epsilon

ACCOUNTANT = Accountant()


def run(multiplier: float, rate: float = 1.0, steps: int = 1) -> Repeated:
    return Repeated(event=Sampled(rate=rate, event=Gaussian(noise_std=multiplier, sensitivity=2.0)), times=steps)


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "expected"),
    [(10, 0.1, 1000, 3.150), (10, 1.0, 1000, 31.62), (10, 1.0, 1, 1.000), (1, 1.0, 1, 7.462), (3, 1.0, 1, 2.782)],
)
def test_the_noise_of_the_tables(epsilon: float, rate: float, steps: int, expected: float) -> None:
    noise = calibrate(lambda m: run(m, rate, steps), epsilon=epsilon, delta=1e-5, accountant=ACCOUNTANT)
    assert noise == pytest.approx(expected, rel=0.005)
    assert noise <= expected + 1e-9  # the table is rounded up
    assert ACCOUNTANT.epsilon(run(noise, rate, steps), 1e-5) <= epsilon
    assert ACCOUNTANT.epsilon(run(noise * 0.999, rate, steps), 1e-5) > epsilon


@settings(max_examples=4, deadline=None)
@given(st.floats(0.05, 30), st.sampled_from([1e-3, 1e-5, 1e-7]), st.integers(1, 5000))
def test_calibration_never_overshoots_and_wastes_little(epsilon: float, delta: float, steps: int) -> None:
    noise = calibrate(lambda m: run(m, 1.0, steps), epsilon=epsilon, delta=delta, accountant=ACCOUNTANT)
    assert gaussian_epsilon(2 * math.sqrt(steps) / noise, delta) <= epsilon  # against the closed form, not itself
    assert ACCOUNTANT.epsilon(run(noise, 1.0, steps), delta) <= epsilon
    assert ACCOUNTANT.epsilon(run(noise * 0.999, 1.0, steps), delta) > epsilon
    assert noise == float(f"{noise:.5g}")


@settings(max_examples=2, deadline=None)
@given(st.floats(0.5, 12), st.sampled_from([0.05, 0.2]), st.sampled_from([100, 400]))
def test_calibration_of_sampled_runs_never_overshoots(epsilon: float, rate: float, steps: int) -> None:
    noise = calibrate(lambda m: run(m, rate, steps), epsilon=epsilon, delta=1e-5, accountant=ACCOUNTANT)
    assert ACCOUNTANT.epsilon(run(noise, rate, steps), 1e-5) <= epsilon
    assert ACCOUNTANT.epsilon(run(noise * 0.999, rate, steps), 1e-5) > epsilon


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 100), st.integers(1, 2000), st.integers(1, 5000))
def test_calibration_of_the_visible_draw_never_overshoots(epsilon: float, count: int, steps: int) -> None:
    def drawn(noise: float) -> Repeated:
        single = DrawnOne(count=count, event=Gaussian(noise_std=noise, sensitivity=2.0))
        return Repeated(event=single, times=steps)

    noise = calibrate(drawn, epsilon=epsilon, delta=1e-5, accountant=ACCOUNTANT)
    assert ACCOUNTANT.epsilon(drawn(noise), 1e-5) <= epsilon
    assert ACCOUNTANT.epsilon(drawn(noise * 0.999), 1e-5) > epsilon


@given(st.floats(1e-12, 1e12))
def test_rounding_goes_up_and_never_far(value: float) -> None:
    rounded = round_up(value)
    assert value <= rounded <= value * (1 + 1.01e-4)
    assert rounded == float(f"{rounded:.5g}")


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_a_target_is_positive_and_finite(epsilon: float) -> None:
    with pytest.raises(PrivacyError):
        calibrate(run, epsilon=epsilon, delta=1e-5, accountant=ACCOUNTANT)


def test_a_target_that_no_noise_is_needed_for_is_refused() -> None:
    with pytest.raises(PrivacyError):
        calibrate(lambda _: Repeated(event=run(1.0), times=0), epsilon=1.0, delta=1e-5, accountant=ACCOUNTANT)


def test_a_target_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(PrivacyError):
        calibrate(lambda _: run(1.0), epsilon=1.0, delta=1e-5, accountant=ACCOUNTANT)


@pytest.mark.parametrize("noise", [1e-4, 1e-12, 1e-300, 1e-320])
def test_noise_that_hides_nothing_is_refused_before_its_epsilon_takes_all_memory(noise: float) -> None:
    """A plan that somebody else made may ask for it."""
    little, enough = Gaussian(noise_std=noise, sensitivity=2.0), Gaussian(noise_std=3.0, sensitivity=2.0)
    steps = [Repeated(event=Sampled(rate=0.1, event=one), times=400) for one in (little, enough)]
    for event in (little, Composed(events=(little, steps[1])), Composed(events=(enough, steps[0]))):
        with pytest.raises(PrivacyError, match="to be computed"):
            ACCOUNTANT.epsilon(event, 1e-5)
