"""`torchrun -m gswgan train`: real processes; the same run as without, a lost rank, another number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gswgan.privacy.ledger import read_ledger

TRAIN = [
    "train",
    "--data",
    "digits",
    "--preset",
    "ensemble-alone",
    "--shards",
    "20",
    "--insecure-reproducible",
    "--device",
    "cpu",
]
ALONE = [sys.executable, "-m", "gswgan"]
SPREAD = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "gswgan"]


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def published(run: Path) -> list[bytes]:
    return [(run / "release" / name).read_bytes() for name in ("ledger.jsonl", "generator.safetensors")]


def children(process: subprocess.Popen[bytes]) -> list[int]:
    """The ranks, in the order in which torchrun has started them."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
def test_two_ranks_are_one_run_and_a_killed_rank_loses_nothing(tmp_path: Path) -> None:
    alone, spread, broken = (tmp_path / name for name in ("alone", "spread", "broken"))
    assert call(*ALONE, *TRAIN, "--steps", "60", "--out", str(alone)).returncode == 0
    done = call(*SPREAD, *TRAIN, "--steps", "60", "--out", str(spread))
    assert done.returncode == 0, done.stderr
    assert published(spread) == published(alone)

    process = subprocess.Popen(
        [*SPREAD, *TRAIN, "--steps", "60", "--out", str(broken)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ledger = broken / "release" / "ledger.jsonl"
    while not (ledger.exists() and ledger.read_bytes().count(b"\n") > 10):
        assert process.poll() is None
        time.sleep(0.05)
    ranks = children(process)
    os.kill(ranks[1], signal.SIGKILL)  # in the middle of some step
    assert process.wait(120) != 0
    assert all(not Path(f"/proc/{pid}").exists() for pid in ranks)  # it ended, all of it
    assert not (broken / "release" / "generator.safetensors").exists()
    went_on = call(*ALONE, "train", "--resume", str(broken))  # with one rank
    assert went_on.returncode == 0, went_on.stderr
    assert published(broken) == published(alone)
    assert len(read_ledger(ledger)[1]) == 60


@pytest.mark.slow
def test_what_cannot_be_spread_is_refused_in_one_sentence(tmp_path: Path) -> None:
    found = call(*SPREAD, "train", "--data", "digits", "--out", str(tmp_path / "run"))
    assert found.returncode != 0
    assert "expected one process: only an ensemble of critics can be spread" in found.stderr
    assert "Leave torchrun out, or use --preset ensemble." in found.stderr
