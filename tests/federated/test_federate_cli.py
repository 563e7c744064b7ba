"""`gswgan federate`: the commands that need no Flower, and the simulation where it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from rounds import answer_all, flower, make_clients, make_round, people, simulate, small_plan
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.errors import GswganError
from gswgan.federated.memory import memories
from gswgan.federated.server import Round
from gswgan.run.folder import RunFolder
from gswgan.run.released import load


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["federate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_status_shows_each_client_against_its_cap(tmp_path: Path):
    data = people()
    plan = small_plan(data)
    held = make_round(tmp_path / "run", data, plan)
    answer_all(held, make_clients(held.folder.private / "clients", data, plan))
    shown = call("status", tmp_path / "run")
    assert all(name in shown for name in data.person_ids)
    assert f"{plan.guarantee.epsilon:.4g}" in shown
    one = make_clients(held.folder.private / "clients", data, plan)[data.person_ids[3]].home
    assert data.person_ids[3] in (shown := call("status", one))
    assert data.person_ids[4] not in shown
    result = CliRunner().invoke(app, ["federate", "status", str(tmp_path / "run"), "--json"])
    found = json.loads(result.stdout)["clients"]
    assert [row["client"] for row in found] == sorted(data.person_ids)
    assert {row["spent_epsilon"] <= row["cap_epsilon"] for row in found} == {True}
    assert {(row["answers"], row["delta"], row["neighbours"]) for row in found} == {
        (1, plan.guarantee.delta, plan.guarantee.neighbours)
    }
    with pytest.raises(GswganError, match="keeps its state"):
        call("status", tmp_path / "nothing")


def test_a_plan_for_real_clients_is_made_from_public_facts(tmp_path: Path):
    names = tmp_path / "clients.txt"
    names.write_text("\n".join(f"client {index}" for index in range(40)))
    facts = ("--clients", names, "--classes", 3, "--image-size", 8, "--out", tmp_path / "run")
    shown = call("plan", *facts, "--dry-run")
    assert "it takes" in shown
    assert "federated: 40 persons, 3 classes" in shown  # how many records they have is not known
    assert "records" not in shown
    assert not (tmp_path / "run").exists()
    call("plan", *facts, "--epsilon", 8, "--delta", 1e-4, "--deadline", 50)
    held = Round(RunFolder(tmp_path / "run"))
    assert len(held.roster) == 40
    assert held.plan.guarantee.epsilon <= 8
    assert (held.plan.guarantee.delta, held.plan.guarantee.neighbours) == (1e-4, "zeroed")


def test_the_dry_run_of_an_untrusted_server_says_how_many_clients_it_takes():
    shown = call("simulate", "--clients", 50, "--trust", "untrusted-server", "--dry-run")
    assert "observer: server" in shown
    assert "times as many" in shown
    assert "with a trusted aggregator" in shown


def test_the_dry_run_of_algorithm_2_says_who_takes_part_and_what_is_claimed():
    shown = call("simulate", "--clients", 50, "--preset", "ensemble", "--rate", 0.3, "--rounds", 4, "--dry-run")
    assert "each client in a round with rate 0.3, 4 rounds" in shown
    shown = call("simulate", "--clients", 50, "--preset", "paper-federated", "--rounds", 40, "--dry-run")
    assert "one client per round" in shown
    assert "claimed:" in shown
    assert "observer: server" in shown


def test_the_flower_app_names_what_exists():
    import tomllib

    folder = Path(call("app").strip())
    components = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    for reference in components.values():
        module, _, name = reference.partition(":")
        assert f"\n{name} = " in Path(importlib.util.find_spec(module).origin).read_text()


@pytest.mark.parametrize("arguments", [
    ("--data", "digits", "--dry-run"),  # no persons
    ("--clients", 50),  # nowhere to put it
    ("--clients", 1, "--dry-run"),
    ("--clients", 50, "--trust", "nobody", "--dry-run"),
    ("--clients", 50, "--min-records", 3, "--dry-run"),  # nobody in particular to choose
    ("--clients", 50, "--preset", "paper", "--dry-run"),  # a centralized preset
    ("--clients", 50, "--rounds", 3, "--dry-run"),  # the kernel critic takes one
    ("--clients", 50, "--preset", "ensemble", "--steps", 3, "--dry-run"),
    ("--clients", 50, "--preset", "ensemble", "--rate", 2, "--dry-run"),
    ("--clients", 50, "--preset", "paper-federated", "--trust", "trusted-aggregator", "--dry-run"),
])  # fmt: skip
def test_what_cannot_be_simulated_is_refused(arguments: tuple[object, ...]):
    with pytest.raises(GswganError):
        call("simulate", *arguments)


def test_without_flower_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flwr" else found(name))
    with pytest.raises(GswganError, match=r"gswgan\[federated\]"):
        call("simulate", "--clients", 12, "--epsilon", 100, "--steps", 2, "--out", tmp_path / "run")


def _simulated(root: Path, *arguments: str) -> Path:
    """A run that was simulated by the command: both observers are told, and samples can be drawn."""
    simulate(root, "--data", "digits", *arguments, "--force-spend", "--out", str(root / "run"))
    told = json.loads((root / "run/release/privacy.json").read_text())
    seen = {cost["observer"] for cost in told["guarantees"]} | {one["observer"] for one in told["open_to"]}
    assert seen == {"public", "server"}
    assert load(root / "run").sample(2)[0].shape == (2, 8, 8)
    return root / "run"


@pytest.mark.slow
@flower
@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_rounds_of_algorithm_2_are_simulated_and_leave_no_process(tmp_path: Path, trust: str):
    run = _simulated(tmp_path, "--preset", "ensemble", "--clients", "8", "--rounds", "3", "--trust", trust)
    rows = [json.loads(text) for text in (run / "private/answers.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows if "digest" in row] == [0] * 8 + [1] * 8 + [2] * 8
    assert all(len(memory.events) == 3 for memory in memories(run / "private/clients"))


@pytest.mark.slow
@flower
@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_a_simulation_ends_with_a_release_and_leaves_no_process(tmp_path: Path, trust: str):
    run = _simulated(tmp_path, "--clients", "6", "--epsilon", "300", "--steps", "2", "--trust", trust)
    assert len(json.loads((run / "private/closed.json").read_text())["answers"]) == 6
