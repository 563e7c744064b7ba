"""Coins and noise of every method and preset with a guarantee, as its own wiring makes them; and faults that are found.

In one run: the share of those who take part is the rate that is accounted for, the noise has the accounted scale, two
releases have independent coins and noise. In three runs: coins follow from the key and not from the public seed.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from contracts.wiring import CASES, Seen, plan_of, plant, play
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.federated.remote_critics import RemoteCritics
from gswgan.methods import BY_PERSON, METHODS
from gswgan.methods.dp_merf_minibatch import MinibatchCritic
from gswgan.methods.fed_avg_gan import FedAvgGAN
from gswgan.privacy import DrawnOne, Gaussian, GaussianMechanism, Sampled, Streams, VoteMechanism, participation
from gswgan.privacy.events import BaseEvent, unsampled
from gswgan.run import loop

UNLIKELY = 1e-6
"""The p-value below which a statement is false. Keys and seeds are fixed: a test that passes, passes always."""


def units_of(name: str) -> int:
    """How many there are to take part: critics, clients or records."""
    plan = plan_of(name)
    critics = None if plan.privacy is None else plan.privacy.critics
    return critics or plan.facts.persons or plan.facts.records


def check(name: str, root: Path) -> None:
    """All that coins and noise have to be."""
    ours, other_seed, other_key = (
        play(name, root / str(number), **options) for number, options in enumerate(({}, {"public": 1}, {"key": 2}))
    )
    assert len(ours) == len(other_seed) == len(other_key) == CASES[name].releases
    planned = plan_of(name).releases()
    assert {seen.event for seen in ours} == set(planned), "the events that are recorded are not those accounted for"
    assert len({seen.name for seen in ours}) == len(ours), "two releases have one name"
    check_secrecy(ours, other_seed, other_key)
    for event in planned:
        some = [seen for seen in ours if seen.event == event]
        check_share(some, rate_of(event), units_of(name), one=isinstance(event, DrawnOne))
        check_noise(some, *scale_of(event))
    check_independence(ours, units_of(name))
    for seen in ours:
        check_noise_without_coins(seen, units_of(name))
    for seen, elsewhere in zip(ours, other_key):
        check_uncorrelated(seen, elsewhere)


def check_secrecy(ours: list[Seen], other_seed: list[Seen], other_key: list[Seen]) -> None:
    def coins(seen: list[Seen]) -> list[list[int]]:
        return [one.members.tolist() for one in seen if isinstance(one.event, Sampled | DrawnOne)]

    assert coins(ours) == coins(other_seed), "coins change with the public seed"
    assert not coins(ours) or coins(ours) != coins(other_key), "coins do not change with the key"


def check_share(seen: list[Seen], rate: float, units: int, *, one: bool) -> None:
    took = [units if release.members is None else len(release.members) for release in seen]
    assert not one or set(took) == {1}, "not exactly one was drawn"
    p = stats.binomtest(sum(took), units * len(seen), rate).pvalue
    assert p > UNLIKELY, f"{sum(took)} of {units * len(seen)} took part, at an accounted rate of {rate:g}"
    if rate < 1 and not one:
        for wrong in (rate / 2, min(1.0, 2 * rate)):  # would be seen
            assert stats.binomtest(sum(took), units * len(seen), wrong).pvalue < UNLIKELY
        square = sum((number - units * rate) ** 2 for number in took) / (units * rate * (1 - rate))
        p = min(stats.chi2.cdf(square, len(took)), stats.chi2.sf(square, len(took)))
        assert p > UNLIKELY, f"{took} took part: not as many as coins of one rate let"


def check_noise(seen: list[Seen], law: str, scale: float) -> None:
    noise = np.concatenate([release.noise.ravel() for release in seen])[:20_000]
    assert stats.kstest(noise / scale, law).pvalue > UNLIKELY, f"noise of scale {noise.std():g}, not {scale:g}"
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / (wrong * scale), law).pvalue < UNLIKELY


def check_independence(seen: list[Seen], units: int) -> None:
    for one, other in itertools.combinations(seen, 2):
        check_uncorrelated(one, other)
        if isinstance(one.event, Sampled) and isinstance(other.event, Sampled):
            both = len(np.intersect1d(one.members, other.members))
            share = rate_of(one.event) * rate_of(other.event)
            found = f"{one.name!r} and {other.name!r}: {both} of {units} take part in both, not about {units * share:g}"
            assert stats.binomtest(both, units, share).pvalue > UNLIKELY, found
    sampled = [one for one in seen if isinstance(one.event, Sampled)]
    if len(sampled) > 1:  # together, where units are few
        pairs = list(itertools.pairwise(sampled))
        both = sum(len(np.intersect1d(one.members, other.members)) for one, other in pairs)
        share = np.mean([rate_of(one.event) * rate_of(other.event) for one, other in pairs])
        p = stats.binomtest(both, units * len(pairs), share).pvalue
        assert p > UNLIKELY, f"{both} of {units * len(pairs)} take part twice in a row, not a share of {share:g}"
    drawn = [tuple(one.members) for one in seen if isinstance(one.event, DrawnOne)]
    assert len(drawn) < 2 or len(set(drawn)) > 2, "the same one is drawn again and again"


def check_noise_without_coins(seen: Seen, units: int) -> None:
    """Neither the sign nor the size of the noise goes with who takes part, unit by unit."""
    if not isinstance(seen.event, Sampled) or not 0 < len(seen.members) < units:
        return
    noise = seen.noise.ravel()[:units]
    took_part = np.isin(np.arange(len(noise)), seen.members)
    if took_part.any() and not took_part.all():
        for values in (noise, abs(noise)):
            p = stats.ks_2samp(values[took_part], values[~took_part]).pvalue
            assert p > UNLIKELY, f"the noise of {seen.name!r} tells who takes part"


def check_uncorrelated(one: Seen, other: Seen) -> None:
    first, second = (release.noise.ravel()[: min(one.noise.size, other.noise.size, 5000)] for release in (one, other))
    found = f"the noise of {one.name!r} and of {other.name!r} is not independent"
    assert abs(np.corrcoef(first, second)[0, 1]) < 5.5 / np.sqrt(len(first)), found


@pytest.mark.parametrize("name", CASES)
def test_coins_and_noise_are_what_is_accounted_for(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def test_there_is_a_case_for_every_method_and_preset_with_a_guarantee() -> None:
    """But for the other noises of Fed-Avg GAN, and for `paper-federated`: there clients add the noise, each alone."""
    known = {(plan_of(name).method, plan_of(name).preset) for name in CASES}
    every = {**METHODS, **BY_PERSON}.values()
    expected = {(method.name, preset) for method in every if method.has_guarantee for preset in method.presets}
    assert {pair for pair in expected - known if pair[0] != "fed-avg-gan"} == {("gswgan", "paper-federated")}


FROM_THE_SEED = (
    'np.flatnonzero(Streams.public(0).bernoulli({count}, {event}.rate, "participation", {name}))'  # as it once could be
)
RECORDS = "self.mechanism.participants(name, self.records)"
MINIBATCH = "self._batches.participants(name, len(self._images))"
ROUND = 'self._mechanism.participants(f"round {number}", self.count)'
STEP = 'self._mechanism.participants(f"step {step}", self.count)'
ASKED = 'self._mechanism.participants(f"step {step}", len(self._clients))'
NOISE = '"noise", self.ledger.observer, name, fingerprint)'


def public(count: str, event: str, name: str) -> str:
    return FROM_THE_SEED.format(count=count, event=event, name=name)


FAULTS: dict[str, tuple[str, Any, str, str, str]] = {
    "coins of dp-sgd-gan from the public seed": (
        "dp-sgd-gan revisited", RecordGradients, "draw", RECORDS,
        public("self.records", "self.mechanism.event", "name"),
    ),
    "coins of the auto-encoder from the public seed": (
        "dp-merf-ae", RecordGradients, "draw", RECORDS, public("self.records", "self.mechanism.event", "name"),
    ),
    "batches of one size": (
        "dp-sgd-gan dp-cgan", RecordGradients, "draw", RECORDS,
        f"np.random.default_rng({RECORDS}).permutation(self.records)[:round(self.records * self.mechanism.event.rate)]",
    ),
    "coins of minibatches from the public seed": (
        "dp-merf paper", MinibatchCritic, "learn", MINIBATCH,
        public("len(self._images)", "self._batches.event", "name"),
    ),
    "minibatches at twice the rate": (
        "dp-merf paper", MinibatchCritic, "learn", MINIBATCH,
        f"np.union1d({MINIBATCH}, {MINIBATCH.replace('(name', '(name + name')})",
    ),
    "coins of clients from the public seed": (
        "fed-avg-gan", FedAvgGAN, "draw_participants", ROUND, public("self.count", "self._mechanism.event", "number"),
    ),
    "coins of the ensemble from the public seed": (
        "ensemble-alone", Ensemble, "draw_participants", STEP, public("self.count", "self._mechanism.event", "step"),
    ),
    "the ensemble at twice the rate": (
        "ensemble-alone", Ensemble, "draw_participants", STEP,
        f"np.union1d({STEP}, {STEP.replace('step {', 'again {')})",
    ),
    "coins of a federated server from the public seed": (
        "federated", RemoteCritics, "draw_participants", ASKED,
        public("len(self._clients)", "self._mechanism.event", "step"),
    ),
    "coins that both stages of dp-merf-ae share": (
        "dp-merf-ae paper", RecordGradients, "draw", "(name, ", '(name.replace("auto-encoder update", "step"), ',
    ),
    "coins of the mechanism at twice the rate": (
        "dp-sgd-gan revisited", participation, "draw_participants", "event.rate", "2 * event.rate",
    ),
    "coins that do not depend on the release": (
        "fed-avg-gan", participation, "draw_participants", '"participation", *name))', '"participation"))',
    ),
    "one that is drawn once and for all": (
        "paper", participation, "draw_participants", "streams.words(1, \"participation\", *name)",
        'streams.words(1, "participation")',
    ),
    "a mechanism with a key from the public seed": (
        "ensemble-alone", loop, "make_critic", "secret=secret", "secret=Streams(public._secret, secret.context)",
    ),
    "too little noise": ("kernel", GaussianMechanism, "answer", "self.noise_std /", "0.667 * self.noise_std /"),
    "too little noise on votes": ("pate-gan", VoteMechanism, "answer", "self.noise *", "0.667 * self.noise *"),
    "the same noise for two releases": (
        "dp-merf paper", GaussianMechanism, "answer", NOISE, '"noise", self.ledger.observer)',
    ),
    "the same noise on two votes": ("g-pate", VoteMechanism, "answer", NOISE, '"noise", self.ledger.observer)'),
    "coins of refined that do not depend on the release": (
        "refined", RecordGradients, "draw", "(name, ", '("step 0", ',
    ),
    "noise of refined from the bits of its coins": (
        "refined", GaussianMechanism, "answer", NOISE, '"participation", self.ledger.observer, name)',
    ),
}  # fmt: skip


SAID = {
    "public seed": "coins change with the public seed|coins do not change with the key",
    "of one size": "not as many as coins",
    "twice the rate": "at an accounted rate of",
    "share": "take part in both",
    "do not depend on the release": "take part|took part",
    "drawn once": "the same one is drawn",
    "too little noise": "noise of scale",
    "bits of its coins": "tells who takes part",
    "same noise": "is not independent|noise of scale",  # one draw many times does not look like many draws
}
"""What the contract says of a fault, by what is in its name."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_planted_in_the_source_is_found(fault: str, tmp_path: Path, monkeypatch) -> None:
    name, owner, function, old, new = FAULTS[fault]
    said = next(words for part, words in SAID.items() if part in fault)
    plant(monkeypatch, owner, function, old, new, Streams=Streams, np=np)
    if owner is participation:  # where it is used
        monkeypatch.setattr("gswgan.privacy.mechanism.draw_participants", participation.draw_participants)
    with pytest.raises(AssertionError, match=said):
        check(name, tmp_path)


def rate_of(event: BaseEvent) -> float:
    """With which probability a unit takes part."""
    if isinstance(event, Sampled):
        return event.rate
    return 1 / event.count if isinstance(event, DrawnOne) else 1.0


def scale_of(event: BaseEvent) -> tuple[str, float]:
    """The law of the noise and its scale."""
    inner = unsampled(event)
    return ("norm", inner.noise_std) if isinstance(inner, Gaussian) else ("laplace", inner.scale)
