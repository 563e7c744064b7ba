"""Teachers for G-PATE and PATE-GAN: discriminators on disjoint shards, learning as the ensemble's critics do.

A record is in one shard and a shard has one teacher, so between neighbours (one record replaced) one teacher
differs: PATE's argument (Papernot et al. 2017). All teachers take part in every step; there is no sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.learners import EnsembleSettings, Learners
from gswgan.critics.ensemble.network import Buffers, CriticShape, Parameters
from gswgan.generators.generator import Generator
from gswgan.privacy import BatchStreams, Streams


class Teachers(Learners):
    """K teachers, each of which has seen its own shard and public fakes. Nothing leaves but by a mechanism of votes."""

    def __init__(
        self,
        settings: EnsembleSettings,
        shape: CriticShape,
        *,
        count: int,
        public: Streams,
        batches: BatchStreams,
        device: torch.device,
    ) -> None:
        super().__init__(
            settings, shape, count=count, held=range(count), usual=count, public=public, batches=batches, device=device,
            warm_start=None, note=lambda text: None,
        )  # fmt: skip

    def learn(self, step: int, generator: Generator) -> None:
        """Every teacher that has records makes n_dis updates on its own shard."""
        self._learn(np.flatnonzero(self.shards.sizes > 0), generator, step)

    def metrics(self) -> dict[str, Any]:
        """The loss of the last chunk of teachers; private."""
        return {"critic_loss": float(self._loss.mean())}

    @torch.no_grad()
    def ask(self, question: Callable[[Parameters, Buffers], Tensor]) -> Tensor:
        """Every teacher's answer, [K, ...] in the order of the shards: private."""
        answers = []
        for start in range(0, self.count, self.chunk):
            some = self.critics.copy(np.arange(start, min(start + self.chunk, self.count)))
            answers.append(question(some.params, some.buffers))
        return torch.cat(answers)
