"""Commands that are killed with SIGKILL, up to three times each, and resumed: every one ends as it should.

Real processes go through the real command line. Runs of preset `kernel` are killed at fault points, first of all
inside the release; those of `ensemble` at random moments of their life, imports included. With
--insecure-reproducible a run must end with the weights, embedding and ledger, byte for byte, of a run that was never
killed; without it the ledger must count, and privacy.json state, at least what was planned. Either way key, journal and
checkpoint must be gone. `RUNS` says how long the trial is: 100 runs are recorded in benchmarks/results/survival.json.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from fault_points import start

from gswgan import load_data
from gswgan.methods import gswgan, make_plan
from gswgan.plan.facts import Facts
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder

RUNS = 3
IN_THE_RELEASE = (
    "open journal.jsonl after:1", "write journal.jsonl half:1", "sync journal.jsonl after:1",
    "open ledger.jsonl before:2", "write ledger.jsonl half:2", "sync ledger.jsonl after:2", "draw noise before:1",
    "draw noise after:1", "open embedding.safetensors.part after:1", "write embedding.safetensors.part half:1",
    "replace embedding.safetensors before:1",
)  # fmt: skip
"""The first write to the ledger is its header."""
LATER = (
    "write checkpoint.safetensors.part half:1", "replace checkpoint.safetensors after:1",
    "write model.json.part half:1", "write privacy.json.part half:1", "replace privacy.json after:1",
    "write generator.safetensors.part half:1", "replace generator.safetensors before:1",
    "replace generator.safetensors after:1", "overwrite key.json after:1", "unlink key.json after:1",
    "unlink journal.jsonl after:1",
)  # fmt: skip
"""Checkpoints, publication, clean-up."""


@dataclass(frozen=True, kw_only=True)
class Straight:
    """A plan and the run of it that was never killed."""

    plan: Path
    run: RunFolder
    seconds: float
    imports: float  # seconds of it before the run began


def straight_run(preset: str, reproducible: bool, coins: bool, place: Path) -> Straight:
    table = gswgan.load_preset(preset)
    if coins:  # digits have so few records that all critics would take part
        table["privacy"]["rate"] = 0.2
    options = {"steps": 150} if preset == "kernel" else {"steps": 16, "critics": 60}
    with mock.patch.object(gswgan, "load_preset", return_value=table):
        facts = Facts.of(load_data("digits"))
        make_plan(facts, preset=preset, insecure_reproducible=reproducible, **options).save(place / "plan.json")
    arguments = ["--plan", str(place / "plan.json"), "--data", "digits", "--device", "cpu"]
    began = time.monotonic()
    code, text, imports = start([*arguments, "--out", str(place / "straight")], place / "straight.log")
    assert code == 0, text
    run = RunFolder(place / "straight")
    return Straight(plan=place / "plan.json", run=run, seconds=time.monotonic() - began, imports=imports)


def live(folder: RunFolder, straight: Straight, point: str | None, draw: random.Random, last: bool) -> bool:
    """One process that begins the run or goes on with it; whether it was killed."""
    exists = folder.model.exists()
    arguments = ["--resume", str(folder.root)] if exists else ["--plan", str(straight.plan), "--out", str(folder.root)]
    arguments += [] if folder.source.exists() else ["--data", "digits"]
    at_random = point is None and not last
    begun = draw.random() < 0.5  # half over the whole life, half in the run
    span = straight.seconds - straight.imports if begun else straight.seconds
    code, text, _ = start(
        [*arguments, "--device", "cpu"], folder.root.with_suffix(".log"), point=point or "none",
        moment=draw.uniform(0, span) if at_random else None, begun=begun,
    )  # fmt: skip
    ended = code == 0 or (code == 2 and "a run that has not ended" in text and folder.is_finished)
    assert ended or code == -signal.SIGKILL, text
    return code == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("reproducible", [True, False])
@pytest.mark.parametrize(("preset", "coins"), [("kernel", False), ("ensemble", False), ("ensemble", True)])
def test_a_killed_command_ends_as_if_it_had_not_been(
    tmp_path: Path, preset: str, coins: bool, reproducible: bool
) -> None:
    straight = straight_run(preset, reproducible, coins, tmp_path)
    draw, killed = random.Random(f"{preset} {coins} {reproducible}"), 0
    for number in range(RUNS):
        folder = RunFolder(tmp_path / f"run-{number}")
        for turn in range(1 + number % 3):
            points = IN_THE_RELEASE if turn == 0 else LATER
            killed += live(folder, straight, draw.choice(points) if preset == "kernel" else None, draw, last=False)
        assert not live(folder, straight, None, draw, last=True)
        assert_as_it_should(folder, straight, reproducible)
        shutil.rmtree(folder.root)
    assert killed > 0


def assert_as_it_should(folder: RunFolder, straight: Straight, reproducible: bool) -> None:
    if reproducible:
        for name in ("generator", "embedding", "ledger"):
            expected, found = getattr(straight.run, name), getattr(folder, name)
            assert expected.exists() == found.exists()
            assert not expected.exists() or found.read_bytes() == expected.read_bytes(), name
    plan = folder.plan()
    assert len(read_ledger(folder.ledger)[1]) >= plan.privacy.releases
    assert json.loads(folder.privacy.read_text())["epsilon"] >= plan.guarantee.epsilon
    assert not any(path.exists() for path in (folder.key, folder.journal, folder.checkpoint))
    assert list(folder.root.rglob("*.part")) == []
