"""A budget and its runs: dying, refused, repeating a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from budgets import CPU, DATA, a_run, again, enter

from conftest import tiny_baseline, tiny_plan
from gswgan.errors import PrivacyError, RunError
from gswgan.privacy.ledger import read_ledger
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run


def test_a_run_that_dies_keeps_its_place_and_is_not_counted_twice(budget: Budget, tmp_path: Path) -> None:
    folder = a_run(budget, tmp_path / "run", preset="ensemble", epsilon=6)

    class Died(BaseException):
        pass

    def die(done: int) -> None:
        assert len(again(budget).runs) == 1  # before the first step was over
        if done == 3:
            raise Died

    with pytest.raises(Died):
        run(folder, DATA, device=CPU, progress=die)
    assert again(budget).spent() == pytest.approx(6, rel=1e-3)  # all that it had planned
    with pytest.raises(PrivacyError, match="budget"):
        enter(budget, "other", epsilon=8)
    assert run(folder, DATA, device=CPU)
    assert [one.repeated for one in again(budget).runs] == [0]
    assert again(budget).spent() == pytest.approx(6, rel=1e-3)


def test_a_folder_that_was_begun_with_a_budget_can_be_made_without(budget: Budget, tmp_path: Path) -> None:
    folder = a_run(budget, tmp_path / "run", epsilon=1)
    folder.model.unlink()  # it died before it had its plan
    other = RunFolder.create(tmp_path / "run", tiny_plan(DATA, epsilon=1))
    assert not other.budget.exists()


def test_a_refused_run_has_released_nothing_and_cannot_go_on_without_its_budget(budget: Budget, tmp_path: Path) -> None:
    enter(budget, "a", epsilon=8)
    folder = a_run(budget, tmp_path / "run", epsilon=8)
    for _ in range(2):
        with pytest.raises(PrivacyError, match="budget"):
            run(folder, DATA, device=CPU)
    budget.path.rename(tmp_path / "moved")
    with pytest.raises(RunError, match="a budget file"):
        run(folder, DATA, device=CPU)
    assert sorted(path.name for path in folder.release.iterdir()) == ["model.json"]
    assert sorted(path.name for path in folder.private.iterdir()) == ["budget.json", "key.json", "lock", "owner.json"]


def test_a_run_asks_its_budget_before_it_repeats(tmp_path: Path) -> None:
    budget = Budget.create(tmp_path / "budget", epsilon=400, delta=1e-5, sampled_share=0.2)
    plan = tiny_baseline(DATA, "dp-sgd-gan", epsilon=6, delta=2e-6)
    folder = RunFolder.create(tmp_path / "run", plan, budget=budget.path)

    def stop(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, DATA, device=CPU, progress=stop)
    assert again(budget).words().endswith("other runs: epsilon 6 of 80 and delta 2e-06 of 2e-06")
    (journal,) = (tmp_path / "budget.runs").iterdir()
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    rows[1]["fingerprint"] = "0" * 128  # as if the machine had computed another sum the first time
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.checkpoint.unlink(missing_ok=True)
    assert run(folder, DATA, device=CPU)
    repeated = [entry for entry in read_ledger(folder.ledger)[1] if entry.attempt > 0]
    assert [one.repeated for one in again(budget).runs] == [len(repeated)]
    assert repeated[0].name == rows[1]["name"]
    (budgeted,) = again(budget).runs
    assert [charge.event for charge in budgeted.charges[1:]] == [
        entry.event for entry in repeated
    ]  # in the Gaussian part
    assert [charge.cost for charge in budgeted.charges[1:]] == [None] * len(repeated)
    assert json.loads(folder.privacy.read_text())["epsilon"] > 6.1
