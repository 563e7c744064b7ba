"""The plans of both trust models, and what each observer is told."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from gswgan.errors import PlanError
from gswgan.federated.statement import advice, clients_needed, kernel_noise, observers
from gswgan.federated.trust import in_relation, make_federated_plan, spent, trust_of
from gswgan.methods import make_plan, plan_from_table
from gswgan.plan.facts import Facts
from gswgan.privacy.accountant import gaussian_log_delta
from gswgan.privacy.events import Gaussian

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WRITERS = Facts(
    data="writers", records=60_000, persons=539, classes=10, class_names=tuple("0123456789"), labelled=True,
    image_size=28, channels=1,
)  # fmt: skip
CLIP = 0.7 * 10**-0.5


def closed_form(mu: float, delta: float) -> float:
    """Epsilon of a mu-Gaussian by bisection of the closed form."""
    low, high = 0.0, 1000.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_log_delta(mu, middle) > math.log(delta) else (low, middle)
    return high


def test_the_aggregators_noise_is_for_one_client_zeroed_and_not_half_or_twice_of_it():
    plan = make_federated_plan(WRITERS, epsilon=10, delta=1e-4)
    privacy = plan.privacy
    assert (privacy.neighbours, privacy.observer, privacy.unit) == ("zeroed", "public", "person")
    assert privacy.contribution.sensitivity("zeroed") == pytest.approx(CLIP)
    assert closed_form(CLIP / privacy.noise_std, 1e-4) == pytest.approx(10, rel=1e-3)
    assert plan.guarantee.epsilon <= 10


def test_a_client_of_an_untrusted_server_has_noise_for_one_client_replaced():
    plan = make_federated_plan(WRITERS, trust="untrusted-server", epsilon=10, delta=1e-4)
    privacy = plan.privacy
    assert (privacy.neighbours, privacy.observer) == ("replace-one", "server")
    assert closed_form(2 * CLIP / privacy.noise_std, 1e-4) == pytest.approx(10, rel=1e-3)
    assert trust_of(plan) == "untrusted-server"


def test_both_observers_are_told_the_truth_about_a_trusted_aggregator():
    plan = make_federated_plan(WRITERS, epsilon=10, delta=1e-3)
    told = observers(plan, [plan.privacy.event])
    zeroed, replaced = told["guarantees"]
    assert (zeroed["observer"], zeroed["neighbours"], replaced["neighbours"]) == ("public", "zeroed", "replace-one")
    assert zeroed["epsilon"] == pytest.approx(10, rel=1e-3)
    assert replaced["epsilon"] == pytest.approx(26.6, abs=0.1)  # the design's figure for the same noise
    (server,) = told["open_to"]
    assert server["observer"] == "server"
    assert server["epsilon"] is None
    assert not any(cost["observer"] == "server" for cost in told["guarantees"])


def test_both_observers_are_told_the_truth_about_an_untrusted_server():
    plan = make_federated_plan(WRITERS, trust="untrusted-server", epsilon=10, delta=1e-3)
    told = observers(plan, [plan.privacy.event])
    server, public = told["guarantees"]
    assert (server["observer"], public["observer"], told["open_to"]) == ("server", "public", [])
    assert server["neighbours"] == public["neighbours"] == "replace-one"
    assert public["epsilon"] == server["epsilon"] == pytest.approx(10, rel=1e-3)  # others' noise is not counted on


def test_a_release_that_was_repeated_costs_more_for_every_observer():
    plan = make_federated_plan(WRITERS, epsilon=10, delta=1e-3)
    once, twice = (observers(plan, [plan.privacy.event] * times)["guarantees"] for times in (1, 2))
    assert all(b["epsilon"] > 1.3 * a["epsilon"] for a, b in zip(once, twice))


def test_relations_convert_by_a_factor_of_two_either_way():
    zeroed = Gaussian(noise_std=1.0, sensitivity=0.5, neighbours="zeroed")
    replaced = in_relation(zeroed, "replace-one")
    assert replaced == Gaussian(noise_std=1.0, sensitivity=1.0, neighbours="replace-one")
    assert in_relation(replaced, "zeroed") == zeroed
    assert spent([zeroed, replaced], neighbours="zeroed", delta=1e-3) == pytest.approx(
        closed_form(math.sqrt(2) * 0.5, 1e-3), rel=1e-3
    )


def test_the_advice_counts_clients_by_the_law_of_each_noise():
    for trust, power in (("trusted-aggregator", 1.0), ("untrusted-server", 0.5)):
        plan = make_federated_plan(WRITERS, trust=trust, epsilon=10, delta=1e-4)
        needed = clients_needed(539, kernel_noise(WRITERS, plan.privacy), plan.privacy)
        there = dataclasses.replace(WRITERS, persons=needed, records=max(needed, 60_000))
        ratio = math.sqrt(math.e * 784) * plan.privacy.noise_std * 10 / needed**power
        assert ratio == pytest.approx(0.3, rel=2e-2)
        assert clients_needed(needed, kernel_noise(there, plan.privacy), plan.privacy) == pytest.approx(
            needed, rel=1e-2
        )
    assert f"{needed:,}" in advice(plan)
    assert needed > 90_000  # 539 clients of an untrusted server are far too few


def test_the_settings_of_an_untrusted_server_follow_the_noise_of_all_clients():
    one, all_of_them = (
        make_federated_plan(WRITERS, trust=trust) for trust in ("trusted-aggregator", "untrusted-server")
    )
    assert all_of_them.critic.length_scales[0] > one.critic.length_scales[0]
    assert all_of_them.privacy.noise_std == pytest.approx(2 * one.privacy.noise_std, rel=1e-3)


@pytest.mark.parametrize("name", ["mnist-writers-eps10", "mnist-writers-eps3", "femnist-writers-eps10"])
def test_what_was_measured_is_the_recipe_of_today(name: str):
    measured = json.loads((RESULTS / f"federated-{name}-h200.json").read_text())
    assert (measured["plan"]["format_version"], measured["plan"]["preset"]) == (4, "default")  # before its new name
    fields = {key: value for key, value in measured["plan"].items() if key not in ("format_version", "digest")}
    plan = plan_from_table({**fields, "preset": "kernel"})
    today = make_federated_plan(plan.facts, epsilon=int(name.rpartition("eps")[2]), delta=1e-4, device="cuda")
    assert plan.guarantee.epsilon == pytest.approx(today.guarantee.epsilon, rel=1e-9)
    assert dataclasses.replace(plan, guarantee=today.guarantee) == today
    assert observers(plan, [plan.privacy.event]) == measured["observers"]


def test_other_plans_are_not_federated():
    for facts, options in ((WRITERS, {"preset": "ensemble"}), (dataclasses.replace(WRITERS, persons=None), {})):
        with pytest.raises(PlanError, match="kernel critic"):
            trust_of(make_plan(facts, **options))
    with pytest.raises(PlanError, match="at least 2"):
        make_federated_plan(dataclasses.replace(WRITERS, persons=None))
