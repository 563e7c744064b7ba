"""Runs that are interrupted, meet another process or find a damaged checkpoint, and go on."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from lives import (  # noqa: F401
    DATA,
    KINDS,
    assert_counted,
    assert_ended,
    go,
    lines,
    place,
    plan_of,
    pressing,
    quick,
    released,
    straight,
)

from gswgan.cli import main
from gswgan.errors import RunError
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from processes import command_line

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_once_stops_after_the_step_and_twice_at_once(tmp_path: Path, place: Path, kind: str) -> None:
    expected = straight(kind, place)[0]
    once = RunFolder.create(tmp_path / "once", plan_of(kind))
    assert not go(once, progress=pressing(1, after=1))
    assert once.checkpoint.exists()
    twice = RunFolder.create(tmp_path / "twice", plan_of(kind))
    with pytest.raises(KeyboardInterrupt):
        go(twice, progress=pressing(2, after=1))
    for folder in (once, twice):
        assert not folder.is_finished
        assert go(folder)
        assert_ended(folder, expected)


def test_ctrl_c_in_the_warm_start_saves_it_and_stops(tmp_path: Path, place: Path) -> None:
    folder, notes = RunFolder.create(tmp_path / "run", plan_of("paper")), []

    def note(text: str) -> None:
        notes.append(text)
        if text.startswith("warm start"):
            os.kill(os.getpid(), signal.SIGINT)

    assert not go(folder, note=note)
    assert notes == ["warm start of the critics: 0 %", "stopping after this step (Ctrl-C again stops at once)"]
    assert stat.S_IMODE(folder.warm_start.stat().st_mode) == 0o600
    assert lines(folder) == []
    notes.clear()
    assert go(folder, note=notes.append)
    assert notes[0] == "warm start of the critics: 50 %"
    assert_ended(folder, straight("paper", place)[0])


def test_ctrl_c_between_the_check_and_the_end_of_a_step_is_not_lost(tmp_path: Path, monkeypatch) -> None:
    """It arrives while the step is being logged or saved: the run stops only where it has saved."""
    folder, saved = RunFolder.create(tmp_path / "run", plan_of("kernel")), []
    save = loop.Checkpoint.save
    monkeypatch.setattr(loop.Checkpoint, "is_due", lambda self: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(
        loop.Checkpoint, "save", lambda self, step, parts: (saved.append(step), save(self, step, parts))
    )
    assert not go(folder, progress=lambda done: None) or saved == [2]
    assert saved


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_on_the_command_line(tmp_path: Path, monkeypatch, capsys, times: int) -> None:
    plan_of("kernel").save(tmp_path / "plan.json")
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    real = loop.train

    def train(*given: object, after_step: Callable[[int], bool], **options: object) -> int:
        press = pressing(times, after=1)
        return real(*given, after_step=lambda done: (press(done), after_step(done))[1], **options)  # type: ignore[arg-type]

    common = ["--plan", tmp_path / "plan.json", "--data", tmp_path / "data.npz", "--classes", 3, "--device", "cpu"]
    arguments = ["gswgan", "train", *common, "--out", tmp_path / "run"]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train", train)
        with pytest.raises(SystemExit) as ended:
            main.run()
    said = capsys.readouterr()
    assert ended.value.code == 130
    assert "Traceback" not in said.err
    assert (f"gswgan train --resume {tmp_path / 'run'}" in said.out) == (times == 1)
    assert go(RunFolder(tmp_path / "run"))


def test_a_second_process_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    source = {"spec": str(tmp_path / "data.npz"), "classes": 3}
    folder = RunFolder.create(tmp_path / "run", plan_of("kernel"), source=source)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.root.rglob("*"))
    with folder.locked():
        ended = command_line("train", "--resume", folder.root, "--device", "cpu").wait()
        assert ended.returncode == 2, ended.stderr
        assert "a run that no other process is working on" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.root.rglob("*")) == before
    assert go(folder)


def test_a_run_that_ended_while_another_process_waited_is_not_run_again(tmp_path: Path, monkeypatch) -> None:
    """Whether it has ended is asked under the lock: its key is gone, and a new one would count all again."""
    folder = RunFolder.create(tmp_path / "run", plan_of("ensemble", secret=True))
    locked = RunFolder.locked

    def late(self: RunFolder) -> object:
        monkeypatch.setattr(RunFolder, "locked", locked)
        assert go(RunFolder(self.root))
        return locked(self)

    monkeypatch.setattr(RunFolder, "locked", late)
    with pytest.raises(RunError, match="has not ended"):
        go(folder)
    assert not folder.key.exists()


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Callable[[str], RunFolder]]:
    def make(kind: str) -> RunFolder:
        folder = RunFolder.create(tmp_path / f"stopped-{kind}", plan_of(kind))
        assert not go(folder, progress=pressing(1, after=1))
        return folder

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_checkpoint_is_refused_and_can_be_done_without(
    tmp_path: Path, place: Path, kind: str, stopped: Callable[[str], RunFolder], released: dict[str, set[str]]
) -> None:
    """Without it all steps are done again, with the same key: the same releases, and nothing is counted twice."""
    folder = stopped(kind)
    whole = folder.checkpoint.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[:size] for size in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1)] + [b"\x80\x04 a pickle"]
    for place_of_bit in rng.integers(0, len(whole), 25):
        turned = bytearray(whole)
        turned[place_of_bit] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(turned))
    for content in damaged:
        folder.checkpoint.write_bytes(content)
        with pytest.raises(RunError, match=r"checkpoint.*Remove it and resume"):
            go(folder)
    folder.checkpoint.unlink()
    assert go(folder)
    assert_counted(folder, released)
    assert all(len(arrays) == 1 for arrays in released.values())
    assert_ended(folder, straight(kind, place)[0])


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path, stopped: Callable[[str], RunFolder]) -> None:
    folder = stopped("kernel")
    other = RunFolder.create(tmp_path / "other", dataclasses.replace(plan_of("kernel"), seed=1))
    other.checkpoint.write_bytes(folder.checkpoint.read_bytes())
    with pytest.raises(RunError, match=r"of plan .*Remove it and resume"):
        go(other)
    other.checkpoint.unlink()
    assert go(other)


def test_power_loss_while_a_checkpoint_is_written(
    place: Path, stopped: Callable[[str], RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file aside may hold anything after a power loss; the checkpoint before it is whole. Neither stays."""
    monkeypatch.setattr(loop.Checkpoint, "is_due", lambda self: False)  # no later one replaces it
    for kind in ("kernel", "ensemble"):
        folder = stopped(kind)
        aside = folder.checkpoint.with_name(folder.checkpoint.name + ".part")
        aside.write_bytes(b"\0" * 5000)
        notes: list[str] = []
        assert go(folder, note=notes.append)
        assert "resuming after step 1" in notes
        assert_ended(folder, straight(kind, place)[0])
