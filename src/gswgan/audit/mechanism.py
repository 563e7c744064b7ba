"""`gswgan audit`: a lower bound on epsilon for a method's mechanism, and whether a claim survives it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gswgan.audit.baselines import observe_baseline
from gswgan.audit.bounds import Bound, Family, GaussianFamily, LossFamily, Scores, lower_bounds
from gswgan.audit.refined import observe_refined
from gswgan.audit.site_messages import message_scores, site_pairs, site_plan
from gswgan.audit.step_law import StepLaw
from gswgan.audit.wiring import Observed
from gswgan.audit.worst_case import COPIES, kernel_pairs, kernel_scores, observe_ensemble, public_features
from gswgan.errors import AuditError
from gswgan.methods import make_plan
from gswgan.methods.ensemble import PlannedEnsemble
from gswgan.methods.kernel_then_ensemble import PlannedKernelThenEnsemble
from gswgan.methods.refined import PlannedRefined
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.plan.settings import check_whole
from gswgan.privacy import Composed, DrawnOne, Gaussian, PrivacyCost, Repeated
from gswgan.privacy.events import gaussian_of, tally

TRIALS = 300_000
"""Trials in each world; five sixths of them count, the rest chooses thresholds."""

PREFIX = 4000
"""Steps of the paper's run that are audited: a bound on a prefix is a bound on the run."""

REAL_STEPS = 1200
"""Releases of real runs, in each world, that tie the sufficient statistic to the code that trains."""

MIN_P_VALUE = 1e-6
"""A p-value below which real runs do not follow the law that the trials are drawn from."""

CONFIDENCE = 0.95
MAX_RECORDS = 10**9

OBSERVERS: dict[type, Callable[..., list[Observed]]] = {
    PlannedEnsemble: observe_ensemble,
    PlannedKernelThenEnsemble: observe_ensemble,
    PlannedRefined: observe_refined,
}
"""Who watches real runs, by the settings of the critic; those of all others are baselines."""

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What was found for one pair of neighbours."""

    name: str
    trials: int
    steps: int
    distribution_free: Bound
    trade_off: Bound | None

    @property
    def epsilon(self) -> float:
        """The larger of its bounds."""
        return max(self.distribution_free.epsilon, self.trade_off.epsilon if self.trade_off else 0.0)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The answer: bounds by pair, what is stated, what was claimed."""

    method: str
    preset: str
    records: int
    stated: PrivacyCost
    claim: float
    pairs: tuple[Pair, ...]
    tie: float | None  # p-value of real path against sufficient statistic
    confidence: float
    seconds: float

    @property
    def lower_bound(self) -> float:
        """The largest bound: all of them hold at once with the stated confidence."""
        return max(pair.epsilon for pair in self.pairs)

    @property
    def refuted(self) -> bool:
        """Whether the claim is below what was shown."""
        return self.lower_bound > self.claim

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        verdict = "refuted" if self.refuted else "not refuted"
        return {"format_version": 1, "verdict": verdict, "lower_bound": self.lower_bound, **asdict(self)}


