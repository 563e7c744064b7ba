"""Runs that die while their folder is made, and ledgers that were cut short."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_points import Died, Faults, die, disk_full
from lives import (
    DATA,
    changes,
    go,
    plan_of,
    quick,  # noqa: F401
)

from gswgan.errors import GswganError, LedgerError, RunError
from gswgan.privacy import Gaussian, Ledger, Sampled
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder
from gswgan.run.retrain import retrain

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("retrained", [False, True])
def test_a_run_is_whole_or_can_be_made_again(tmp_path: Path, retrained: bool) -> None:
    """Death while the folder is made: it is no run yet, and the same command makes it."""
    first = RunFolder.create(tmp_path / "first", plan_of("kernel"))
    assert go(first)

    def make(root: Path) -> RunFolder:
        if retrained:
            return retrain(first.root, root, steps=2, device="cpu", seed=3)
        return RunFolder.create(root, plan_of("kernel"), source={"spec": "digits"})

    watch = Faults(sync=False)
    with watch.installed():
        make(tmp_path / "watched")
    points = changes(watch.passed)
    assert len(points) > 5
    for number, at in enumerate(points):
        root = tmp_path / f"run-{number}"
        with Faults(at, die, sync=False).installed(), pytest.raises(Died):
            make(root)
        folder = RunFolder(root)
        if folder.model.exists():
            assert retrained or folder.remembered_source() == {"spec": "digits"}
        elif retrained and list(folder.release.glob("*.jsonl")) + list(folder.release.glob("*.safetensors")):
            with pytest.raises(RunError, match="does not exist yet"):  # somebody's ledger: never written over
                make(root)
            continue
        else:
            folder = make(root)
        assert go(folder, data=None if retrained else DATA)


def test_a_folder_that_cannot_be_made_is_not_left_behind(tmp_path: Path) -> None:
    for at in ("open model.json.part before:1", "write model.json.part half:1", "mkdir release before:1"):
        with Faults(at, disk_full, sync=False).installed(), pytest.raises(RunError, match="No space left"):
            RunFolder.create(tmp_path / "run", plan_of("kernel"))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["photo.png", "release/ledger.jsonl", "private/key.json", "private/deep/file", "x.part"]
)
def test_a_folder_with_anything_in_it_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError, match="does not exist yet"):
        RunFolder.create(tmp_path / "run", plan_of("kernel"))
    assert sorted(tmp_path.rglob("*")) == before


EVENT = Gaussian(noise_std=1.0, sensitivity=2.0)
SAMPLED = Sampled(rate=0.1, event=EVENT)


def ledger_in(folder: Path) -> Ledger:
    return Ledger(folder / "ledger", observer="public", context="plan", journal=folder / "journal")


def test_a_line_that_was_only_announced_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead between journal and ledger: the line comes with its event and attempt; another sum is another attempt."""
    ledger_in(tmp_path).record("whole", SAMPLED, "sum")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_append_entry", lambda *_: die())
        with pytest.raises(Died):
            ledger_in(tmp_path).record("cut short", SAMPLED, "sum")
    assert [entry.name for entry in read_ledger(tmp_path / "ledger")[1]] == ["whole"]
    again = ledger_in(tmp_path)
    assert [(e.name, e.attempt, e.event) for e in read_ledger(tmp_path / "ledger")[1]][1:] == [
        ("cut short", 0, SAMPLED)
    ]
    assert again.record("cut short", SAMPLED, "sum") == 0
    assert len(again.entries) == 2
    assert again.record("cut short", SAMPLED, "another sum") == 1
    assert [entry.event for entry in ledger_in(tmp_path).entries] == [SAMPLED, SAMPLED, EVENT]


def test_a_ledger_that_lost_lines_has_them_again_from_the_journal(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    for step in range(4):
        ledger.record(f"step {step}", SAMPLED, f"sum {step}")
    whole = ledger.path.read_bytes()
    rows = whole.splitlines(keepends=True)
    for cut in (whole[:-1], whole[:-60], *(b"".join(rows[:kept]) for kept in range(len(rows)))):
        ledger.path.write_bytes(cut)
        assert len(ledger_in(tmp_path).entries) == 4
        assert ledger.path.read_bytes() == whole


def test_a_line_that_failed_is_not_taken_for_a_recorded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same object asked again after a full disk: the release needs its line all the same."""
    ledger = ledger_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_append", lambda *_: disk_full())
        with pytest.raises(OSError, match="No space"):
            ledger.record("a", EVENT, "sum")
    assert ledger.record("a", EVENT, "sum") == 0
    assert [entry.name for entry in read_ledger(ledger.path)[1]] == ["a"]
    assert len(ledger_in(tmp_path).entries) == 1


def test_a_journal_with_two_sums_for_one_draw_is_refused(tmp_path: Path) -> None:
    """Either could get the noise of the other. A second process is stopped before it writes such a journal."""
    one, two = ledger_in(tmp_path), ledger_in(tmp_path)
    one.record("a", EVENT, "sum of one")
    journal = (tmp_path / "journal").read_text()
    with pytest.raises(GswganError, match="One run at a time"):
        two.record("a", EVENT, "sum of two")
    assert (tmp_path / "journal").read_text() == journal
    (tmp_path / "journal").write_text(journal + journal.replace("sum of one", "sum of two"))
    with pytest.raises(LedgerError, match="two sums"):
        ledger_in(tmp_path)
