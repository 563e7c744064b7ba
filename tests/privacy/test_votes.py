"""Noisy counts of votes: the noise, how far one voter can move a count, and what is recorded."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import kstest

from gswgan.privacy import Ballot, Gaussian, Laplace, Ledger, Streams, VoteMechanism
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.ledger import read_ledger
from privacy.conftest import SECRET


def votes_mechanism(
    folder: Path, ballot: Ballot, *, scale: float | None = None, noise_std: float | None = None
) -> VoteMechanism:
    folder.mkdir(exist_ok=True)
    ledger = Ledger(folder / "ledger", observer="public", context="plan", journal=folder / "journal")
    event = ballot.laplace(scale) if scale is not None else ballot.gaussian(noise_std or 1.0)
    return VoteMechanism(ballot=ballot, event=event, ledger=ledger, streams=Streams(SECRET, "plan"))


def has_scale(noise: NDArray[np.float64], scale: float, law: str) -> None:
    assert kstest(noise.ravel() / scale, law).pvalue > 1e-3


@pytest.mark.parametrize("law", ["laplace", "norm"])
@pytest.mark.parametrize("scale", [0.7, 28.1, 600.0])
@pytest.mark.parametrize("largest", [False, True])
def test_noise_has_its_scale_and_not_two_thirds_or_three_halves_of_it(
    tmp_path: Path, law: str, scale: float, largest: bool
) -> None:
    ballot = Ballot(questions=8000, options=3, largest=largest)
    mechanism = votes_mechanism(tmp_path, ballot, **{"scale" if law == "laplace" else "noise_std": scale})
    votes = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (40, 8000)))
    noise = mechanism.answer("a", votes) - mechanism.counts(votes)
    has_scale(noise, scale, law)
    for wrong in (2 / 3, 3 / 2):
        with pytest.raises(AssertionError):
            has_scale(noise * wrong, scale, law)
    with pytest.raises(AssertionError):
        has_scale(noise, scale, "norm" if law == "laplace" else "laplace")


def test_released_counts_lie_on_the_grid(tmp_path: Path) -> None:
    """Noise is added in whole steps of 2^-26 votes, so no low-order bit tells count and noise apart."""
    released = votes_mechanism(tmp_path, Ballot(questions=50, options=2), scale=3.0).answer(
        "a", torch.ones(7, 50, dtype=torch.int64)
    )
    steps = released * 2.0**26
    assert (steps == np.rint(steps)).all()
    assert len(set((steps.astype(np.int64) % 16).ravel().tolist())) == 16


def test_votes_are_counted_and_strange_ones_are_not(tmp_path: Path) -> None:
    votes = torch.tensor([[0, 1], [2, 1], [0, -1], [0, 3], [2, 10**15]])
    for largest, expected in ((False, [[3, 0, 2], [0, 2, 0]]), (True, [3, 2])):
        ballot = Ballot(questions=2, options=3, largest=largest)
        mechanism = votes_mechanism(tmp_path, ballot, noise_std=1e-12)  # as good as none
        assert mechanism.answer(f"largest: {largest}", votes).tolist() == mechanism.counts(votes).tolist() == expected


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("questions", "options"), [(1, 2), (2, 2), (1, 3), (1, 4)])
def test_no_replaced_voter_moves_the_counts_by_more_than_is_stated(
    tmp_path: Path, questions: int, options: int, largest: bool
) -> None:
    """All pairs of ballots of one voter (with no vote and nonsense among them) beside all ballots of two others."""
    ballot = Ballot(questions=questions, options=options, largest=largest)
    mechanism = votes_mechanism(tmp_path, ballot, noise_std=1e-12)
    every = list(itertools.product((*range(options), -1), repeat=questions))
    l1 = l2 = most = moved = 0.0
    for others in itertools.product(every, repeat=2):
        tables = [mechanism.counts(torch.tensor([*others, own])) for own in every]
        for one, other in itertools.combinations(tables, 2):
            change = np.abs(one - other).ravel()
            l1, l2 = max(l1, change.sum()), max(l2, math.sqrt((change**2).sum()))
            most, moved = max(most, change.max()), max(moved, (change > 0).sum())
    event = ballot.laplace(1.0)
    assert l2 == pytest.approx(ballot.gaussian(1.0).sensitivity)  # attained, and not exceeded
    assert l1 == event.values * event.sensitivity
    assert (most, moved) == (event.sensitivity, event.values)


def test_an_event_that_understates_the_sensitivity_is_refused(tmp_path: Path) -> None:
    ballot, largest = Ballot(questions=30, options=10), Ballot(questions=30, options=10, largest=True)
    ledger = Ledger(tmp_path / "ledger", observer="public", context="plan")

    def build(chosen: Ballot, event: Gaussian | Laplace, context: str = "plan") -> None:
        VoteMechanism(ballot=chosen, event=event, ledger=ledger, streams=Streams(SECRET, context))

    def gaussian(sensitivity: float) -> Gaussian:
        return Gaussian(noise_std=1.0, sensitivity=sensitivity)

    build(ballot, gaussian(math.sqrt(60)))
    build(largest, gaussian(math.sqrt(30)))
    build(ballot, Laplace(scale=1.0, sensitivity=1.0, values=60))
    build(ballot, Laplace(scale=1.0, sensitivity=2.0, values=30))  # a question at a time: L1
    build(ballot, Laplace(scale=1.0, sensitivity=60.0))
    for chosen, event in (
        (ballot, gaussian(math.sqrt(30))),  # the check's, for all counts
        (ballot, gaussian(math.sqrt(2))),  # one question only
        (largest, gaussian(1.0)),
        (ballot, Laplace(scale=1.0, sensitivity=1.0, values=30)),  # as if a vote moved one count
        (ballot, Laplace(scale=1.0, sensitivity=1.9, values=31)),
        (ballot, Laplace(scale=1.0, sensitivity=0.5, values=120)),
        (ballot, Gaussian(noise_std=1.0, sensitivity=math.sqrt(60), neighbours="zeroed")),
        (ballot, gaussian(math.sqrt(60)).__class__(noise_std=2.0**21, sensitivity=math.sqrt(60))),
    ):
        with pytest.raises(PrivacyError):
            build(chosen, event)
    with pytest.raises(PrivacyError):
        build(ballot, gaussian(math.sqrt(60)), context="another plan")


def test_votes_of_another_shape_than_accounted_for_are_refused(tmp_path: Path) -> None:
    mechanism = votes_mechanism(tmp_path, Ballot(questions=3, options=2), scale=1.0)
    for bad in (torch.zeros(5, 4, dtype=torch.int64), torch.zeros(15, dtype=torch.int64), torch.zeros(5, 3)):
        with pytest.raises(PrivacyError):
            mechanism.answer("a", bad)
    assert mechanism.ledger.entries == []


def test_the_ledger_has_the_event_before_the_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, seen = votes_mechanism(tmp_path, Ballot(questions=3, options=2), scale=2.0), []
    original = Streams.rounded_laplace

    def watch(self: Streams, *arguments: object) -> NDArray[np.int64]:
        seen.append([entry.event for entry in read_ledger(tmp_path / "ledger")[1]])
        return original(self, *arguments)

    monkeypatch.setattr(Streams, "rounded_laplace", watch)
    mechanism.answer("a", torch.zeros(5, 3, dtype=torch.int64))
    assert seen == [[Laplace(scale=2.0, sensitivity=1.0, values=6)]]


def test_the_same_votes_again_are_the_same_bytes_and_others_are_another_release(tmp_path: Path) -> None:
    ballot = Ballot(questions=200, options=2)
    votes = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (9, 200)))
    changed = votes.clone()
    changed[4, 7] = 1 - changed[4, 7]
    first = votes_mechanism(tmp_path, ballot, scale=4.0).answer("step 1", votes)
    resumed = votes_mechanism(tmp_path, ballot, scale=4.0)
    assert resumed.answer("step 1", votes).tobytes() == first.tobytes()
    assert len(resumed.ledger.entries) == 1
    other = resumed.answer("step 1", changed)
    assert len(resumed.ledger.entries) == 2
    assert not np.isin(other - resumed.counts(changed), first - resumed.counts(votes)).any()  # fresh noise
    # as in copies of the folder that do not know of each other
    one, two = (votes_mechanism(tmp_path / copy, ballot, scale=4.0) for copy in ("one", "two"))
    assert one.answer("step 1", votes).tobytes() == first.tobytes()
    assert two.answer("step 1", changed).tobytes() == other.tobytes()
    # the noise of another scale is drawn anew, too: else two runs would give the counts away
    wider = votes_mechanism(tmp_path, ballot, scale=8.0).answer("step 1", votes)
    assert not np.isclose((wider - resumed.counts(votes)) / 2, first - resumed.counts(votes), atol=1e-6).any()
