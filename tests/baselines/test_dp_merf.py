from __future__ import annotations

import dataclasses
import math

import pytest
from scipy.stats import norm

from conftest import tiny_images
from gswgan.baselines.dp_merf import dp_merf_defaults, length_scale
from gswgan.training.plan import Facts
from gswgan.training.planner import make_plan

MNIST = Facts(
    data="mnist", records=60_000, persons=None, classes=10, class_names=tuple("0123456789"), labelled=True,
    image_size=28, channels=1,
)  # fmt: skip


def test_the_settings_are_those_of_its_authors() -> None:
    defaults = dp_merf_defaults(MNIST)
    assert defaults.critic.features == 10_000
    assert defaults.critic.length_scales[0] ** 2 == pytest.approx(105, rel=2e-3)
    assert (defaults.training.steps, defaults.training.batch_size, defaults.training.memory) == (600, 500, 0.0)
    assert (defaults.generator.latent, defaults.optimizer.learning_rate) == (5, 0.01)


def test_the_length_scale_does_not_come_from_the_data() -> None:
    """The authors' median heuristic looks at private data; ours is a function of the shape."""
    facts = Facts.of(tiny_images())
    assert length_scale(facts) == length_scale(dataclasses.replace(facts, records=10**6, data="other"))
    assert length_scale(MNIST) == 10.25


def test_its_guarantee_is_the_gaussian_mechanism_of_its_paper() -> None:
    """Noise of 2 sigma / n on the mean of n records: epsilon by the analytic formula of Balle and Wang (2018)."""
    plan = make_plan(MNIST, method="dp-merf", epsilon=1.0)
    sigma = plan.privacy.noise_std / 2
    assert plan.privacy.contribution.sensitivity("replace-one") == 2.0
    mu, epsilon = 1 / sigma, plan.guarantee.epsilon
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-2)
    assert delta <= 1.0001e-5
    wrong = norm.cdf(mu / 4 - 2 * epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 4 - 2 * epsilon / mu)
    assert wrong != pytest.approx(1e-5, rel=0.5)  # a sensitivity of 1 would be told apart
    assert plan.privacy.releases == 1