def audit_method(
    method: str = "gswgan",
    preset: str | None = None,
    *,
    records: int = 60_000,
    claim: float | None = None,
    trials: int = TRIALS,
    seed: int = 0,
    note: Note = lambda text: None,
) -> Audit:
    """Audit the mechanism of a method as it would be planned for so many records, against a claim at its delta.

    Without a claim, what the plan itself states is put to the test. All bounds together hold with 95 % confidence.
    """
    began = time.monotonic()
    check_whole("records", records, 2, MAX_RECORDS)
    if claim is not None and not 0 <= claim < math.inf:
        raise AuditError("claim", claim, "a finite number, at least 0", "Pass the epsilon that is claimed.")
    facts = Facts(data="audit", records=records, persons=None, classes=10, class_names=tuple("0123456789"),
                  labelled=True, image_size=28, channels=1)  # fmt: skip
    plan = make_plan(facts, method=method, preset=preset)
    if plan.guarantee is None:
        raise AuditError("method", method, "a method with a guarantee", "Pass another --method.")
    tie = None
    if plan.critic.can_stream:  # one release, which can be made anew in every trial
        pairs = audit_kernel(plan, trials=trials, seed=seed, note=note)
    else:
        note(f"{REAL_STEPS} releases of real runs in each world")
        observe = OBSERVERS.get(type(plan.critic), observe_baseline)
        tie = tie_to_real_runs(observe(plan, steps=REAL_STEPS, seed=seed))
        pairs = (audit_releases(plan, trials=trials, seed=seed, note=note),)
    return Audit(
        method=method, preset=plan.preset, records=records, stated=plan.guarantee,
        claim=plan.guarantee.epsilon if claim is None else claim, pairs=pairs, tie=tie, confidence=CONFIDENCE,
        seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


def audit_kernel(
    plan: Plan, *, trials: int = TRIALS, seed: int = 0, note: Note = lambda text: None
) -> tuple[Pair, ...]:
    """Every trial is a real release of class sums and counts, of both pairs of neighbours."""
    assert plan.privacy is not None
    gaussian, delta = gaussian_of(plan.privacy.event), plan.privacy.delta
    pairs = kernel_pairs(public_features())
    found = []
    for pair in pairs:
        note(f"{trials} real releases in each world: {pair.name}")
        first, second = (kernel_scores(plan, pair, world, trials, seed=seed) for world in (1, 2))
        family = GaussianFamily(mu=gaussian.mu, delta=delta)
        found.append(bound_pair(pair.name, first, second, delta, family, steps=1, pairs=len(pairs)))
    return tuple(found)


def audit_message(
    *, claim: float | None = None, trials: int = TRIALS, seed: int = 0, note: Note = lambda text: None
) -> Audit:
    """Attack the message of one site of several, each with its own noise: the bytes as they travel to the server."""
    began, pairs, found = time.monotonic(), site_pairs(public_features()), []
    plan = site_plan(pairs[0].data(1, COPIES))
    gaussian, cost = gaussian_of(plan.sums.event), plan.cost
    for pair in pairs:
        note(f"{trials} sums in messages of a site in each world: {pair.name}")
        first, second = (message_scores(pair, world, trials, seed=seed) for world in (1, 2))
        family = GaussianFamily(mu=gaussian.mu, delta=cost.delta)
        found.append(bound_pair(pair.name, first, second, cost.delta, family, steps=1, pairs=len(pairs)))
    return Audit(
        method=plan.method, preset=f"{plan.preset}, a site's message", records=plan.facts.records, stated=cost,
        claim=cost.epsilon if claim is None else claim, pairs=tuple(found), tie=None, confidence=CONFIDENCE,
        seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


def audit_releases(plan: Plan, *, trials: int = TRIALS, seed: int = 0, note: Note = lambda text: None) -> Pair:
    """Trials run on the sufficient statistics, one number for each release: whole runs, or a prefix of the paper's.

    A trial's score is its log-likelihood ratio, the sum of those of all its releases.
    """
    total, cost = plan.total(), plan.guarantee
    assert total is not None
    assert cost is not None
    kinds = {event: min(PREFIX, n) if isinstance(event, DrawnOne) else n for event, n in tally(total).items()}
    note(f"{trials} trials of {sum(kinds.values())} releases in each world")
    first, second = (
        sum(StepLaw.of(event).scores(trials, times, world, seed=seed + number) for number, (event, times) in
            enumerate(kinds.items()))
        for world in (1, 2)
    )  # fmt: skip
    seen = Composed(events=tuple(Repeated(event=event, times=times) for event, times in kinds.items()))
    family: Family = LossFamily(seen, cost.delta)
    if all(isinstance(event, Gaussian) for event in kinds):
        mu = math.sqrt(sum(times * gaussian_of(event).mu ** 2 for event, times in kinds.items()))
        family = GaussianFamily(mu=mu, delta=cost.delta)
    note("reading the trade-off curve")
    name = "a contribution moves from -v to v"
    return bound_pair(
        name, np.asarray(first), np.asarray(second), cost.delta, family, steps=sum(kinds.values()), pairs=1
    )


def bound_pair(
    name: str, first: Scores, second: Scores, delta: float, family: Family | None, *, steps: int, pairs: int
) -> Pair:
    """Both bounds for one pair; the allowed error is shared by all pairs and both forms."""
    error = (1 - CONFIDENCE) / pairs / 2
    free, own = lower_bounds(first, second, delta=delta, family=family, error=error)
    return Pair(name=name, trials=free.rates.trials, steps=steps, distribution_free=free, trade_off=own)


def tie_to_real_runs(observed: list[Observed]) -> float:
    """The least p-value that real releases of both worlds follow their law; an error where it is MIN_P_VALUE.

    The trials would then say nothing about the code.
    """
    worst = min(observed, key=lambda kind: kind.p_value())
    p_value = worst.p_value()
    if p_value < MIN_P_VALUE:
        raise AuditError(
            "real runs", f"{worst.name}: p = {p_value:.1e}", "the law of what was accounted for",
            "The code does not do what its plan says.",
        )  # fmt: skip
    return p_value
