"""Plans of both trust models and of both critics, and what each observer is told; the paper's run as published."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from critic_rounds import CPU, DATA, critic_clients, critic_plan, federate

from gswgan.errors import PlanError, RunError
from gswgan.federated.memory import memories
from gswgan.federated.remote_critics import InProcess
from gswgan.federated.server import Round, create_run
from gswgan.federated.silos import silo_facts
from gswgan.federated.statement import advice, clients_needed, kernel_noise, observers
from gswgan.federated.trust import (
    answer_event,
    check_cost,
    in_relation,
    make_federated_plan,
    most_spent,
    spent,
    trust_of,
)
from gswgan.methods import make_plan, plan_from_table, read_plan
from gswgan.plan.facts import Facts, Site
from gswgan.plan.method import Federation
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, DrawnOne, Gaussian, Sampled
from gswgan.privacy.accountant import gaussian_log_delta, visible_draw_epsilon
from gswgan.privacy.ledger import read_ledger
from gswgan.run.loop import run

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
    assert (measured["plan"]["format_version"], measured["plan"]["preset"]) == (4, "default")  # before their new names
    fields = {key: value for key, value in measured["plan"].items() if key not in ("format_version", "digest")}
    privacy = {("critics" if key == "shards" else key): value for key, value in fields["privacy"].items()}
    plan = plan_from_table({**fields, "preset": "kernel", "privacy": privacy})
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


def exact(plan: Plan, sensitivity: float, rounds: int) -> float:
    """Epsilon of so many plain Gaussian releases, by another way than the planner's."""
    mu = sensitivity / plan.privacy.noise_std * math.sqrt(rounds)
    return visible_draw_epsilon(mu, 1, 1, plan.privacy.delta)


def test_a_trusted_aggregator_adds_the_noise_once_for_one_client_zeroed():
    plan = critic_plan(epsilon=10)
    privacy, bound = plan.privacy, plan.privacy.clip_norm * math.sqrt(plan.privacy.rows)
    assert (privacy.neighbours, privacy.observer, privacy.unit, privacy.critics) == ("zeroed", "public", "person", 12)
    assert trust_of(plan) == "trusted-aggregator"
    assert privacy.event == Gaussian(noise_std=privacy.noise_std, sensitivity=bound, neighbours="zeroed")
    assert exact(plan, bound, 5) == pytest.approx(10, rel=2e-3)
    assert most_spent(plan) == plan.guarantee.epsilon


def test_an_untrusted_server_is_promised_one_client_replaced_and_no_amplification():
    plan = critic_plan(epsilon=10, trust="untrusted-server")
    privacy, bound = plan.privacy, 2 * plan.privacy.clip_norm * math.sqrt(plan.privacy.rows)
    assert (privacy.neighbours, privacy.observer, privacy.sampling) == ("replace-one", "server", "all")
    assert exact(plan, bound, 5) == pytest.approx(10, rel=2e-3)
    many = make_federated_plan(WRITERS, preset="ensemble", trust="untrusted-server", epsilon=10, rounds=5)
    assert many.privacy.sampling == "all"  # however many they are
    with pytest.raises(PlanError, match="rate"):
        make_federated_plan(WRITERS, preset="ensemble", trust="untrusted-server", rate=0.5)


def test_many_clients_take_part_by_secret_coins_and_their_own_budgets_do_not_rely_on_them():
    plan = make_federated_plan(WRITERS, preset="ensemble", epsilon=10, rounds=20)
    event = plan.privacy.event
    assert isinstance(event, Sampled)
    assert event.rate == plan.privacy.rate == 0.1
    assert Accountant("zeroed").epsilon(plan.total(), plan.privacy.delta) <= 10
    assert answer_event(plan) == event.event
    assert most_spent(plan) == pytest.approx(exact(plan, event.event.sensitivity, 20))
    assert most_spent(plan) > 2 * plan.guarantee.epsilon
    told = observers(plan, [event] * 20)
    assert [cost["neighbours"] for cost in told["guarantees"]] == ["zeroed", "replace-one"]
    zeroed, replaced = (cost["epsilon"] for cost in told["guarantees"])
    assert zeroed == plan.guarantee.epsilon
    assert zeroed < replaced < most_spent(plan) * 2.5
    again = observers(plan, [*[event] * 20, event.event])  # a release that had to be repeated, without its coins
    assert again["guarantees"][0]["epsilon"] > zeroed


def test_the_advice_says_how_many_clients_it_takes():
    for trust in ("trusted-aggregator", "untrusted-server"):
        told = advice(critic_plan(epsilon=10, trust=trust))
        assert trust in told
        assert "it takes" in told


