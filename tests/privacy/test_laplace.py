"""Laplace noise: the event, what it costs, and the exactness of the draws."""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gswgan.privacy import (
    Accountant,
    Ballot,
    Composed,
    Contribution,
    DrawnOne,
    Event,
    Gaussian,
    GaussianMechanism,
    Laplace,
    Ledger,
    Repeated,
    Sampled,
    Streams,
    calibrate,
)
from gswgan.privacy.accountant import _compose_many
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import from_json, gaussian_of, to_json, unsampled
from privacy.conftest import SECRET
from privacy.oracle import _epsilon_of

ACCOUNTANT = Accountant("replace-one")
positive = st.floats(min_value=1e-9, max_value=1e9)


def laplaces(ratio: float, times: int = 1) -> Event:
    """`times` values that move by `ratio` scales."""
    return Repeated(event=Laplace(scale=1 / ratio, sensitivity=1.0), times=times)


@given(positive, positive, st.integers(1, 10**6), st.sampled_from(["replace-one", "zeroed"]))
def test_a_laplace_event_survives_a_round_trip_through_json(
    scale: float, sensitivity: float, values: int, neighbours: str
) -> None:
    event = Laplace(scale=scale, sensitivity=sensitivity, values=values, neighbours=neighbours)
    whole = Composed(events=(Repeated(event=event, times=3), Gaussian(noise_std=1.0, sensitivity=2.0)))
    assert from_json(json.loads(json.dumps(to_json(whole)))) == whole
    assert event.pure_epsilon == pytest.approx(values * sensitivity / scale)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["scale", "sensitivity"])
def test_scale_and_sensitivity_are_positive_and_finite(field: str, bad: float) -> None:
    with pytest.raises(PrivacyError):
        Laplace(**{"scale": 1.0, "sensitivity": 1.0, field: bad})


def test_numbers_of_a_ballot_and_of_values_are_whole() -> None:
    for build in (
        lambda: Laplace(scale=1.0, sensitivity=1.0, values=0),
        lambda: Laplace(scale=1.0, sensitivity=1.0, values=1.5),
        lambda: Laplace(scale=1.0, sensitivity=1.0, neighbours="add-one"),
        lambda: Ballot(questions=0, options=2),
        lambda: Ballot(questions=1, options=1),
        lambda: Ballot(questions=2.0, options=2),
    ):
        with pytest.raises(PrivacyError):
            build()


def test_laplace_noise_is_not_sampled_and_no_gaussian_mechanism_takes_it(tmp_path: Path) -> None:
    event = Laplace(scale=1.0, sensitivity=2.0)
    for build in (
        lambda: Sampled(rate=0.1, event=event),
        lambda: DrawnOne(count=3, event=event),
        lambda: gaussian_of(event),
        lambda: GaussianMechanism(
            contribution=Contribution(clip_norm=1.0),
            event=event,
            ledger=Ledger(tmp_path / "ledger", observer="public", context="plan"),
            streams=Streams(SECRET, "plan"),
        ),
    ):
        with pytest.raises(PrivacyError):
            build()
    assert unsampled(event) is event


