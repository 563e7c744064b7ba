from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from conftest import key_of
from gswgan.errors import PrivacyError
from gswgan.privacy import BatchStreams, Contribution, DrawnOne, Gaussian, GaussianMechanism, Ledger, Sampled, Streams
from gswgan.privacy.participation import expected_participants, usual_participants

BOUND = Contribution(clip_norm=1.0)
PLAIN = Gaussian(noise_std=1.0, sensitivity=2.0)


def test_everybody_takes_part_in_a_plain_release(mechanism_for) -> None:
    assert mechanism_for(BOUND, event=PLAIN).participants("step 0", 7).tolist() == list(range(7))
    assert mechanism_for(BOUND, event=Sampled(rate=1.0, event=PLAIN)).participants("x", 7).tolist() == list(range(7))


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_coins_have_the_rate_of_the_event_that_is_recorded(mechanism_for, rate: float) -> None:
    mechanism = mechanism_for(BOUND, event=Sampled(rate=rate, event=PLAIN))
    took = sum(len(mechanism.participants(f"step {step}", 1000)) for step in range(200))
    assert stats.binomtest(took, 200_000, rate).pvalue > 1e-4
    for other in (0.9 * rate, 1.1 * rate):
        assert stats.binomtest(took, 200_000, other).pvalue < 1e-4
    assert mechanism.event == Sampled(rate=rate, event=PLAIN)


def test_coins_belong_to_a_release(mechanism_for) -> None:
    """Other name, other coins, independent of the first; the same name and key, the same coins, for any mechanism."""
    one, other = (mechanism_for(BOUND, event=Sampled(rate=rate, event=PLAIN), key=4) for rate in (0.5, 0.5))
    first, again = (np.isin(np.arange(10_000), m.participants("step 0", 10_000)) for m in (one, other))
    assert np.array_equal(first, again)
    for name in ("step 1", "auto-encoder update 0", "round 0"):
        second = np.isin(np.arange(10_000), one.participants(name, 10_000))
        assert stats.binomtest(int((first & second).sum()), 10_000, 0.25).pvalue > 1e-4
    elsewhere = mechanism_for(BOUND, event=Sampled(rate=0.5, event=PLAIN), key=5)
    assert not np.array_equal(elsewhere.participants("step 0", 10_000), one.participants("step 0", 10_000))


def test_coins_belong_to_an_observer(tmp_path) -> None:
    drawn = []
    for observer in ("public", "server"):
        ledger = Ledger(tmp_path / observer, observer=observer, context="plan")
        mechanism = GaussianMechanism(
            contribution=BOUND, event=Sampled(rate=0.5, event=PLAIN), ledger=ledger, streams=key_of(1)
        )
        drawn.append(mechanism.participants("step 0", 200).tolist())
    assert drawn[0] != drawn[1]


def test_one_is_drawn_of_as_many_as_are_accounted_for(mechanism_for) -> None:
    mechanism = mechanism_for(BOUND, event=DrawnOne(count=5, event=PLAIN))
    drawn = np.concatenate([mechanism.participants(f"step {step}", 5) for step in range(2000)])
    assert stats.chisquare(np.bincount(drawn, minlength=5)).pvalue > 1e-4
    for count in (4, 6):
        with pytest.raises(PrivacyError, match="count"):
            mechanism.participants("step 0", count)


def test_how_many_take_part() -> None:
    events = (PLAIN, Sampled(rate=0.1, event=PLAIN), DrawnOne(count=400, event=PLAIN))
    assert [expected_participants(event, 400) for event in events] == [400, 40, 1]
    assert [usual_participants(event, 400) for event in events] == [400, 52, 1]


def test_the_public_seed_is_refused_where_a_key_is_needed(tmp_path) -> None:
    public = Streams.public(0)
    with pytest.raises(PrivacyError, match="public seed"):
        BatchStreams(public)
    ledger = Ledger(tmp_path / "ledger", observer="public", context=public.context)
    with pytest.raises(PrivacyError, match="public seed"):
        GaussianMechanism(contribution=BOUND, event=PLAIN, ledger=ledger, streams=public)
