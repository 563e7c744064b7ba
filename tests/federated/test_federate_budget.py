"""Federated runs in a budget file: the release of a trusted aggregator, and a client's own answers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from critic_rounds import CPU, DATA, asked, critic_clients, critic_plan, federate
from rounds import answer_all, make_clients, people, small_plan, why_refused
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.data import clients
from gswgan.errors import PlanError, PrivacyError, RunError
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap
from gswgan.federated.remote_critics import InProcess, run_rounds
from gswgan.federated.server import Round, create_run
from gswgan.federated.site import client_of
from gswgan.federated.trust import answer_event, most_spent
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant
from gswgan.privacy.events import Repeated
from gswgan.run.budget import Budget

NAME = "person 03"


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    return Budget.create(tmp_path / "budget", epsilon=11, delta=1e-5)


def again(budget: Budget) -> Budget:
    """As another process reads it."""
    return Budget(budget.path)


def hold(root: Path, plan: Plan, budget: Budget | None) -> Round:
    held = Round(create_run(root, plan, DATA.person_ids, 600, budget=None if budget is None else budget.path))
    with held.held():
        answer_all(held, make_clients(root.with_name("state"), DATA, plan))
        held.release()
    return held


def test_the_release_of_the_one_round_is_entered_before_anybody_is_asked(tmp_path: Path, budget: Budget):
    plan = small_plan(DATA, epsilon=10)
    folder = create_run(tmp_path / "run", plan, DATA.person_ids, 600, budget=budget.path)
    assert again(budget).runs == []  # planned, not begun
    with Round(folder).held():
        (budgeted,) = again(budget).runs
        assert budgeted.relation == ("zeroed", "person", "public")
        assert again(budget).spent() == pytest.approx(plan.guarantee.epsilon, rel=1e-4)
    with Round(folder).held():
        assert len(again(budget).runs) == 1  # it came back


def test_a_round_without_room_asks_nobody(tmp_path: Path, budget: Budget):
    plan = small_plan(DATA, epsilon=10)
    late = Round(create_run(tmp_path / "late", plan, DATA.person_ids, 600, budget=budget.path))
    hold(tmp_path / "run", plan, budget)  # another was quicker
    with pytest.raises(PrivacyError, match="at most the budget"), late.held():
        pytest.fail("asked")
    with pytest.raises(PrivacyError, match="at most the budget"):
        late.release()  # nor is anything released behind its back
    assert not late.folder.embedding.exists()
    assert not late.folder.ledger.exists()
    with pytest.raises(PrivacyError, match="at most the budget"):
        create_run(tmp_path / "later", plan, DATA.person_ids, 600, budget=budget.path)
    assert not (tmp_path / "later").exists()
    hold(tmp_path / "free", plan, None)  # a budget that is not named knows nothing
    assert len(again(budget).runs) == 1


def test_a_release_that_is_repeated_is_entered_first(tmp_path: Path):
    budget = Budget.create(tmp_path / "large", epsilon=20, delta=1e-5)
    held = hold(tmp_path / "run", small_plan(DATA, epsilon=10), budget)
    before, ledger = again(budget).spent(), held._context().ledger
    ledger.record("embedding", ledger.entries[0].event, "another sum")
    assert [budgeted.repeated for budgeted in again(budget).runs] == [1]
    assert again(budget).spent() > before


def test_the_rounds_of_algorithm_2_are_entered_as_planned(tmp_path: Path, budget: Budget):
    plan = critic_plan(rounds=3, rate=0.5, epsilon=10)
    folder = create_run(tmp_path / "run", plan, DATA.person_ids, 600, budget=budget.path)
    everybody = critic_clients(tmp_path / "state", plan)
    assert run_rounds(folder, InProcess(everybody), device=CPU)
    (budgeted,) = again(budget).runs
    (charge,) = budgeted.charges
    assert charge.cost == (pytest.approx(plan.guarantee.epsilon, rel=1e-4), 1e-5)
    assert Accountant("zeroed").epsilon(charge.event, 1e-5) == pytest.approx(plan.guarantee.epsilon, rel=1e-4)
    for path in (tmp_path / "no", tmp_path / "nor this"):
        with pytest.raises(PrivacyError, match="at most the budget"):
            create_run(path, critic_plan(rounds=2, epsilon=3), DATA.person_ids, 600, budget=budget.path)
    large = Budget.create(tmp_path / "large", epsilon=5, delta=1e-5)
    full = create_run(tmp_path / "full", critic_plan(rounds=2, epsilon=3), DATA.person_ids, 600, budget=large.path)
    large.reserve("other", critic_plan(rounds=2, epsilon=4), DATA.person_ids, where="")
    with pytest.raises(PrivacyError, match="at most the budget"):
        run_rounds(full, InProcess(everybody), device=CPU)
    assert not full.ledger.exists()
    large.reserve("more", critic_plan(rounds=2, epsilon=1), DATA.person_ids, where="")
    marks = {budgeted.data for budgeted in again(large).runs}
    assert len(marks) == 1  # the same list of clients


def test_an_untrusted_server_keeps_no_budget(tmp_path: Path, budget: Budget):
    for plan in (small_plan(DATA, trust="untrusted-server"), critic_plan(rounds=2, trust="untrusted-server")):
        with pytest.raises(PlanError, match="each client has its own"):
            create_run(tmp_path / "run", plan, DATA.person_ids, 600, budget=budget.path)
    assert not (tmp_path / "run").exists()


def one(state: Path, plan: Plan, budget: Path | None, **options: Any) -> Client:
    return critic_clients(state, plan, budget=budget, **options)[NAME]


@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_a_client_enters_all_answers_that_a_plan_can_ask_for_and_counts_on_no_coins(tmp_path: Path, trust: str):
    rate = 0.5 if trust == "trusted-aggregator" else 1.0
    plan = critic_plan(rounds=3, trust=trust, rate=rate, epsilon=10)
    budget = Budget.create(tmp_path / "own", epsilon=most_spent(plan) * 1.2, delta=1e-5)
    ask = [asked(plan, step) for step in range(2)]
    for step in (0, 0, 1):  # it restarts, and is asked again
        assert "block" in one(tmp_path / "state", plan, budget.path).reply(ask[step])
    (budgeted,) = again(budget).runs
    relation = Accountant(plan.privacy.neighbours)
    assert budgeted.relation[:2] == (plan.privacy.neighbours, "person")
    most = relation.epsilon(Repeated(event=answer_event(plan), times=3), 1e-5)
    assert again(budget).spent() == pytest.approx(most, rel=1e-4)
    if rate < 1:
        assert most > plan.guarantee.epsilon * 1.05
    lost = one(tmp_path / "lost state", plan, budget.path)
    assert "at most the budget" in why_refused(lost, lost.reply(ask[0]))  # a second answer of the same person
    assert not [path for path in lost.home.iterdir() if path.is_dir()]  # no ledger, and no key


def test_the_one_round_is_in_a_clients_own_budget_too(tmp_path: Path):
    plan = small_plan(DATA, trust="untrusted-server", epsilon=10)
    budget = Budget.create(tmp_path / "own", epsilon=11, delta=1e-5)
    held = Round(create_run(tmp_path / "run", plan, DATA.person_ids, 600))
    reply = make_clients(tmp_path / "state", DATA, plan, budget=budget.path)[NAME].reply(held.question())
    assert "sums" in reply
    assert again(budget).spent() == pytest.approx(10, rel=1e-3)
    other = make_clients(tmp_path / "other", DATA, plan, budget=budget.path)[NAME]
    assert "at most the budget" in why_refused(other, other.reply(held.question()))
    gone = make_clients(tmp_path / "third", DATA, plan, budget=tmp_path / "no budget")[NAME]
    assert "a budget file" in why_refused(gone, gone.reply(held.question()))


def test_an_answer_from_other_data_is_entered_again(tmp_path: Path):
    plan = critic_plan(rounds=1, trust="untrusted-server", epsilon=1)
    budget, question = Budget.create(tmp_path / "own", epsilon=4, delta=1e-5), asked(plan)
    cap = {"cap": Cap(epsilon=4, delta=1e-5, neighbours="replace-one")}
    first = one(tmp_path / "state", plan, budget.path, **cap)
    assert "block" in first.reply(question)
    (kept,) = first.home.glob("*/critic.safetensors")
    kept.unlink()  # the answer is lost, and the data has changed
    (_, mine), *_ = [pair for pair in clients(people(seed=5)) if pair[0] == NAME]
    second = Client(NAME, mine, tmp_path / "state", trust="untrusted-server", budget=budget.path, **cap)
    assert "block" in second.reply(question)
    assert [budgeted.repeated for budgeted in again(budget).runs] == [
        0,
        1,
    ]  # its key was erased, so it is a run of its own too


def test_a_nodes_configuration_can_name_a_budget(tmp_path: Path, budget: Budget):
    (name, mine), *_ = clients(DATA)
    np.savez(tmp_path / "mine.npz", images=mine.images[:, 0], labels=mine.labels)
    config = {"client": name, "data": str(tmp_path / "mine.npz"), "classes": 3, "state": str(tmp_path / "state")}
    config |= {"trust": "trusted-aggregator", "epsilon": 10.0, "delta": 1e-5, "budget": str(budget.path)}
    plan = small_plan(DATA, epsilon=10)
    assert "sums" in client_of(config).reply(Round(create_run(tmp_path / "r", plan, DATA.person_ids, 60)).question())
    assert len(again(budget).runs) == 1


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["federate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line_takes_a_budget(tmp_path: Path, budget: Budget):
    names = tmp_path / "clients.txt"
    names.write_text("\n".join(f"client {index}" for index in range(40)))
    facts = ("--clients", names, "--classes", 3, "--image-size", 8, "--out", tmp_path / "run", "--budget", budget.path)
    assert "epsilon 8 of 11 at delta 1e-05 with this run" in call("plan", *facts, "--epsilon", 8, "--dry-run")
    call("plan", *facts, "--epsilon", 8)
    assert json.loads((tmp_path / "run/private/budget.json").read_text())["budget"] == str(budget.path.resolve())
    simulate = ("simulate", "--clients", 20, "--budget", budget.path)
    for preset in ("kernel", "ensemble"):
        assert "of 11" in call(*simulate, "--preset", preset, "--epsilon", 11, "--dry-run")
        with pytest.raises(PrivacyError, match="at most the budget"):
            call(*simulate, "--preset", preset, "--epsilon", 12, "--out", tmp_path / "no")
    with pytest.raises(PlanError, match="each client has its own"):
        call(*simulate, "--force-spend", "--trust", "untrusted-server", "--out", tmp_path / "no")
    with pytest.raises(RunError, match="a budget file"):
        call("simulate", "--clients", 20, "--budget", tmp_path / "nothing", "--out", tmp_path / "no")
    with pytest.raises(PlanError, match="--resume"):
        call("simulate", "--resume", tmp_path / "run", "--budget", budget.path)
    assert not (tmp_path / "no").exists()


def test_a_run_of_clients_resumes_in_its_budget_once(tmp_path: Path, budget: Budget):
    plan = critic_plan(rounds=2, epsilon=10)
    folder = create_run(tmp_path / "run", plan, DATA.person_ids, 600, budget=budget.path)

    class Dies(InProcess):
        def ask(self, *arguments: Any) -> None:
            raise KeyError

    with pytest.raises(KeyError):
        run_rounds(folder, Dies({}), device=CPU)
    assert len(again(budget).runs) == 1  # before anybody was asked
    federate(tmp_path / "run", plan, critic_clients(tmp_path / "state", plan), resume=True)
    assert len(again(budget).runs) == 1


def test_a_plan_that_states_less_than_it_costs_asks_nobody(tmp_path: Path):
    plan = small_plan(DATA, epsilon=10)
    plan = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, noise_std=plan.privacy.noise_std / 20))
    held = Round(create_run(tmp_path / "run", plan, DATA.person_ids, 600))
    with pytest.raises(PlanError, match="states less than it costs"), held.held():
        pytest.fail("asked")
    with pytest.raises(PlanError, match="states less than it costs"):
        held.release()
    assert not held.folder.ledger.exists()