@pytest.mark.parametrize("ratio", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_one_value_has_the_closed_form(ratio: float, delta: float) -> None:
    """delta(epsilon) = 1 - exp((epsilon - ratio) / 2) below the pure epsilon."""
    truth = max(0.0, ratio + 2 * math.log1p(-delta))
    found = ACCOUNTANT.epsilon(laplaces(ratio), delta)
    assert truth - 1e-9 <= found <= truth + 2e-3 * max(ratio, 0.1)
    (curve,) = ACCOUNTANT.delta(laplaces(ratio), np.array([ratio / 2]))
    assert curve == pytest.approx(-math.expm1(-ratio / 4), rel=1e-3)


@pytest.mark.parametrize("times", [1, 2, 5, 40])
def test_it_is_never_worse_than_pure_composition(times: int) -> None:
    event = laplaces(0.5, times)
    assert ACCOUNTANT.epsilon(event, 1e-12) <= 0.5 * times  # to the last bit
    assert ACCOUNTANT.epsilon(event, 1e-12) > 0.5 * times * (1 - 1e-3) or times > 10
    assert Laplace(scale=2.0, sensitivity=1.0, values=times).pure_epsilon == 0.5 * times


def test_hardly_any_noise_costs_less_than_the_pure_figure_and_warns_of_nothing() -> None:
    """Where a calibration begins: many labels under noise of one vote."""
    for scale in (0.05, 1.0, 4.0):
        event = Laplace(scale=scale, sensitivity=1.0, values=1600)
        assert 0.3 * event.pure_epsilon * min(1.0, 1 / scale) < ACCOUNTANT.epsilon(event, 1e-5) <= event.pure_epsilon


def epsilon_bracket(ratio: float, times: int, delta: float, grid: float) -> tuple[float, float]:
    """Certain bounds by an own composition: the loss of one value on a grid, rounded down and up, times an FFT power.

    Under noise of scale 1 around 0, the loss against a shift by `ratio` is |x - ratio| - |x|.
    """
    edges = np.linspace(0.0, ratio, 20_001)
    mass = np.diff(-np.exp(-edges) / 2)  # between the two centres; outside the loss is constant
    loss = ratio - 2 * edges
    masses = np.concatenate([[0.5], mass, [math.exp(-ratio) / 2]])
    reach = min(times * ratio, times * ratio**2 / 2 + 10 * math.sqrt(times) * ratio) + (times + 2) * grid
    size, bounds = 2 ** math.ceil(math.log2(2 * reach / grid)), []
    for losses in (np.concatenate([[ratio], loss[1:], [-ratio]]), np.concatenate([[ratio], loss[:-1], [-ratio]])):
        rounded = np.floor(losses / grid) if not bounds else np.ceil(losses / grid)
        one = np.bincount(rounded.astype(np.int64) % size, weights=masses, minlength=size)
        total = np.maximum(np.fft.irfft(np.fft.rfft(one) ** times, size), 0.0)
        bounds.append(_epsilon_of(np.fft.fftfreq(size, 1 / (size * grid)), total, delta))
    return bounds[0] - grid, bounds[1]  # epsilon is read off at the next point of the grid


@pytest.mark.parametrize(
    ("ratio", "times", "grid"), [(1.0, 4, 1e-4), (0.2, 100, 1e-5), (0.05, 1600, 1e-5), (0.5, 30, 1e-5)]
)
def test_composition_lies_within_a_numerical_bracket(ratio: float, times: int, grid: float) -> None:
    low, high = epsilon_bracket(ratio, times, 1e-5, grid)
    assert high / low < 1.005
    found = ACCOUNTANT.epsilon(laplaces(ratio, times), 1e-5)
    assert low <= found <= high * 1.002
    for wrong in (2 / 3, 3 / 2):  # the bracket finds an accountant with another scale
        assert not low <= ACCOUNTANT.epsilon(laplaces(ratio * wrong, times), 1e-5) <= high * 1.002


def test_values_repetitions_and_parts_are_the_same_thing() -> None:
    one = ACCOUNTANT.epsilon(Laplace(scale=10.0, sensitivity=1.0, values=60), 1e-5)
    assert one == ACCOUNTANT.epsilon(laplaces(0.1, 60), 1e-5)
    twenty = Laplace(scale=10.0, sensitivity=1.0, values=20)
    assert one == ACCOUNTANT.epsilon(Composed(events=(twenty, Repeated(event=twenty, times=2))), 1e-5)
    assert one == ACCOUNTANT.epsilon(Laplace(scale=30.0, sensitivity=3.0, values=60), 1e-5)  # only the ratio counts


def test_gaussians_and_laplaces_compose() -> None:
    """With next to nothing of one kind, the other's figure; with both, more than either and less than their sum."""
    gaussian, laplace = Gaussian(noise_std=1.0, sensitivity=1.5), Laplace(scale=2.0, sensitivity=1.0, values=4)
    faint = Gaussian(noise_std=1e4, sensitivity=1.0), Laplace(scale=1e4, sensitivity=1.0)
    alone = [ACCOUNTANT.epsilon(event, 1e-5) for event in (gaussian, laplace)]
    nearly = [
        ACCOUNTANT.epsilon(Composed(events=(gaussian, faint[1])), 1e-5),
        ACCOUNTANT.epsilon(Composed(events=(laplace, faint[0])), 1e-5),
    ]
    assert nearly == pytest.approx(alone, rel=2e-3)
    both = ACCOUNTANT.epsilon(Composed(events=(gaussian, laplace)), 1e-5)
    assert max(alone) < both < sum(alone)


def hockey_stick(shifts: tuple[float, float], epsilon: float) -> float:
    """sup over A of P(A) - e^epsilon Q(A) for two Laplace coordinates of scale 1 shifted so: a sum over a fine grid."""
    x = np.linspace(-14, 16, 3001)

    def density(shift: float) -> NDArray[np.float64]:
        return np.exp(-np.abs(x - shift)) / 2

    p = np.outer(density(0.0), density(0.0))
    q = np.outer(density(shifts[0]), density(shifts[1]))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]) ** 2)


