"""Kills over training, packing and federated rounds: real processes, SIGKILL, and what is left goes on.

Each life is a fork that does a piece of work (works.py) on a folder. It is killed up to three times, at a fault point
(fault_points.py) or at a random moment of its life; the last life comes to its end. Then, byte for byte, the result
must be that of work that was never killed (noise is reproducible here), every ledger, those of the clients too, must
have as many lines, and what stands under the name of a packed release must verify at any time.
test_killed_commands.py kills the command line itself. 200 kills are recorded in benchmarks/results/kills.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fault_points
import pytest
from fault_points import Faults
from works import CPU, ManyRounds, OneRound, Packing, RoundsAtSites, Training

from gswgan.release.verify import verify
from gswgan.run import checkpoint
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from public_shapes import photos

SHORT, LONG = 2, 12
"""Folders that are hurt in the default suite and in the slow one."""


def packing(place: Path) -> Packing:
    """Of a run whose noise is secret, or it would not be packed."""
    training = Training("kernel", 8)
    plan = dataclasses.replace(training.plan, insecure_reproducible=False)
    run(RunFolder.create(place / "finished", plan), training.data, device=CPU)
    return Packing(place / "finished")


WORKS: dict[str, Callable[[Path], Any]] = {
    "training, kernel": lambda place: Training("kernel", 8),
    "training, refined": lambda place: Training("refined", 8, public=photos(channels=1)),
    "training, ensemble": lambda place: Training("ensemble", 6, critics=8),
    "packing": packing,
    "a round, trusted aggregator": lambda place: OneRound("trusted-aggregator", 10),
    "a round, untrusted server": lambda place: OneRound("untrusted-server", 200),
    "Algorithm 2, trusted aggregator": lambda place: ManyRounds("trusted-aggregator", 10),
    "Algorithm 2, untrusted server": lambda place: ManyRounds("untrusted-server", 200),
    "refined over sites": lambda place: RoundsAtSites(),
}


def live(work: Any, root: Path, point: str | None, moment: float | None) -> bool:
    """One life in a process of its own; whether it was killed. A life that fails fails the test."""
    said = root.with_suffix(".said")
    child = os.fork()
    if child == 0:
        try:
            with Faults(point, fault_points.kill, sync=False).installed():
                work.live(root)
            os._exit(0)
        except BaseException:
            said.write_text(traceback.format_exc())
            os._exit(1)
    if moment is not None:
        time.sleep(moment)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, said.read_text()
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("folders", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_killed_work_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, folders: int
) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 0.0)
    monkeypatch.setattr(
        fault_points, "_is_ours", lambda path: str(path).startswith(str(tmp_path)) and not str(path).endswith(".said")
    )
    doing, draw = WORKS[work](tmp_path), random.Random(work)
    (tmp_path / "straight").mkdir()
    watch, began = Faults(sync=False), time.monotonic()
    with watch.installed():
        doing.live(tmp_path / "straight")
    life, expected, killed = time.monotonic() - began, doing.published(tmp_path / "straight"), 0
    for number in range(folders):
        root = tmp_path / f"hurt-{number}"
        root.mkdir()
        for turn in range(draw.randint(1, 3)):
            at_point = turn == 0 or draw.random() < 0.6
            point, moment = (draw.choice(watch.passed), None) if at_point else (None, draw.uniform(0, life))
            killed += live(doing, root, point, moment)
            assert not (root / "release").exists() or not verify(root / "release").findings
        assert not live(doing, root, None, None)
        assert doing.published(root) == expected
        assert not any(path.name in ("key.json", "journal.jsonl") for path in (root / "run").rglob("*"))
    assert killed >= folders  # the first death of each is at a point that the work passes
