from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswgan.privacy import Composed, Contribution, DrawnOne, Event, Gaussian, Repeated, Sampled
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import flatten, from_json, tally, to_json

positive = st.floats(min_value=1e-9, max_value=1e9)
gaussians = st.builds(
    Gaussian, noise_std=positive, sensitivity=positive, neighbours=st.sampled_from(["replace-one", "zeroed"])
)
singles = st.one_of(
    gaussians,
    st.builds(Sampled, rate=st.floats(min_value=1e-9, max_value=1.0), event=gaussians),
    st.builds(DrawnOne, count=st.integers(1, 10**6), event=gaussians),
)
events = st.recursive(
    singles,
    lambda inner: st.one_of(
        st.builds(Repeated, event=inner, times=st.integers(0, 10**6)),
        st.builds(Composed, events=st.lists(inner, max_size=4).map(tuple)),
    ),
    max_leaves=8,
)


@given(events)
def test_an_event_survives_a_round_trip_through_json(event: Event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@given(events)
def test_tally_counts_every_release(event: Event) -> None:
    def number(e: Event) -> int:
        if isinstance(e, Repeated):
            return e.times * number(e.event)
        if isinstance(e, Composed):
            return sum(number(part) for part in e.events)
        return 1

    assert sum(tally(event).values()) == number(event)
    assert sum(times for _, times in flatten(event)) == number(event)


GOOD = Gaussian(noise_std=1.0, sensitivity=2.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_noise_sensitivity_and_clip_norm_are_positive_and_finite(bad: float) -> None:
    for build in (
        lambda: Gaussian(noise_std=bad, sensitivity=1.0),
        lambda: Gaussian(noise_std=1.0, sensitivity=bad),
        lambda: Contribution(clip_norm=bad),
    ):
        with pytest.raises(PrivacyError):
            build()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_a_rate_is_a_probability_above_zero(rate: float) -> None:
    with pytest.raises(PrivacyError):
        Sampled(rate=rate, event=GOOD)


def test_counts_are_in_range() -> None:
    for build in (
        lambda: DrawnOne(count=0, event=GOOD),
        lambda: Repeated(event=GOOD, times=-1),
        lambda: Contribution(clip_norm=1.0, rows=0),
        lambda: Contribution(clip_norm=1.0, rows=2, counts=True),
        lambda: Gaussian(noise_std=1.0, sensitivity=1.0, neighbours="add-one"),  # type: ignore[arg-type]
    ):
        with pytest.raises(PrivacyError):
            build()


@pytest.mark.parametrize("bad", [1.5, math.inf, True, "3"])
def test_counts_are_whole_numbers(bad: Any) -> None:
    for build in (
        lambda: DrawnOne(count=bad, event=GOOD),
        lambda: Repeated(event=GOOD, times=bad),
        lambda: Contribution(clip_norm=1.0, rows=bad),
    ):
        with pytest.raises(PrivacyError):
            build()


@pytest.mark.parametrize("inner", [Repeated(event=GOOD, times=32), Sampled(rate=0.5, event=GOOD), None])
def test_only_a_gaussian_can_be_sampled(inner: Any) -> None:
    """A batch composed inside a draw must be stated as one Gaussian: there is no event for the paper's mistake."""
    with pytest.raises(PrivacyError):
        Sampled(rate=0.1, event=inner)
    with pytest.raises(PrivacyError):
        DrawnOne(count=10, event=inner)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"kind": "laplace"},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_std": 1.0, "sensitivity": 2.0, "extra": 1},
        {"kind": "gaussian", "noise_std": "1", "sensitivity": 2.0, "neighbours": "zeroed"},
        {"kind": "gaussian", "noise_std": -1.0, "sensitivity": 2.0, "neighbours": "zeroed"},
        {"kind": "sampled", "rate": 0.1, "event": None},
        {"kind": "sampled", "rate": 2.0, "event": to_json(GOOD)},
        {"kind": "composed", "events": [{}]},
        {"kind": "composed", "events": 3},
    ],
)
def test_json_that_is_no_event_is_refused(data: Any) -> None:
    with pytest.raises(PrivacyError):
        from_json(data)


@given(positive, st.integers(1, 1000))
def test_sensitivities_of_the_named_contributions(clip_norm: float, rows: int) -> None:
    block = Contribution(clip_norm=clip_norm, rows=rows)
    assert block.sensitivity("replace-one") == pytest.approx(2 * clip_norm * math.sqrt(rows))
    assert block.sensitivity("zeroed") == pytest.approx(clip_norm * math.sqrt(rows))
    counted = Contribution(clip_norm=clip_norm, counts=True)
    assert counted.sensitivity("replace-one") == pytest.approx(2 * clip_norm)
    assert counted.sensitivity("zeroed") == pytest.approx(math.sqrt(2) * clip_norm)


def test_an_unknown_relation_has_no_sensitivity() -> None:
    with pytest.raises(PrivacyError):
        Contribution(clip_norm=1.0).sensitivity("replace_one")  # type: ignore[arg-type]


@given(gaussians)
def test_the_noise_multiplier_is_relative_to_one_contribution(event: Gaussian) -> None:
    per_contribution = event.sensitivity / (2 if event.neighbours == "replace-one" else 1)
    assert event.noise_multiplier == pytest.approx(event.noise_std / per_contribution)
    assert event.mu == pytest.approx(event.sensitivity / event.noise_std)


def test_events_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GOOD.noise_std = 100.0  # type: ignore[misc]
