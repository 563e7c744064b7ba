"""Plans of Algorithm 2: noise, relation and observer of each trust model; the paper's federated run as published."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from critic_rounds import CPU, DATA, critic_clients, critic_plan, federate

from gswgan.errors import PlanError, RunError
from gswgan.federated.memory import memories
from gswgan.federated.remote_critics import InProcess
from gswgan.federated.server import Round, create_run
from gswgan.federated.statement import advice, observers
from gswgan.federated.trust import answer_event, make_federated_plan, most_spent, trust_of
from gswgan.methods import read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, DrawnOne, Gaussian, Sampled
from gswgan.privacy.accountant import visible_draw_epsilon
from gswgan.privacy.ledger import read_ledger
from gswgan.run.loop import run

WRITERS = Facts(
    data="writers", records=60_000, persons=539, classes=10, class_names=tuple("0123456789"), labelled=True,
    image_size=28, channels=1,
)  # fmt: skip


def exact(plan: Plan, sensitivity: float, rounds: int) -> float:
    """Epsilon of so many plain Gaussian releases, by another way than the planner's."""
    mu = sensitivity / plan.privacy.noise_std * math.sqrt(rounds)
    return visible_draw_epsilon(mu, 1, 1, plan.privacy.delta)


def test_a_trusted_aggregator_adds_the_noise_once_for_one_client_zeroed():
    plan = critic_plan(epsilon=10)
    privacy, bound = plan.privacy, plan.privacy.clip_norm * math.sqrt(plan.privacy.rows)
    assert (privacy.neighbours, privacy.observer, privacy.unit, privacy.shards) == ("zeroed", "public", "person", 12)
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