@pytest.fixture(scope="module")
def published() -> Plan:
    """The paper's federated run: 866 clients, 30,000 rounds."""
    return make_federated_plan(
        Facts(
            data="emnist", records=866, persons=866, classes=36, class_names=tuple(map(str, range(36))), labelled=True,
            image_size=28, channels=1,
        ),
        preset="paper-federated",
        trust="untrusted-server",
    )  # fmt: skip


def test_the_papers_federated_run_states_its_claim_and_what_holds(published: Plan):
    assert published.claimed.epsilon == pytest.approx(598.61, abs=0.1)
    assert published.guarantee.epsilon == pytest.approx(774.3, rel=1e-3)
    assert (published.guarantee.observer, published.guarantee.delta) == ("server", 1.15e-3)
    assert (published.training.steps, published.privacy.rows) == (30_000, 32)
    assert published.privacy.noise_std == 2.14 * published.privacy.clip_norm
    assert isinstance(published.privacy.event, DrawnOne)
    assert (published.critic.fakes_per_step, published.critic.updates, published.critic.warm_start) == ("one", 5, 2000)
    assert read_plan(published.to_json()) == published
    assert most_spent(published) == published.guarantee.epsilon


def test_the_papers_federated_run_fixes_its_noise_and_its_trust():
    for options in ({"trust": "trusted-aggregator"}, {"epsilon": 10}, {"rate": 1.0}):
        with pytest.raises(PlanError, match="untrusted server"):
            make_federated_plan(WRITERS, preset="paper-federated", **{"trust": "untrusted-server", **options})


def test_in_the_papers_run_one_client_answers_a_round(tmp_path: Path):
    plan = critic_plan(preset="paper-federated", trust="untrusted-server", rounds=6, warm_start=2)
    asked: list[list[str]] = []

    class Counting(InProcess):
        def ask(self, clients, fields, take):  # type: ignore[no-untyped-def]
            asked.append(list(clients))
            super().ask(clients, fields, take)

    folder = federate(tmp_path / "run", plan, Counting(critic_clients(tmp_path / "state", plan)))
    assert [len(names) for names in asked] == [1] * 6
    assert len({name for names in asked for name in names}) > 1
    told = json.loads(folder.privacy.read_text())
    assert told["claimed"]["epsilon"] < told["epsilon"] == told["guarantees"][0]["epsilon"]
    assert [cost["observer"] for cost in told["guarantees"]] == ["server", "public"]
    assert "claimed" in folder.card.read_text()
    header, entries, _ = read_ledger(folder.ledger)
    assert header["observer"] == "server"
    assert [entry.event for entry in entries] == [plan.privacy.event] * 6
    answers = {memory.client: len(memory.events) for memory in memories(tmp_path / "state")}
    refused = (folder.private / "answers.jsonl").read_text().count("refused")
    assert sum(answers.values()) + refused == 6  # the ledgers at the clients equal what was released
    assert all(memory.spent <= plan.guarantee.epsilon for memory in memories(tmp_path / "state"))


def test_a_run_whose_clients_do_not_trust_the_server_is_not_trained_on_their_data(tmp_path: Path):
    plan = critic_plan(epsilon=10, trust="untrusted-server")
    folder = create_run(tmp_path / "run", plan, DATA.person_ids, 600)
    with pytest.raises(RunError, match="clients that answer"):
        run(folder, DATA, device=CPU)


def test_the_one_round_is_the_kernel_critics(tmp_path: Path):
    folder = create_run(tmp_path / "run", critic_plan(epsilon=10), DATA.person_ids, 600)
    with pytest.raises(PlanError, match="in one round"):
        Round(folder)


def of_two_sites(**persons: int) -> Facts:
    sites = [Site(name=name, records=500, **persons) for name in "ab"]
    return silo_facts(sites, min_sites=None, data="x", class_names=("0", "1"), image_size=8, channels=1)


def test_a_plan_of_refined_whose_cost_is_too_large_to_compute_is_refused():
    plan = make_federated_plan(of_two_sites(), preset="refined", epsilon=10, delta=1e-5, steps=5, rounds=1)
    assert check_cost(plan) == pytest.approx(10, rel=1e-3)
    privacy = dataclasses.replace(plan.sums, noise_std=1e-6, releases=200_000)
    training = dataclasses.replace(plan.training, steps=plan.training.steps - 5 + 200_000)
    with pytest.raises(PlanError, match="too much memory"):
        check_cost(dataclasses.replace(plan, privacy=privacy, training=training))


def test_refined_over_sites_is_for_records():
    federation = Federation(observer="server", neighbours="replace-one", rounds=1)
    plan = make_plan(
        of_two_sites(persons=100), preset="refined", federation=federation, epsilon=10, delta=1e-5, steps=5
    )
    with pytest.raises(PlanError, match="one record replaced"):
        trust_of(plan)
