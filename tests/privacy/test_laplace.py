"""Laplace releases and votes: the event, what it costs, the noise, and how far one voter can move a count."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest

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
    VoteMechanism,
    calibrate,
)
from gswgan.privacy.accountant import _compose_many
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import from_json, gaussian_of, tally, to_json, unsampled
from gswgan.privacy.ledger import read_ledger
from privacy.conftest import SECRET
from privacy.oracle import _epsilon_of

ACCOUNTANT = Accountant("replace-one")
positive = st.floats(min_value=1e-9, max_value=1e9)


def laplaces(ratio: float, times: int = 1) -> Event:
    """`times` values that move by `ratio` scales."""
    return Repeated(event=Laplace(scale=1 / ratio, sensitivity=1.0), times=times)


# --- the event


@given(positive, positive, st.integers(1, 10**6), st.sampled_from(["replace-one", "zeroed"]))
def test_a_laplace_event_survives_a_round_trip_through_json(
    scale: float, sensitivity: float, values: int, neighbours: str
) -> None:
    event = Laplace(scale=scale, sensitivity=sensitivity, values=values, neighbours=neighbours)  # type: ignore[arg-type]
    whole = Composed(events=(Repeated(event=event, times=3), Gaussian(noise_std=1.0, sensitivity=2.0)))
    assert from_json(json.loads(json.dumps(to_json(whole)))) == whole
    assert event.pure_epsilon == pytest.approx(values * sensitivity / scale)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_scale_and_sensitivity_are_positive_and_finite(bad: float) -> None:
    for build in (lambda: Laplace(scale=bad, sensitivity=1.0), lambda: Laplace(scale=1.0, sensitivity=bad)):
        with pytest.raises(PrivacyError):
            build()


def test_numbers_of_a_ballot_and_of_values_are_whole() -> None:
    for build in (
        lambda: Laplace(scale=1.0, sensitivity=1.0, values=0),
        lambda: Laplace(scale=1.0, sensitivity=1.0, values=1.5),  # type: ignore[arg-type]
        lambda: Laplace(scale=1.0, sensitivity=1.0, neighbours="add-one"),  # type: ignore[arg-type]
        lambda: Ballot(questions=0, options=2),
        lambda: Ballot(questions=1, options=1),
        lambda: Ballot(questions=2.0, options=2),  # type: ignore[arg-type]
    ):
        with pytest.raises(PrivacyError):
            build()


def test_laplace_noise_is_not_sampled_and_no_gaussian_mechanism_takes_it(tmp_path: Path) -> None:
    event = Laplace(scale=1.0, sensitivity=2.0)
    for build in (
        lambda: Sampled(rate=0.1, event=event),  # type: ignore[arg-type]
        lambda: DrawnOne(count=3, event=event),  # type: ignore[arg-type]
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


# --- what it costs


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


def test_the_ledger_keeps_a_laplace_release(tmp_path: Path) -> None:
    mechanism = votes_mechanism(tmp_path, Ballot(questions=3, options=2), scale=2.0)
    mechanism.answer("a", torch.zeros(5, 3, dtype=torch.int64))
    _, entries, _ = read_ledger(tmp_path / "ledger")
    assert [entry.event for entry in entries] == [Laplace(scale=2.0, sensitivity=1.0, values=6)]
    again = Ledger(tmp_path / "ledger", observer="public", context="plan", journal=tmp_path / "journal")
    assert tally(again.total()) == {Laplace(scale=2.0, sensitivity=1.0, values=6): 1}


# --- the noise


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


# --- votes


def exact(folder: Path, ballot: Ballot, votes: torch.Tensor) -> NDArray[np.int64]:
    """What is released when the noise is nothing: the counts."""
    mechanism = votes_mechanism(folder, ballot, noise_std=1e-12)
    released = mechanism.answer(f"a {folder.name} {votes.tolist()}", votes)
    assert (released == mechanism.counts(votes)).all()
    return mechanism.counts(votes)


def test_votes_are_counted_and_strange_ones_are_not(tmp_path: Path) -> None:
    votes = torch.tensor([[0, 1], [2, 1], [0, -1], [0, 3], [2, 10**15]])
    counts = exact(tmp_path, Ballot(questions=2, options=3), votes)
    assert counts.tolist() == [[3, 0, 2], [0, 2, 0]]
    largest = exact(tmp_path / "largest", Ballot(questions=2, options=3, largest=True), votes)
    assert largest.tolist() == [3, 2]


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


def test_the_ledger_has_the_release_before_its_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = votes_mechanism(tmp_path, Ballot(questions=3, options=2), scale=1.0)
    seen = []
    original = Streams.rounded_laplace

    def watch(self: Streams, *arguments: object) -> NDArray[np.int64]:
        seen.append(len(read_ledger(tmp_path / "ledger")[1]))
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Streams, "rounded_laplace", watch)
    mechanism.answer("a", torch.zeros(5, 3, dtype=torch.int64))
    assert seen == [1]


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


@pytest.mark.parametrize("times", [1, 2, 3, 1000, 9999, 10_003])
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
