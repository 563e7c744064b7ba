"""Runs that die, meet a full disk or are interrupted at every operation on their folder, and go on.

Deaths are simulated in this process (`Died` passes every handler, and nothing reaches the disk after it); a few are
true.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import survival
from conftest import tiny_images, tiny_plan
from gswgan.cli import main
from gswgan.errors import GswganError, LedgerError, RunError
from gswgan.plan.plan import Plan
from gswgan.privacy import Gaussian, GaussianMechanism, Ledger, Sampled
from gswgan.privacy.accountant import Accountant
from gswgan.privacy.ledger import read_ledger
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from gswgan.run.retrain import retrain
from survival import Died, Faults, die, disk_full

CPU = torch.device("cpu")
DATA = tiny_images(48)
KINDS = ("kernel", "ensemble", "paper")
_epsilon = functools.cache(Accountant.epsilon)
_accountant = functools.cache(Accountant)


@functools.cache
def plan_of(kind: str, *, secret: bool = False) -> Plan:
    """Two steps; `ensemble` with coins, `paper` with a warm start."""
    options = {} if kind == "kernel" else {"shards": 6}
    plan = tiny_plan(DATA, preset=kind, insecure_reproducible=not secret, steps=2, **options)
    if kind == "ensemble":
        privacy = dataclasses.replace(plan.privacy, sampling="poisson", rate=0.5)
        stated = dataclasses.replace(plan.guarantee, sampling="poisson")
        plan = dataclasses.replace(plan, privacy=privacy, guarantee=stated)
    if kind != "kernel":
        warm_start = 2 if kind == "paper" else 0
        plan = dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, updates=1, warm_start=warm_start))
    return plan


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint and a log line after every step; epsilon is computed once."""
    monkeypatch.setattr(loop, "LOG_EVERY", 1)
    monkeypatch.setattr(loop.Checkpoint, "is_due", lambda self: True)
    monkeypatch.setattr("gswgan.privacy.filter.Accountant", _accountant)
    monkeypatch.setattr(Accountant, "epsilon", _epsilon)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The distinct arrays that left the mechanism, by the name of their release, over all lives of a run."""
    seen: dict[str, set[str]] = {}
    original = GaussianMechanism.answer

    def release(self: GaussianMechanism, name: str, *rest: object, **options: object) -> object:
        result = original(self, name, *rest, **options)  # type: ignore[arg-type]
        counts = b"" if result.counts is None else result.counts.tobytes()
        seen.setdefault(name, set()).add(hashlib.sha256(result.sums.tobytes() + counts).hexdigest())
        return result

    monkeypatch.setattr(GaussianMechanism, "answer", release)
    return seen


def go(folder: RunFolder, faults: Faults | None = None, data: object = DATA, **options: object) -> bool:
    with (faults or Faults(sync=False)).installed():
        return loop.run(folder, data, device=CPU, **options)  # type: ignore[arg-type]


@functools.cache
def straight(kind: str, place: Path) -> tuple[dict[str, bytes], list[str]]:
    """What the run that never died released, and the points it passed."""
    folder, faults = RunFolder.create(place / kind, plan_of(kind)), Faults(sync=False)
    assert go(folder, faults)
    return contents(folder), faults.passed


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("straight")


def contents(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.release.iterdir()}


def changes(points: list[str]) -> list[str]:
    """One point for each state that the disk can be in, and one on each side of the noise."""
    return [at for at in points if not at.startswith("sync") and (" before" not in at or "noise" in at)]


def of_the_critic(kind: str, points: list[str]) -> list[str]:
    """All points for the first kind; of the others what is their own: they are published and cleaned up alike."""
    own = {"ensemble": ("key", "ledger", "journal", "noise", "checkpoint", "shards"), "paper": ("warm_start",)}
    return [at for at in points if kind == "kernel" or any(name in at for name in own[kind])]


def lines(folder: RunFolder) -> list[str]:
    """Names of the releases in the whole lines of a ledger, torn or not."""
    text = folder.ledger.read_text() if folder.ledger.exists() else ""
    return [json.loads(line)["name"] for line in text.splitlines(keepends=True)[1:] if line.endswith("\n")]


def assert_counted(folder: RunFolder, released: dict[str, set[str]]) -> None:
    found = lines(folder)
    for name, arrays in released.items():
        assert found.count(name) >= len(arrays), name


def assert_ended(folder: RunFolder, expected: dict[str, bytes] | None = None) -> None:
    kept = {"lock", "data.json", "metrics.jsonl", "owner.json", "shards.json", "source.json"}
    assert {path.name for path in folder.private.iterdir()} <= kept
    for line in folder.metrics.read_text().splitlines():
        json.loads(line)
    if expected is not None:
        assert contents(folder) == expected


def finish(folder: RunFolder) -> None:
    """Resume to the end, which may have been reached."""
    try:
        assert go(folder)
    except RunError as said:
        assert "has not ended" in str(said)  # noqa: PT017
        assert folder.is_finished


# --- deaths


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_at_every_point_changes_nothing(
    tmp_path: Path, place: Path, kind: str, released: dict[str, set[str]]
) -> None:
    expected, points = straight(kind, place)
    points = of_the_critic(kind, changes(points))
    assert len(points) > 8
    for number, at in enumerate(points):
        released.clear()
        folder = RunFolder.create(tmp_path / str(number), plan_of(kind))
        with pytest.raises(Died):
            go(folder, Faults(at, die, sync=False))
        assert_counted(folder, released)
        finish(folder)
        assert_counted(folder, released)
        assert_ended(folder, expected)


@pytest.mark.parametrize("kind", ["kernel", "ensemble"])
def test_three_deaths_change_nothing_either(
    tmp_path: Path, place: Path, kind: str, released: dict[str, set[str]]
) -> None:
    expected, points = straight(kind, place)
    draw = random.Random(kind)
    for number in range(12):
        released.clear()
        folder = RunFolder.create(tmp_path / str(number), plan_of(kind))
        for _ in range(3):
            try:
                if go(folder, Faults(draw.choice(changes(points)), die, sync=False)):
                    break
            except (Died, RunError):
                assert_counted(folder, released)
        if not folder.is_finished or folder.key.exists():
            finish(folder)
        assert_counted(folder, released)
        finish(folder)
        assert_ended(folder, expected)


@pytest.mark.parametrize("kind", ["kernel", "ensemble"])
def test_with_a_secret_key_nothing_is_counted_less_than_released(
    tmp_path: Path, place: Path, kind: str, released: dict[str, set[str]]
) -> None:
    plan = plan_of(kind, secret=True)
    inside = [at for at in changes(straight(kind, place)[1]) if "ledger" in at or "journal" in at or "noise" in at]
    for number, at in enumerate(inside):
        released.clear()
        folder = RunFolder.create(tmp_path / str(number), plan)
        with pytest.raises(Died):
            go(folder, Faults(at, die, sync=False))
        assert_counted(folder, released)
        finish(folder)
        assert_counted(folder, released)
        assert_ended(folder)
        assert len(read_ledger(folder.ledger)[1]) == plan.privacy.releases  # the same release again, not another
        assert json.loads(folder.privacy.read_text())["epsilon"] >= plan.guarantee.epsilon


def test_the_check_finds_a_release_before_its_line(
    tmp_path: Path, place: Path, released: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that forgets is found by the same check."""
    monkeypatch.setattr(Ledger, "record", lambda self, name, event, fingerprint: 0)
    folder = RunFolder.create(tmp_path / "run", plan_of("kernel"))
    with pytest.raises(Died):
        go(folder, Faults("open embedding.safetensors.part after:1", die, sync=False))
    with pytest.raises(AssertionError, match="embedding"):
        assert_counted(folder, released)


