"""A rank other than 0 of test_spread.py, in a process of its own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from gswgan.cli.ranks import hold
from gswgan.critics.ensemble.distributed import Ranks

LIMIT = timedelta(minutes=5)
"""After which a lost rank is noticed at the latest."""


def hold_some(store: Path, rank: int, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=LIMIT)
    ranks = Ranks(rank, world)
    hold(ranks)
    ranks.end()
