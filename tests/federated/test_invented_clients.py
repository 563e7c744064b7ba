"""A simulation that makes up its clients says so, wherever the unit is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from critic_rounds import CPU, critic_plan
from rounds import answer_all, make_clients, people, small_plan
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.errors import PlanError
from gswgan.federated.server import Round, create_run
from gswgan.federated.trust import for_invented_clients, trust_of
from gswgan.methods import read_plan
from gswgan.plan.plan import INVENTED
from gswgan.report.explain import explanation
from gswgan.report.release import read_release
from gswgan.report.words import numbers
from gswgan.run.loop import run

DATA = people()


def test_the_plan_of_invented_clients_has_their_unit_and_nothing_else_changes() -> None:
    for plan in (small_plan(DATA), critic_plan(rounds=2)):
        invented = for_invented_clients(plan)
        assert (invented.guarantee.unit, invented.privacy.unit) == ("invented client",) * 2
        assert trust_of(invented) == trust_of(plan)
        assert (invented.guarantee.epsilon, invented.total()) == (plan.guarantee.epsilon, plan.total())
        assert invented.size == plan.size.replace("person", "invented client") != plan.size
        assert read_plan(json.loads(json.dumps(invented.to_json()))) == invented
        assert plan.guarantee.unit == "person"


def test_statement_card_and_report_say_what_is_protected(tmp_path: Path) -> None:
    plan = for_invented_clients(small_plan(DATA, epsilon=10))
    held = Round(create_run(tmp_path / "run", plan, DATA.person_ids, 600))
    with held.held():
        answer_all(held, make_clients(tmp_path / "state", DATA, plan))
        held.release()
    assert run(held.folder, None, device=CPU)
    statement = json.loads(held.folder.privacy.read_text())
    assert {one["unit"] for one in (statement, *statement["guarantees"])} == {"invented client"}
    card = held.folder.card.read_text()
    assert INVENTED in card
    assert "person" not in card.replace(INVENTED, "").replace("A person may be in several groups", "")
    assert INVENTED in explanation(plan, statement)
    assert any(INVENTED in meaning for *_, meaning in numbers(read_release(held.folder.root)))


def test_the_command_line_says_it_before_anything_is_released() -> None:
    simulate = ["federate", "simulate", "--clients", "20", "--dry-run"]
    for preset in ("kernel", "ensemble"):
        told = CliRunner().invoke(app, [*simulate, "--preset", preset], catch_exceptions=False).output
        assert "one invented client zeroed" in told
        assert "20 invented clients" in told
        assert "person" not in told
    with pytest.raises(PlanError, match="data by person"):
        CliRunner().invoke(app, ["federate", "simulate", "--dry-run"], catch_exceptions=False)
