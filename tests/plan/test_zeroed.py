"""Plans for one record zeroed: sensitivities, noise, statement, and what is refused."""

from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation

from conftest import MNIST
from gswgan.errors import GswganError, PlanError
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan


def added_or_removed(plan: Plan) -> float:
    """Epsilon of the same noise for one record added or removed, by an accountant that knows nothing of plans."""
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    privacy, kernel = plan.privacy, getattr(plan.critic, "noise_std", None)
    assert privacy is not None
    if kernel is None:
        accountant.compose(dp_event.GaussianDpEvent(privacy.noise_std / math.sqrt(2)))
    else:
        accountant.compose(dp_event.GaussianDpEvent(kernel / math.sqrt(2)))
        step = dp_event.GaussianDpEvent(privacy.noise_std / privacy.clip_norm)
        accountant.compose(dp_event.PoissonSampledDpEvent(privacy.rate, step), privacy.releases)
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize("preset", ["kernel", "refined"])
def test_the_noise_is_that_of_one_record_added_or_removed(preset: str) -> None:
    plan = make_plan(MNIST, preset=preset, epsilon=10, device="cuda", neighbours="zeroed")
    usual = make_plan(MNIST, preset=preset, epsilon=10, device="cuda")
    assert plan.guarantee is not None
    assert plan.guarantee.neighbours == "zeroed"
    assert "one record zeroed" in str(plan.guarantee)
    assert plan.guarantee.epsilon == pytest.approx(added_or_removed(plan), rel=2e-3)
    assert 9.9 < plan.guarantee.epsilon <= 10
    assert plan.privacy.noise_std < 0.9 * usual.privacy.noise_std
    assert {event.neighbours for event in map(_gaussian, plan.releases())} == {"zeroed"}


def _gaussian(event):
    return getattr(event, "event", event)


def test_the_usual_relation_is_one_record_replaced() -> None:
    plan = make_plan(MNIST, preset="kernel", epsilon=10)
    assert plan.guarantee is not None
    assert plan.guarantee.neighbours == "replace-one"
    assert plan == make_plan(MNIST, preset="kernel", epsilon=10, neighbours="replace-one")


@pytest.mark.parametrize(
    ("facts", "options", "expected"),
    [
        (MNIST, {"preset": "ensemble"}, PlanError),
        (MNIST, {"method": "dp-merf"}, PlanError),
        (Facts(**{**vars(MNIST), "persons": 500}), {"preset": "kernel"}, PlanError),
        (MNIST, {"preset": "kernel", "neighbours": "removed"}, GswganError),
    ],
)
def test_what_has_no_such_plan_is_refused(facts: Facts, options: dict[str, str], expected: type[Exception]) -> None:
    with pytest.raises(expected, match="neighbours"):
        make_plan(facts, **{"neighbours": "zeroed", **options})  # type: ignore[arg-type]
