"""Copies, moves and backups of a run folder that is in a budget: what they release is the same bytes, or counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from budgets import CPU, DATA, a_run, again

from conftest import changed_in_one_record
from gswgan.errors import PrivacyError, RunError
from gswgan.privacy import Accountant, Repeated
from gswgan.privacy.ledger import read_ledger
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run

OTHER = changed_in_one_record(DATA, 17)


def copy_of(folder: RunFolder, root: Path) -> RunFolder:
    shutil.copytree(folder.root, root)
    return RunFolder(root)


def stop_after(folder: RunFolder, steps: int) -> None:
    def stop(done: int) -> None:
        if done == steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, DATA, device=CPU, progress=stop)


def names(folder: RunFolder) -> list[tuple[str, int]]:
    return [(entry.name, entry.attempt) for entry in read_ledger(folder.ledger)[1]]


def test_six_copies_made_before_the_first_release_release_the_same_bytes(budget: Budget, tmp_path: Path) -> None:
    folder = a_run(budget, tmp_path / "run", epsilon=10)
    copies = [copy_of(folder, tmp_path / f"copy {number}") for number in range(6)]
    for one in copies:
        assert run(one, DATA, device=CPU)
    assert len({one.embedding.read_bytes() for one in copies}) == 1  # one draw of noise, for whoever collects them
    assert len({one.ledger.read_bytes() for one in copies}) == 1
    assert [one.repeated for one in again(budget).runs] == [0]
    assert again(budget).spent() == pytest.approx(10, rel=1e-4)


def test_a_copy_with_other_sums_is_counted_before_it_releases_or_refused(budget: Budget, tmp_path: Path) -> None:
    folder = a_run(budget, tmp_path / "run", epsilon=6)
    second, third = (copy_of(folder, tmp_path / name) for name in ("second", "third"))
    assert run(folder, DATA, device=CPU)
    assert run(second, OTHER, device=CPU)
    (event,) = {entry.event for entry in read_ledger(folder.ledger)[1]}
    twice = Accountant("replace-one").epsilon(Repeated(event=event, times=2), 1e-5)
    assert [one.repeated for one in again(budget).runs] == [1]
    assert again(budget).spent() == pytest.approx(twice)
    assert names(second) == [("embedding", 0), ("embedding", 1)]  # with what the first one released
    assert json.loads(second.privacy.read_text())["epsilon"] > twice
    written = {path.name for path in third.release.iterdir()}
    with pytest.raises(PrivacyError, match="The run stops before the release"):
        run(third, changed_in_one_record(DATA, 3), device=CPU)
    assert {path.name for path in third.release.iterdir()} == {*written, "ledger.jsonl"}
    assert names(third) == names(second)
    assert not np.array_equal(DATA.images, OTHER.images)


def test_a_copy_without_its_key_is_another_run(budget: Budget, tmp_path: Path) -> None:
    folder = a_run(budget, tmp_path / "run", epsilon=6)
    two = [copy_of(folder, tmp_path / name) for name in ("second", "third")]
    for one in two:
        one.key.unlink()
    assert run(folder, DATA, device=CPU)
    assert run(two[0], DATA, device=CPU)
    assert len(again(budget).runs) == 2
    with pytest.raises(PrivacyError, match="budget"):
        run(two[1], DATA, device=CPU)
    assert not two[1].ledger.exists()


def test_a_copy_without_the_name_of_its_budget_is_refused(budget: Budget, tmp_path: Path) -> None:
    """It has the key, and would release without being counted."""
    one = copy_of(a_run(budget, tmp_path / "run", epsilon=10), tmp_path / "copy")
    one.budget.unlink()
    with pytest.raises(RunError, match="budget that this run is counted in"):
        run(one, DATA, device=CPU)
    assert not one.embedding.exists()


def test_a_run_that_was_moved_resumes(budget: Budget, tmp_path: Path) -> None:
    folder = a_run(budget, tmp_path / "run", preset="ensemble", epsilon=6)
    stop_after(folder, 3)
    (tmp_path / "elsewhere").mkdir()
    moved = RunFolder(folder.root.rename(tmp_path / "elsewhere" / "run"))
    assert run(moved, DATA, device=CPU)
    assert names(moved) == [(f"step {step}", 0) for step in range(8)]
    assert [one.repeated for one in again(budget).runs] == [0]
    assert json.loads(moved.privacy.read_text())["epsilon"] == pytest.approx(6, rel=1e-3)


@pytest.mark.parametrize("begun", [False, True])
def test_a_backup_that_is_the_only_one_left_resumes(budget: Budget, tmp_path: Path, begun: bool) -> None:
    folder = a_run(budget, tmp_path / "run", preset="ensemble", epsilon=10)
    if begun:
        stop_after(folder, 2)
    shutil.copytree(folder.root, tmp_path / "backup")
    stop_after(folder, 5)  # goes on, and is lost with all that it released since
    shutil.rmtree(folder.root)
    shutil.copytree(tmp_path / "backup", folder.root)
    assert run(folder, DATA, device=CPU)
    assert names(folder) == [(f"step {step}", 0) for step in range(8)]
    assert [one.repeated for one in again(budget).runs] == [0]
    assert json.loads(folder.privacy.read_text())["epsilon"] == pytest.approx(10, rel=1e-3)


def test_a_run_whose_journal_is_lost_is_refused(budget: Budget, tmp_path: Path) -> None:
    folder = a_run(budget, tmp_path / "run", preset="ensemble", epsilon=6)
    stop_after(folder, 2)
    (journal,) = (tmp_path / "budget.runs").iterdir()
    aside = journal.rename(tmp_path / "aside")
    with pytest.raises(RunError, match="Restore it beside the budget"):
        run(folder, DATA, device=CPU)
    aside.rename(journal)
    assert run(folder, DATA, device=CPU)
