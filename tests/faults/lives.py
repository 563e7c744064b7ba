"""Tiny runs that die, meet a full disk or are interrupted, and go on: plans, fixtures and checks.

Deaths are simulated in this process (`Died` passes every handler, and nothing reaches the disk after it).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fault_points import Faults
from works import small_refined

from conftest import tiny_images, tiny_plan
from gswgan.errors import RunError
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import GaussianMechanism
from gswgan.privacy.accountant import Accountant
from gswgan.run import loop
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")
DATA = tiny_images(48)
KINDS = ("kernel", "ensemble", "paper", "refined")
_epsilon = functools.cache(Accountant.epsilon)
_accountant = functools.cache(Accountant)


@functools.cache
def plan_of(kind: str, *, secret: bool = False) -> Plan:
    """Two steps; `ensemble` with coins, `paper` with a warm start, `refined` with two steps in each of its stages."""
    if kind == "refined":
        made = make_plan(Facts.of(DATA), preset=kind, insecure_reproducible=not secret, steps=2)
        return small_refined(made, steps=2)
    options = {} if kind == "kernel" else {"critics": 6}
    plan = tiny_plan(DATA, preset=kind, insecure_reproducible=not secret, steps=2, **options)
    if kind == "ensemble":
        privacy = dataclasses.replace(plan.privacy, sampling="poisson", rate=0.5)
        stated = dataclasses.replace(plan.guarantee, sampling="poisson")
        plan = dataclasses.replace(plan, privacy=privacy, guarantee=stated)
    if kind != "kernel":
        warm_start = 2 if kind == "paper" else 0
        plan = dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, updates=1, warm_start=warm_start))
    return plan


@pytest.fixture
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
    own = {"ensemble": ("key", "ledger", "journal", "noise", "checkpoint", "partitions"), "paper": ("warm_start",)}
    own["refined"] = ("ledger", "noise", "write checkpoint.safetensors.part half")  # one in each step of each stage
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
    kept = {"lock", "data.json", "metrics.jsonl", "owner.json", "partitions.json", "source.json"}
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


def pressing(times: int, after: int) -> Callable[[int], None]:
    def progress(done: int) -> None:
        for _ in range(times if done == after else 0):
            os.kill(os.getpid(), signal.SIGINT)

    return progress
