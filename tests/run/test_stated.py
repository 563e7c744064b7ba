"""A plan that states less than it costs releases nothing; where nobody can compute it, every statement says so."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_images, tiny_plan
from gswgan.cli.main import app
from gswgan.errors import LedgerError, PlanError, PrivacyError, RunError
from gswgan.plan.plan import Plan
from gswgan.privacy import Laplace
from gswgan.privacy.accountant import NOT_RECOMPUTED
from gswgan.privacy.ledger import Entry
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run import publish
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from gswgan.run.publish import TOLERANCE, check_stated

CPU = torch.device("cpu")
DATA = tiny_images(300)


def understated() -> Plan:
    """Noise that costs 970.6, and the word that it costs 1."""
    plan = tiny_plan(DATA, epsilon=1)
    assert plan.privacy is not None
    return dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, noise_std=0.05))


@pytest.fixture
def no_accountant(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "dp_accounting" else find(name, *rest)
    )
    return monkeypatch


def released(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.release.iterdir())


def test_a_plan_that_understates_itself_is_refused_before_anything_is_released(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", understated())
    for _ in range(2):  # train, resume
        with pytest.raises(PlanError, match=r"at least 9\d\d\.\d+ at delta 1e-05.*Nothing was released"):
            run(folder, DATA, device=CPU)
    assert released(folder) == ["model.json"]
    assert not folder.key.exists()


def test_what_another_machine_computed_is_not_refused_for_its_last_digits() -> None:
    plan = tiny_plan(DATA, epsilon=1)
    for factor, refused in ((1 - TOLERANCE / 2, False), (1 + TOLERANCE / 2, False), (1 - 3 * TOLERANCE, True)):
        other = dataclasses.replace(plan.guarantee, epsilon=plan.guarantee.epsilon * factor)
        changed = dataclasses.replace(plan, guarantee=other)
        if refused:
            with pytest.raises(PlanError, match="states less than it costs"):
                check_stated(changed)
        else:
            check_stated(changed)


def test_a_plan_cannot_name_another_accountant(tmp_path: Path) -> None:
    plan = tiny_plan(DATA, epsilon=1)
    with pytest.raises(PlanError, match="accountant"):
        dataclasses.replace(plan, guarantee=dataclasses.replace(plan.guarantee, accountant="somebody's word"))


def test_the_command_line_refuses_it_with_exit_code_2(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    plan = understated()
    facts = dataclasses.replace(plan.facts, class_names=("0", "1", "2"))
    dataclasses.replace(plan, facts=facts).save(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="states less than it costs") as wrong:  # the console prints it and exits with 2
        CliRunner().invoke(
            app,
            ["train", "--plan", str(tmp_path / "plan.json"), "--data", str(tmp_path / "data.npz"), "--classes", "3",
             "--out", str(tmp_path / "run"), "--device", "cpu"],
            catch_exceptions=False,
        )  # fmt: skip
    assert "Nothing was released" in str(wrong.value)
    assert not (tmp_path / "run").exists()


def test_without_an_accountant_every_statement_says_so_and_verify_computes_it(
    tmp_path: Path, no_accountant: pytest.MonkeyPatch
) -> None:
    honest = RunFolder.create(tmp_path / "honest", tiny_plan(DATA, epsilon=10))
    lying = RunFolder.create(tmp_path / "lying", understated())
    for folder in (honest, lying):  # nobody knows better there
        assert run(folder, DATA, device=CPU)
        statement = json.loads(folder.privacy.read_text())
        assert statement["accountant"].startswith(NOT_RECOMPUTED)
        assert statement["guarantees"][0]["accountant"] == statement["accountant"]
        assert folder.card.read_text().count(NOT_RECOMPUTED) == 2
        told = CliRunner().invoke(app, ["privacy", "explain", str(folder.root)], catch_exceptions=False)
        assert NOT_RECOMPUTED in told.output
    no_accountant.undo()
    pack(honest.root, tmp_path / "packed")
    verdict = verify(tmp_path / "packed")
    assert verdict.findings == ()
    assert verdict.cost is not None
    assert not verdict.cost.accountant.startswith(NOT_RECOMPUTED)  # it is recomputed now
    told = CliRunner().invoke(app, ["verify", str(tmp_path / "packed")], catch_exceptions=False)
    assert "epsilon was computed now" in told.output
    with pytest.raises(RunError, match=r"states epsilon 0\.9999\d*, where plan and ledger give 970\.59"):
        pack(lying.root, tmp_path / "no")
    with pytest.raises(PrivacyError, match="which its ledger costs"):
        CliRunner().invoke(app, ["privacy", "explain", str(lying.root)], catch_exceptions=False)


def test_a_ledger_with_a_release_that_the_plan_has_not_is_no_statement(tmp_path: Path, monkeypatch) -> None:
    """A stranger's ledger: its other releases would not be in the epsilon that a report shows."""
    plan = tiny_plan(tiny_images())
    folder = RunFolder.create(tmp_path / "run", plan)
    planned = [Entry(name=str(event), attempt=0, event=event) for event in plan.releases()]
    other = Entry(name="more", attempt=0, event=Laplace(scale=0.025, sensitivity=1.0))
    for entries, refused in ((planned, False), ([*planned, other], True)):
        monkeypatch.setattr(publish, "read_ledger", lambda path, entries=entries: ({}, entries, ""))
        with pytest.raises(LedgerError, match="those of the plan") if refused else contextlib.nullcontext():
            assert publish.cost_of_ledger(plan, folder) == plan.guarantee
