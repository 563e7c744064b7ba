"""The sufficient statistic: its likelihood ratio is the densities', and real steps follow its law."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from scipy.stats import norm

from gswgan.audit import mechanism as audit
from gswgan.audit.step_law import StepLaw
from gswgan.audit.worst_case import ensemble_statistics, real_mechanism
from gswgan.errors import AuditError
from gswgan.training.plan import PrivacySettings

POISSON = PrivacySettings(
    delta=1e-5, noise_std=4.0, clip_norm=1.0, rows=16, releases=8, sampling="poisson", rate=0.3, shards=40
)
ALL = dataclasses.replace(POISSON, sampling="all", rate=1.0)
ONE = dataclasses.replace(POISSON, sampling="one", rate=1.0)


def density(law: StepLaw, world: int, x: np.ndarray) -> np.ndarray:
    mean = law.size if world == 1 else -law.size
    return (1 - law.rate) * norm.pdf(x, law.out) + law.rate * norm.pdf(x, mean)


@pytest.mark.parametrize("privacy", [POISSON, ALL, ONE])
def test_the_score_is_the_log_likelihood_ratio(privacy: PrivacySettings) -> None:
    law = StepLaw.of(privacy)
    x = np.random.default_rng(0).normal(0, 3, (5, 21))
    exact = np.log(density(law, 1, x) / density(law, 2, x)).sum(axis=1)
    np.testing.assert_allclose(law.log_ratio(x), exact, rtol=1e-9)


@pytest.mark.parametrize("privacy", [POISSON, ALL, ONE])
def test_draws_have_the_density(privacy: PrivacySettings) -> None:
    law = StepLaw.of(privacy)
    for world in (1, 2):
        x = law.draw((300, 200), world, np.random.default_rng(world)).ravel()
        counts, edges = np.histogram(x, bins=40, range=(-4, 4))
        middle = (edges[1:] + edges[:-1]) / 2
        expected = density(law, world, middle) * len(x) * (edges[1] - edges[0])
        big = expected > 50
        assert np.sum((counts - expected)[big] ** 2 / expected[big]) < 2.2 * big.sum()


def test_scores_do_not_depend_on_the_threads() -> None:
    law = StepLaw.of(POISSON)
    once, again = (law.scores(5000, 300, 1, seed=3) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert len(np.unique(once)) == len(once)
    assert not np.array_equal(once, law.scores(5000, 300, 2, seed=3))


@functools.cache
def real(privacy: PrivacySettings, world: int, trials: int, steps: int, *, seed: int) -> np.ndarray:
    return ensemble_statistics(privacy, world, trials, steps, seed=seed)


@pytest.mark.parametrize("privacy", [POISSON, ALL, ONE], ids=["poisson", "all", "one"])
def test_real_steps_follow_the_law(privacy: PrivacySettings, monkeypatch) -> None:
    """The tie that the trials on one number a step rest on: 1,000 real trials of 4 steps in each world."""
    assert audit.REAL_TRIALS >= 1000
    monkeypatch.setattr(audit, "ensemble_statistics", real)
    assert audit.tie_to_real_path(privacy) > 1e-3


@pytest.mark.parametrize("factor", [1.25, 1 / 1.25])
def test_the_tie_rejects_other_noise(factor: float) -> None:
    def make(privacy, streams, folder):
        made = real_mechanism(privacy, streams, folder)
        made.noise_std *= factor
        return made

    with pytest.raises(AuditError, match="real path"):
        audit.tie_to_real_path(POISSON, make_mechanism=make)


@pytest.mark.parametrize(
    "law_of", [dataclasses.replace(POISSON, rate=0.15), dataclasses.replace(POISSON, clip_norm=1.5), ONE, ALL]
)
def test_the_tie_rejects_another_law(law_of: PrivacySettings, monkeypatch) -> None:
    monkeypatch.setattr(audit, "ensemble_statistics", real)
    monkeypatch.setattr(audit, "tied_law", lambda privacy: StepLaw.of(law_of))
    with pytest.raises(AuditError, match="real path"):
        audit.tie_to_real_path(POISSON)


def test_a_ledger_that_misses_a_release_is_an_error(monkeypatch) -> None:
    def forgetful(privacy, streams, folder):
        made = real_mechanism(privacy, streams, folder)
        monkeypatch.setattr(made.ledger, "record", lambda name, event, fingerprint: 0)
        return made

    with pytest.raises(AuditError, match="ledger"):
        ensemble_statistics(POISSON, 1, 2, 2, make_mechanism=forgetful)
