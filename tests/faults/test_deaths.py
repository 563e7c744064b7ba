"""Runs that die or meet a full disk at every operation on their folder, and go on."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import fault_points
import numpy as np
import pytest
from fault_points import Died, Faults, die, disk_full
from lives import (  # noqa: F401
    DATA,
    KINDS,
    assert_counted,
    assert_ended,
    changes,
    contents,
    finish,
    go,
    of_the_critic,
    place,
    plan_of,
    quick,
    released,
    straight,
)

from gswgan.cli import main
from gswgan.errors import RunError
from gswgan.privacy import Ledger
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder
from processes import Child

pytestmark = pytest.mark.usefixtures("quick")


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
    ended = Child(fault_points.child, at, ["train", *map(str, arguments)]).wait()
    assert ended.returncode == -signal.SIGKILL, ended.stderr
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
