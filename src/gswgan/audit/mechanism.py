"""`gswgan audit`: a lower bound on epsilon for a preset's mechanism, and whether a claim survives it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from gswgan.audit.bounds import Bound, Family, GaussianFamily, LossFamily, Scores, lower_bounds
from gswgan.audit.step_law import StepLaw
from gswgan.audit.worst_case import (
    ensemble_statistics,
    kernel_pairs,
    kernel_scores,
    public_features,
    tied_law,
)
from gswgan.critics.started import KernelStart
from gswgan.errors import AuditError
from gswgan.privacy import Gaussian, PrivacyCost
from gswgan.training.gs_wgan_plan import load_preset
from gswgan.training.plan import Facts, PrivacySettings
from gswgan.training.planner import guarantee, make_draft
from gswgan.training.settings import check_whole

TRIALS = 300_000
"""Trials in each world; five sixths of them count, the rest chooses thresholds."""

PREFIX = 4000
"""Steps of the paper's run that are audited: a bound on a prefix is a bound on the run."""

REAL_TRIALS, REAL_STEPS = 1000, 4
"""Real trials in each world that tie the ensemble's sufficient statistic to the code path."""

CONFIDENCE = 0.95
MOST_RECORDS = 10**9

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


def audit_preset(
    preset: str,
    *,
    records: int = 60_000,
    claim: float | None = None,
    trials: int = TRIALS,
    seed: int = 0,
    note: Note = lambda text: None,
) -> Audit:
    """Audit the mechanism of a preset as it would be planned for so many records, against a claim at its delta.

    Without a claim, what the preset itself states is put to the test. All bounds together hold with 95 % confidence.
    """
    began = time.monotonic()
    table = load_preset(preset)
    if table.get("federated") or table["critic"] == "refined":
        raise AuditError(
            "preset", preset, "default, ensemble, ensemble-alone or paper", "Pass one of them as --preset."
        )
    check_whole("records", records, 2, MOST_RECORDS)
    if claim is not None and not 0 <= claim < math.inf:
        raise AuditError("claim", claim, "a finite number, at least 0", "Pass the epsilon that is claimed.")
    facts = Facts(data="audit", records=records, persons=None, classes=10, class_names=tuple("0123456789"),
                  labelled=True, image_size=28, channels=1)  # fmt: skip
    draft = make_draft(facts, preset=preset)
    privacy, total = draft.privacy, draft.total()
    assert privacy is not None
    assert total is not None
    start = draft.critic.event(facts.labelled) if isinstance(draft.critic, KernelStart) else None
    stated = guarantee(total, delta=privacy.delta)
    claim = stated.epsilon if claim is None else claim
    tie = None
    if table["critic"] == "kernel":
        pairs = audit_kernel(privacy, trials=trials, seed=seed, note=note)
    else:
        note(f"{2 * REAL_TRIALS * REAL_STEPS} steps through the real path")
        tie = tie_to_real_path(privacy, seed=seed)
        pairs = (audit_ensemble(privacy, start=start, trials=trials, seed=seed, note=note),)
    return Audit(
        preset=preset,
        records=records,
        stated=stated,
        claim=claim,
        pairs=pairs,
        tie=tie,
        confidence=CONFIDENCE,
        seconds=round(time.monotonic() - began, 1),
    )


def audit_kernel(
    privacy: PrivacySettings, *, trials: int = TRIALS, seed: int = 0, note: Note = lambda text: None
) -> tuple[Pair, ...]:
    """Every trial is a real release of class sums and counts, of both pairs of neighbours."""
    gaussian = privacy.event
    pairs = kernel_pairs(public_features())
    found = []
    for pair in pairs:
        note(f"{trials} real releases in each world: {pair.name}")
        first, second = (kernel_scores(privacy, pair, world, trials, seed=seed) for world in (1, 2))
        family = GaussianFamily(mu=gaussian.sensitivity / gaussian.noise_std, delta=privacy.delta)  # type: ignore[union-attr]
        found.append(judge(pair.name, first, second, privacy, family, steps=1, pairs=len(pairs)))
    return tuple(found)


def audit_ensemble(
    privacy: PrivacySettings,
    *,
    start: Gaussian | None = None,
    trials: int = TRIALS,
    seed: int = 0,
    note: Note = lambda text: None,
) -> Pair:
    """Trials run on the sufficient statistic, one number a step: whole runs, or a prefix of the paper's.

    A release of everybody before the first step (`start`) shows the same record once more: its own log-likelihood
    ratio, normal around +- mu^2 / 2, is added to a trial's.
    """
    law, steps = StepLaw.of(privacy), privacy.releases
    if privacy.sampling == "one":
        steps = min(PREFIX, steps)
    note(f"{trials} trials of {steps} steps in each world")
    first, second = (law.scores(trials, steps, world, seed=seed) for world in (1, 2))
    family: Family = LossFamily(privacy, steps, start)
    mu = 0.0 if start is None else start.mu
    for number, (world, sign) in enumerate(((first, 1), (second, -1))):
        world += mu * np.random.default_rng([seed, 3, number]).standard_normal(len(world)) + sign * mu**2 / 2
    if privacy.sampling == "all":
        family = GaussianFamily(mu=math.hypot(2 * law.size * steps**0.5, mu), delta=privacy.delta)
    note("reading the trade-off curve")
    return judge("the critic's block moves from -v to v", first, second, privacy, family, steps=steps, pairs=1)


def judge(
    name: str, first: Scores, second: Scores, privacy: PrivacySettings, family: Family | None, *, steps: int, pairs: int
) -> Pair:
    """Both bounds for one pair; the allowed error is shared by all pairs and both forms."""
    error = (1 - CONFIDENCE) / pairs / 2
    free, own = lower_bounds(first, second, delta=privacy.delta, family=family, error=error)
    return Pair(name=name, trials=free.rates.trials, steps=steps, distribution_free=free, trade_off=own)


def tie_to_real_path(privacy: PrivacySettings, *, seed: int = 0, **options: Any) -> float:
    """p-value that real steps and the sufficient statistic have the same law (Kolmogorov-Smirnov, both worlds).

    Compared are the trials' log-likelihood ratios. A p-value below 10^-6 is an error: the trials would then say
    nothing about the code.
    """
    law = tied_law(privacy)
    worst = 1.0
    for world in (1, 2):
        real = ensemble_statistics(privacy, world, REAL_TRIALS, REAL_STEPS, seed=seed, **options)
        rng = np.random.default_rng([seed, world])
        model = law.draw((20 * REAL_TRIALS, REAL_STEPS), world, rng)
        scores = law.log_ratio(real), law.log_ratio(model)
        for one, other in (scores, (real.ravel(), model.ravel())):
            worst = min(worst, float(ks_2samp(one, other).pvalue))
    if worst < 1e-6:
        raise AuditError(
            "real path", f"p = {worst:.1e}", "the law of the sufficient statistic",
            "The mechanism does not do what its plan says.",
        )  # fmt: skip
    return worst