def test_a_single_value_stands_for_any_vector_of_its_l1_sensitivity() -> None:
    """The claim of the event's docstring, and that counting values apart is the better bound."""
    for epsilon in (0.0, 0.5, 1.0, 1.9):
        together = hockey_stick((2.0, 0.0), epsilon)
        assert together == pytest.approx(-math.expm1((epsilon - 2) / 2), rel=2e-3)
        for first in (0.3, 0.7, 1.0):
            assert hockey_stick((first, 2.0 - first), epsilon) < together
    one, two = (Laplace(scale=20.0, sensitivity=2.0, values=50), Laplace(scale=20.0, sensitivity=1.0, values=100))
    assert ACCOUNTANT.epsilon(two, 1e-5) < ACCOUNTANT.epsilon(one, 1e-5)


def test_what_cannot_be_composed_is_refused() -> None:
    gaussian, laplace = Gaussian(noise_std=1.0, sensitivity=2.0), Laplace(scale=1.0, sensitivity=1.0)
    for other in (Sampled(rate=0.1, event=gaussian), DrawnOne(count=10, event=gaussian)):
        with pytest.raises(PrivacyError):
            ACCOUNTANT.epsilon(Composed(events=(laplace, other)), 1e-5)
    with pytest.raises(PrivacyError):
        ACCOUNTANT.epsilon(Laplace(scale=1.0, sensitivity=1.0, neighbours="zeroed"), 1e-5)
    everyone = Composed(events=(laplace, Sampled(rate=1.0, event=gaussian)))
    assert ACCOUNTANT.epsilon(everyone, 1e-5) == ACCOUNTANT.epsilon(Composed(events=(laplace, gaussian)), 1e-5)


def test_calibration_keeps_its_promise() -> None:
    ballot = Ballot(questions=8, options=2)
    scale = calibrate(
        lambda noise: Repeated(event=ballot.laplace(noise), times=10), epsilon=5.0, delta=1e-5, accountant=ACCOUNTANT
    )
    low, high = epsilon_bracket(1 / scale, 160, 1e-5, 1e-5)
    assert 4.98 < low <= high < 5.02


@pytest.mark.parametrize("scale", [0.3, 2.0**26, 2.0**34, 2.0**46])
def test_noise_is_a_real_laplace_rounded_exactly(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against 60 digits: ordinary words, the far tail, the middle, and both signs."""
    streams, original = Streams(SECRET, "plan"), Streams.words
    special = [k << 1 for k in (0, 1, 2, 3, 1000, 2**20 + 1, 2**40, 2**62, 2**63 - 2, 2**63 - 1)]
    first = np.array([*special, *(w | 1 for w in special), *original(streams, 300, "test")], dtype=np.uint64)

    def words(self: Streams, count: int, *name: int | str) -> NDArray[np.uint64]:
        return first if "more bits" not in name else original(self, count, *name)

    monkeypatch.setattr(Streams, "words", words)
    found = streams.rounded_laplace((len(first),), scale, "noise", 1)
    for place, (word, integer) in enumerate(zip(first.tolist(), found.tolist())):
        high, low = original(streams, 2, "noise", 1, "more bits", place).tolist()
        with mpmath.workdps(90):
            tail = (mpmath.mpf((word >> 1) * 2**128 + high * 2**64 + low) + 0.5) / mpmath.mpf(2) ** 192
            size = abs(integer)
            assert mpmath.exp(-(mpmath.mpf(size) + 0.5) / scale) / 2 < tail, "below the cell's upper end"
            assert size == 0 or tail <= mpmath.exp(-(mpmath.mpf(size) - 0.5) / scale) / 2, "above its lower end"
        assert integer == 0 or (integer < 0) == bool(word & 1)


@pytest.mark.parametrize("times", [1, 2, 3, 99, 1003])
def test_composing_in_two_stages_is_composing_at_once(times: int) -> None:
    """None is forgotten: not the rest of a division either."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    scale = max(0.5, math.sqrt(times) / 1.5)
    one = pld.from_laplace_mechanism(scale, value_discretization_interval=1e-3 / scale)
    found, whole = _compose_many(one, times), one.self_compose(times)
    for delta in (1e-5, 1e-2):
        assert found.get_epsilon_for_delta(delta) == pytest.approx(whole.get_epsilon_for_delta(delta), rel=1e-6)
    fewer = one.self_compose(times - 1).get_epsilon_for_delta(1e-5) if times > 1 else 0.0
    assert found.get_epsilon_for_delta(1e-5) > fewer


def test_where_composing_would_take_all_memory_the_pure_figure_is_stated() -> None:
    event = Laplace(scale=1e-9, sensitivity=1.0, values=10**6)
    assert ACCOUNTANT.epsilon(event, 1e-5) == event.pure_epsilon