@pytest.mark.parametrize("at", ["sync journal.jsonl after:1", "write ledger.jsonl half:2"])
def test_a_true_kill(tmp_path: Path, place: Path, at: str) -> None:
    """SIGKILL in a process of its own that goes through the command line."""
    plan_of("kernel").save(tmp_path / "plan.json")
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    out = tmp_path / "run"
    arguments = ["--plan", tmp_path / "plan.json", "--data", tmp_path / "data.npz", "--classes", 3, "--out", out]
    code, text, _ = survival.start([str(a) for a in arguments], tmp_path / "log", point=at)
    assert code == -signal.SIGKILL, text
    finish(RunFolder(out))
    expected = straight("kernel", place)[0]
    assert {name: contents(RunFolder(out))[name] for name in expected} == expected


def test_what_is_written_is_on_the_disk_before_it_counts(place: Path) -> None:
    """Power loss: a file is synced before its rename, its folder after; journal, ledger, noise come in this order."""
    for kind in KINDS:
        points = straight(kind, place)[1]
        renames = [(i, at.split()[1]) for i, at in enumerate(points) if at.startswith("replace") and " before" in at]
        assert len(renames) > 5
        for i, name in renames:
            assert points[i - 1].startswith(f"sync {name}.part after")
            assert points[i + 2].startswith(("sync release before", "sync private before"))
        for i in (i for i, at in enumerate(points) if at.startswith("draw noise before")):
            order = [at.split(":")[0] for at in points[:i] if at.startswith(("write", "sync")) and "jsonl after" in at]
            order = [at for at in order if "metrics" not in at]
            assert order[-4:] == [
                f"{do} {name}.jsonl after" for name in ("journal", "ledger") for do in ("write", "sync")
            ]


