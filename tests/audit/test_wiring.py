"""Real runs follow the laws that the audit draws its trials from; a fault in the wiring of a method is noticed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gswgan.audit.baselines import observe_baseline
from gswgan.audit.mechanism import audit_method, tie_to_real_runs
from gswgan.audit.refined import observe_refined
from gswgan.audit.step_law import StepLaw
from gswgan.audit.wiring import Observed, made_facts
from gswgan.audit.worst_case import observe_ensemble
from gswgan.errors import AuditError
from gswgan.methods import make_plan
from gswgan.plan import context as wiring
from gswgan.privacy import GaussianMechanism, Ledger, Sampled, VoteMechanism
from gswgan.privacy.participation import draw_participants

STEPS = {"ensemble": 2000, "ensemble-alone": 2000, "paper": 800, "refined": 800}
"""By preset of gswgan; 160 for the others. A record that takes part in a tenth of the steps needs more of them."""
CASES = [
    ("gswgan", "ensemble"), ("gswgan", "ensemble-alone"), ("gswgan", "paper"), ("gswgan", "refined"),
    ("dp-sgd-gan", "revisited"),
    ("dp-merf", "paper"), ("dp-merf-ae", "default"), ("dp-merf-ae", "paper"), ("g-pate", "default"),
]  # fmt: skip
SAMPLED = [case for case in CASES if case not in (("gswgan", "paper"), ("g-pate", "default"))]


def observe(method: str, preset: str, steps: int | None = None) -> list[Observed]:
    plan = make_plan(dataclasses.replace(made_facts(60_000, classes=10), image_size=28), method=method, preset=preset)
    if preset == "refined":
        return observe_refined(plan, steps=steps or STEPS[preset])
    if method == "gswgan":
        return observe_ensemble(plan, steps=steps or STEPS[preset])
    return observe_baseline(plan, steps=steps or 160)


@pytest.mark.parametrize(("method", "preset"), CASES)
def test_real_runs_follow_their_law_and_no_other(method: str, preset: str) -> None:
    found = observe(method, preset)
    assert tie_to_real_runs(found) > 1e-4
    for kind in found:
        wrong = [dataclasses.replace(kind.law, size=kind.law.size + 2, out=kind.law.out and kind.law.out - 2)]
        if 0 < kind.law.rate < 0.5:
            wrong.append(dataclasses.replace(kind.law, rate=2 * kind.law.rate))
        for law in wrong:
            with pytest.raises(AuditError, match="real runs"):
                tie_to_real_runs([dataclasses.replace(kind, law=law)])


class TwiceTheRate(GaussianMechanism):
    """Draws at twice the rate that it records, and says nothing of it."""

    def participants(self, name: str, count: int) -> np.ndarray:
        event = self.event
        if isinstance(event, Sampled):
            event = dataclasses.replace(event, rate=min(1.0, 2 * event.rate))
        return draw_participants(event, count, self._streams, name)


class TwoThirdsOfTheNoise(GaussianMechanism):
    def answer(self, *args, **options):
        self.noise_std, stated = self.noise_std * 2 / 3, self.noise_std
        try:
            return super().answer(*args, **options)
        finally:
            self.noise_std = stated


@pytest.mark.parametrize("fault", [TwiceTheRate, TwoThirdsOfTheNoise])
@pytest.mark.parametrize(("method", "preset"), SAMPLED)
def test_a_fault_in_the_wiring_is_noticed(method: str, preset: str, fault: type, monkeypatch) -> None:
    monkeypatch.setattr(wiring, "GaussianMechanism", fault)
    with pytest.raises(AuditError, match="real runs"):
        tie_to_real_runs(observe(method, preset))


def test_votes_with_less_noise_are_noticed(monkeypatch) -> None:
    made = VoteMechanism.__init__

    def quieter(self, **options) -> None:
        made(self, **options)
        self.noise *= 2 / 3

    monkeypatch.setattr(VoteMechanism, "__init__", quieter)
    with pytest.raises(AuditError, match="real runs"):
        tie_to_real_runs(observe("g-pate", "default"))


def test_a_ledger_that_misses_a_release_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(Ledger, "record", lambda self, name, event, fingerprint: 0)
    with pytest.raises(AuditError, match="ledger"):
        observe("gswgan", "ensemble-alone", steps=2)


@pytest.mark.parametrize("method", ["dp-sgd-gan", "dp-merf", "g-pate"])
def test_what_a_baseline_states_is_not_refuted_and_not_loose(method: str, monkeypatch) -> None:
    monkeypatch.setattr("gswgan.audit.mechanism.REAL_STEPS", 60)
    found = audit_method(method, records=1400, trials=3000)
    assert not found.refuted
    assert found.stated.epsilon / 2 < found.lower_bound < found.stated.epsilon


def test_a_method_that_cannot_be_audited_is_named() -> None:
    with pytest.raises(AuditError, match="method = 'gan'"):
        audit_method("gan")
    with pytest.raises(AuditError, match="method = 'pate-gan'"):
        audit_method("pate-gan", records=1400)


def test_the_law_of_a_release_is_that_of_its_event() -> None:
    plan = make_plan(made_facts(4), preset="ensemble-alone", critics=4, steps=4)
    assert plan.privacy is not None
    law = StepLaw.of(plan.privacy.event)
    assert law.size == pytest.approx(plan.privacy.contribution.sensitivity("zeroed") / plan.privacy.noise_std)
