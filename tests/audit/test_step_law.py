"""The sufficient statistic: its likelihood ratio is that of the densities. (Real runs follow it: test_wiring.py.)"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import norm

from gswgan.audit.step_law import StepLaw
from gswgan.plan.plan import PrivacySettings

POISSON = PrivacySettings(
    delta=1e-5, noise_std=4.0, clip_norm=1.0, rows=16, releases=8, sampling="poisson", rate=0.3, critics=40
)
ALL = dataclasses.replace(POISSON, sampling="all", rate=1.0)
ONE = dataclasses.replace(POISSON, sampling="one", rate=1.0)


def density(law: StepLaw, world: int, x: np.ndarray) -> np.ndarray:
    mean = law.size if world == 1 else -law.size
    return (1 - law.rate) * norm.pdf(x, law.out) + law.rate * norm.pdf(x, mean)


@pytest.mark.parametrize("privacy", [POISSON, ALL, ONE])
def test_the_score_is_the_log_likelihood_ratio(privacy: PrivacySettings) -> None:
    law = StepLaw.of(privacy.event)
    x = np.random.default_rng(0).normal(0, 3, (5, 21))
    exact = np.log(density(law, 1, x) / density(law, 2, x)).sum(axis=1)
    np.testing.assert_allclose(law.log_ratio(x), exact, rtol=1e-9)


@pytest.mark.parametrize("privacy", [POISSON, ALL, ONE])
def test_draws_have_the_density(privacy: PrivacySettings) -> None:
    law = StepLaw.of(privacy.event)
    for world in (1, 2):
        x = law.draw((300, 200), world, np.random.default_rng(world)).ravel()
        counts, edges = np.histogram(x, bins=40, range=(-4, 4))
        middle = (edges[1:] + edges[:-1]) / 2
        expected = density(law, world, middle) * len(x) * (edges[1] - edges[0])
        big = expected > 50
        assert np.sum((counts - expected)[big] ** 2 / expected[big]) < 2.2 * big.sum()


def test_scores_do_not_depend_on_the_threads() -> None:
    law = StepLaw.of(POISSON.event)
    once, again = (law.scores(5000, 300, 1, seed=3) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert len(np.unique(once)) == len(once)
    assert not np.array_equal(once, law.scores(5000, 300, 2, seed=3))