# --- a full disk, no permission


@pytest.mark.parametrize("kind", ["kernel", "ensemble"])
def test_a_full_disk_at_every_write_loses_nothing(
    tmp_path: Path, place: Path, kind: str, released: dict[str, set[str]]
) -> None:
    expected, points = straight(kind, place)
    writes = [at for at in points if " half" in at or (at.startswith("open") and " before" in at)]
    for number, at in enumerate(of_the_critic(kind, writes)):
        released.clear()
        folder = RunFolder.create(tmp_path / str(number), plan_of(kind))
        with pytest.raises(RunError, match=r"No space left on device.*Nothing that was released is lost.*--resume"):
            go(folder, Faults(at, disk_full, sync=False))
        assert_counted(folder, released)
        assert not list(folder.root.rglob("*.part")), "a full disk needs the space"
        assert go(folder)
        assert_counted(folder, released)
        assert_ended(folder, expected)


def no_permission() -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("act", "words"), [(disk_full, "No space left on device"), (no_permission, "Permission denied")]
)
def test_the_command_line_says_it_in_one_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    act: Callable[[], None],
    words: str,
) -> None:
    plan_of("kernel").save(tmp_path / "plan.json")
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    common = ["--plan", str(tmp_path / "plan.json"), "--data", str(tmp_path / "data.npz"), "--classes", "3"]
    for number, at in enumerate(("open ledger.jsonl before:1", "write checkpoint.safetensors.part half:1")):
        out = tmp_path / f"run-{number}"
        monkeypatch.setattr(sys, "argv", ["gswgan", "train", *common, "--out", str(out), "--device", "cpu"])
        with Faults(at, act, sync=False).installed(), pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert words in said
        assert f"--resume {out}" in said
        assert "Traceback" not in said
        assert said.count("gswgan: ") == 1
        monkeypatch.setattr(sys, "argv", ["gswgan", "train", "--resume", str(out), "--device", "cpu"])
        with Faults(sync=False).installed(), pytest.raises(SystemExit) as ended:
            main.run()
        assert ended.value.code == 0
        capsys.readouterr()


# --- Ctrl-C


def pressing(times: int, after: int) -> Callable[[int], None]:
    def progress(done: int) -> None:
        for _ in range(times if done == after else 0):
            os.kill(os.getpid(), signal.SIGINT)

    return progress


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
        os.kill(os.getpid(), signal.SIGINT)

    assert not go(folder, note=note)
    assert notes == ["warm start of the critics: 0 %"]
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


# --- two processes


def test_a_second_process_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    source = {"spec": str(tmp_path / "data.npz"), "classes": 3}
    folder = RunFolder.create(tmp_path / "run", plan_of("kernel"), source=source)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.root.rglob("*"))
    console_script = "from gswgan.cli.main import run; run()"
    command = [sys.executable, "-c", console_script, "train", "--resume", str(folder.root), "--device", "cpu"]
    with folder.locked():
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
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


# --- checkpoints


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


# --- the beginning of a run


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


# --- journal and ledger

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
