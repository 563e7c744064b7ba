"""What all ranks of test_distributed.py have, and a rank that holds its critics until it is told to end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from conftest import key_of, tiny_images
from gswgan.critics.ensemble.distributed import PartialSum, Ranks, worker_loop
from gswgan.critics.ensemble.ensemble import Ensemble, Mechanism
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape
from gswgan.privacy import BatchStreams, Contribution, Gaussian, Sampled, Streams

CPU = torch.device("cpu")
LIMIT = timedelta(minutes=5)
"""After which a lost rank is noticed at the latest: gloo mostly sees at once that a process has ended, not always."""

SETTINGS = EnsembleSettings(width=4, updates=2, learning_batch=4, learning_rate=1e-3)
COUNT, BATCH = 13, 5
CONTRIBUTION = Contribution(clip_norm=1.0, rows=BATCH)
GAUSSIAN = Gaussian(noise_std=1.0, sensitivity=CONTRIBUTION.sensitivity("replace-one"))
EVENT = Sampled(rate=0.4, event=GAUSSIAN)


class Fakes:
    """A generator that is public and fixed: its fakes depend on the index alone."""

    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        rng = Streams.public(5).generator("fakes", *index)
        images = torch.from_numpy(rng.random((count, 1, 8, 8), dtype=np.float32))
        return images, torch.from_numpy(rng.permutation(np.resize(np.arange(3), count)))


def part(mechanism: Mechanism, held: range | None = None) -> Ensemble:
    return Ensemble(
        SETTINGS, CriticShape(image_size=8, channels=1, classes=3, width=4), mechanism, count=COUNT, held=held,
        public=Streams.public(0), batches=BatchStreams(key_of(3)), device=CPU,
    )  # fmt: skip


def hold_critics(store: Path, rank: int, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=LIMIT)
    ranks = Ranks(rank, world)
    worker_loop(ranks, part(PartialSum(ranks, CPU, CONTRIBUTION, EVENT), ranks.held(COUNT)), tiny_images(), CPU)
    ranks.end()
