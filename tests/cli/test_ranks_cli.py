"""`torchrun -m gswgan train`: real processes; the same run as without, a lost rank, another number of ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gswgan.privacy.ledger import read_ledger

TRAIN = [
    "train", "--data", "digits", "--preset", "ensemble-alone", "--critics", "20", "--insecure-reproducible", "--device",
    "cpu",
]  # fmt: skip
ALONE = [sys.executable, "-m", "gswgan"]
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
SPREAD = [*TWO_RANKS, "-m", "gswgan"]
DEADLY = [*TWO_RANKS, str(Path(__file__).with_name("killed_rank.py"))]


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def published(run: Path) -> list[bytes]:
    return [(run / "release" / name).read_bytes() for name in ("ledger.jsonl", "generator.safetensors")]


@pytest.mark.slow
def test_two_ranks_are_one_run_and_a_killed_rank_loses_nothing(tmp_path: Path) -> None:
    alone, spread, broken = (tmp_path / name for name in ("alone", "spread", "broken"))
    assert call(*ALONE, *TRAIN, "--steps", "60", "--out", str(alone)).returncode == 0
    done = call(*SPREAD, *TRAIN, "--steps", "60", "--out", str(spread))
    assert done.returncode == 0, done.stderr
    assert published(spread) == published(alone)

    ended = call(*DEADLY, *TRAIN, "--steps", "60", "--out", str(broken))
    assert ended.returncode != 0
    assert "SIGKILL" in ended.stderr, ended.stderr
    ranks = [int(path.read_text()) for path in tmp_path.glob("rank-*")]
    assert len(ranks) == 2
    assert all(not Path(f"/proc/{pid}").exists() for pid in ranks)  # it ended, all of it
    ledger = broken / "release" / "ledger.jsonl"
    assert len(read_ledger(ledger)[1]) == 10
    assert not (broken / "release" / "generator.safetensors").exists()
    went_on = call(*ALONE, "train", "--resume", str(broken))  # with one rank
    assert went_on.returncode == 0, went_on.stderr
    assert published(broken) == published(alone)
    assert len(read_ledger(ledger)[1]) == 60


@pytest.mark.slow
def test_what_cannot_be_spread_is_refused_in_one_sentence(tmp_path: Path) -> None:
    found = call(*SPREAD, "train", "--data", "digits", "--out", str(tmp_path / "run"))
    assert found.returncode != 0
    said = "expected one process: only an ensemble of critics, or the records of refined, can be spread"
    assert said in found.stderr
    assert "Leave torchrun out, or use --preset ensemble or refined." in found.stderr
