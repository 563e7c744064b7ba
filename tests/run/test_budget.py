"""The budget never says too little: refused runs, runs side by side, runs that die, releases that are repeated."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from budgets import DATA, again, enter
from typer.testing import CliRunner

from conftest import changed_in_one_record, tiny_baseline, tiny_plan
from gswgan.cli.main import app
from gswgan.data import make_image_data
from gswgan.errors import LedgerError, PlanError, PrivacyError, RunError
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, Composed, Gaussian, Ledger
from gswgan.privacy.ledger import Entry, chained_line, read_chain
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder
from processes import Child, command_line


def test_costs_are_composed_not_added_up(budget: Budget) -> None:
    assert budget.spent() == 0
    for name in "ab":
        enter(budget, name, epsilon=5)
    event = tiny_plan(DATA, epsilon=5).total()
    together = Accountant("replace-one").epsilon(Composed(events=(event, event)), 1e-5)
    assert again(budget).spent() == pytest.approx(together)
    assert 5.5 < together < 8
    assert [again(budget).alone(one) for one in again(budget).runs] == ["5 at delta 1e-05"] * 2


def test_the_run_that_would_go_over_is_refused_and_not_entered(budget: Budget) -> None:
    enter(budget, "a", epsilon=5)
    enter(budget, "b", epsilon=5)
    before = budget.path.read_bytes()
    for attempt in (lambda: enter(budget, "c", epsilon=8), lambda: again(budget).check(tiny_plan(DATA, epsilon=8))):
        with pytest.raises(PrivacyError, match=r"at most the budget of 10 .*Nothing was released"):
            attempt()
    assert budget.path.read_bytes() == before
    enter(budget, "d", epsilon=1)  # a smaller one has room
    assert len(again(budget).runs) == 3
    assert again(budget).spent() <= 10


def test_the_whole_budget_can_be_spent_and_no_more(budget: Budget) -> None:
    enter(budget, "a", epsilon=10)
    with pytest.raises(PrivacyError, match="for 1 run"):
        enter(budget, "b", epsilon=1)


def test_a_run_is_entered_once(budget: Budget) -> None:
    for _ in range(3):
        enter(again(budget), "a", epsilon=6)
    assert len(again(budget).runs) == 1


def test_the_budget_has_its_own_delta(tmp_path: Path) -> None:
    strict = Budget.create(tmp_path / "strict", epsilon=10, delta=1e-8)
    with pytest.raises(PrivacyError, match="at delta 1e-08"):
        enter(strict, "a", epsilon=10, delta=1e-5)


def test_a_budget_of_the_earlier_format_is_refused_in_words(budget: Budget) -> None:
    (header,), _ = read_chain(budget.path)
    budget.path.write_text(chained_line({**header, "format_version": 1}, "")[0])
    with pytest.raises(RunError, match="Make a new one with what you allow from now on"):
        again(budget)
    budget.path.write_text(chained_line({**header, "format_version": 3}, "")[0])
    with pytest.raises(LedgerError, match="format_version 3"):
        again(budget)


def test_other_data_is_marked_and_still_counted(budget: Budget) -> None:
    enter(budget, "a", epsilon=6)
    enter(budget, "b", changed_in_one_record(DATA, 17), epsilon=1)
    enter(budget, "c", epsilon=1)
    marks = [one.data for one in again(budget).runs]
    assert marks[0] == marks[2] != marks[1]
    with pytest.raises(PrivacyError, match="budget"):
        enter(budget, "d", changed_in_one_record(DATA, 17), epsilon=8)


def test_what_has_no_guarantee_or_another_unit_has_no_place(budget: Budget) -> None:
    for plan in (tiny_baseline(DATA, "gan"), tiny_plan(DATA, insecure_reproducible=True)):
        with pytest.raises(PrivacyError, match="a run with a guarantee"):
            budget.reserve("a", plan, DATA, where="")
    enter(budget, "a", epsilon=1)
    people = make_image_data(DATA.images[:, 0], DATA.labels, classes=3, persons=np.arange(300) // 3, name="people")
    with pytest.raises(PrivacyError, match="different units"):
        enter(budget, "b", people, epsilon=1)


def test_a_damaged_budget_is_refused_and_a_torn_line_is_dropped(budget: Budget) -> None:
    enter(budget, "a", epsilon=1)
    enter(budget, "b", epsilon=1)
    whole = budget.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    budget.path.write_bytes(whole + lines[-1][:40])
    assert len(again(budget).runs) == 2
    assert budget.path.read_bytes() == whole
    for damaged in (whole.replace(b'"a"', b'"c"', 1), lines[0] + lines[2], b"", b"[]\n", whole + lines[-1]):
        budget.path.write_bytes(damaged)
        with pytest.raises(LedgerError, match="Restore it"):
            again(budget)


def test_a_budget_is_private_and_its_budget_is_fixed(budget: Budget) -> None:
    assert stat.S_IMODE(budget.path.stat().st_mode) == 0o600
    with pytest.raises(RunError, match="cannot be changed"):
        Budget.create(budget.path, epsilon=20, delta=1e-5)
    with pytest.raises(RunError, match="Make the folder"):
        Budget.create(budget.path.parent / "nowhere" / "budget", epsilon=20, delta=1e-5)
    with pytest.raises(RunError, match="gswgan budget"):
        Budget(budget.path.with_name("nowhere"))


def test_a_repeated_release_is_entered_before_it_happens_or_refused(budget: Budget, tmp_path: Path) -> None:
    enter(budget, "a", epsilon=9)
    small, large = (Gaussian(noise_std=std, sensitivity=2.0) for std in (20.0, 2.0))
    told: list[Entry] = []

    def before(entry: Entry) -> None:
        told.append(entry)
        again(budget).add_repeat("a", entry)

    ledger = Ledger(
        tmp_path / "ledger", observer="public", context="c", journal=tmp_path / "journal", before_repeat=before
    )
    assert [ledger.record("step 0", small, fingerprint) for fingerprint in ("x", "x", "y")] == [0, 0, 1]
    assert [(entry.name, entry.attempt) for entry in told] == [("step 0", 1)]
    assert [one.repeated for one in again(budget).runs] == [1]
    spent = again(budget).spent()
    assert 9 < spent < 10
    again(budget).add_repeat("a", told[0])  # the same attempt of the same release: the run died before it was recorded
    assert again(budget).spent() == spent
    ledger.record("step 1", large, "x")
    written = (tmp_path / "ledger").read_bytes(), (tmp_path / "journal").read_bytes()
    with pytest.raises(PrivacyError, match="The run stops before the release"):
        ledger.record("step 1", large, "y")
    assert ((tmp_path / "ledger").read_bytes(), (tmp_path / "journal").read_bytes()) == written
    assert again(budget).spent() == spent


def call(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_line_makes_keeps_and_shows_a_budget(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    file, train = tmp_path / "budget", ("train", "--data", tmp_path / "data.npz", "--classes", 3, "--device", "cpu")
    assert "epsilon 10 at delta 1e-05" in call("budget", file, "--epsilon", 10, "--delta", 1e-5)
    small = (*train, "--steps", 20, "--epsilon", 6, "--budget", file)
    assert "budget:    epsilon 6 of 10" in call(*small, "--dry-run")
    assert "used:      nothing" in call("budget", file)
    call(*small, "--out", tmp_path / "run")
    text = call("budget", file)
    assert "used:      epsilon 6 of 10 at delta 1e-05 (one record replaced; observer: public)" in text
    with pytest.raises(PrivacyError, match="budget"):
        call(*train, "--steps", 20, "--epsilon", 8, "--budget", file, "--out", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(PlanError, match="--budget"):
        call("train", "--from", tmp_path / "run", "--budget", file)
    for half in (("--epsilon", 10), ("--sampled-share", 0.5)):
        with pytest.raises(PlanError, match="both"):
            call("budget", tmp_path / "new", *half)
    with pytest.raises(PrivacyError, match="from 0 to 1"):
        call("budget", tmp_path / "new", "--epsilon", 10, "--delta", 1e-5, "--sampled-share", 1.5)
    shared = ("--epsilon", 10, "--delta", 1e-5, "--sampled-share", 0.25)
    assert "epsilon 10 at delta 1e-05" in call("budget", tmp_path / "new", *shared)
    text = call(*train, "--steps", 20, "--epsilon", 6, "--budget", tmp_path / "new", "--dry-run")
    assert "plain Gaussian releases: epsilon 6.086 of 7.5 at delta 7.5e-06; other runs: epsilon 0 of 2.5" in text


def test_a_plan_with_another_noise_is_another_cost(budget: Budget) -> None:
    plan = tiny_plan(DATA, epsilon=1)
    loud = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, noise_std=plan.privacy.noise_std / 100))
    with pytest.raises(PrivacyError, match="budget"):  # whatever its guarantee states
        budget.reserve("a", loud, DATA, where="")


def race(path: Path, plan: Plan) -> None:
    """Six processes reserve at once; prints their exit codes."""
    budget = Budget(path)
    budget.check(plan)  # all that takes long is done: the children begin at once
    ready, go = os.pipe()
    for number in range(6):
        if os.fork() == 0:
            os.close(go)
            os.read(ready, 1)  # until the parent closes its end
            try:
                budget.reserve(str(number), plan, DATA, where="")
            except PrivacyError:
                os._exit(3)
            os._exit(0)
    os.close(go)
    print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(6)))


def test_of_six_processes_at_once_as_many_enter_as_there_is_room_for(budget: Budget) -> None:
    done = Child(race, budget.path, tiny_plan(DATA, epsilon=4)).wait()
    assert done.returncode == 0, done.stderr
    event = tiny_plan(DATA, epsilon=4).total()
    costs = [Accountant("replace-one").epsilon(Composed(events=(event,) * n), 1e-5) for n in range(1, 7)]
    room = sum(cost <= 10 for cost in costs)
    assert 2 <= room <= 5
    assert json.loads(done.stdout) == [0] * room + [3] * (6 - room)
    assert len(again(budget).runs) == room


def test_two_trainings_at_once_and_only_one_may_run(budget: Budget, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    command = ("train", "--data", tmp_path / "data.npz", "--classes", 3, "--steps", 2, "--epsilon", 8)
    command += ("--budget", budget.path, "--device", "cpu")
    ended = [child.wait() for child in [command_line(*command, "--out", tmp_path / name) for name in ("one", "two")]]
    assert sorted(done.returncode for done in ended) == [0, 2], ended
    assert "at most the budget of 10" in "".join(done.stderr for done in ended)
    finished = [name for name in ("one", "two") if RunFolder(tmp_path / name).is_finished]
    ledgers = [name for name in ("one", "two") if RunFolder(tmp_path / name).ledger.exists()]
    assert len(finished) == 1
    assert ledgers == finished
    assert [Path(one.where).name for one in again(budget).runs] == finished
