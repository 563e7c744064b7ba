"""Teachers for G-PATE and PATE-GAN: discriminators on disjoint partitions, learning as the ensemble's critics do.

A record is in one partition and a partition has one teacher, so between neighbours (one record replaced) one teacher
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
    """K teachers, each trained on its own partition and public fakes. Only noisy counts of their votes leave."""

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
            note=lambda text: None,
        )  # fmt: skip

    def learn(self, step: int, generator: Generator) -> None:
        """Make n_dis updates of every teacher that has records, on its own partition."""
        self._learn(np.flatnonzero(self.partitions.sizes > 0), generator, step)

    def metrics(self) -> dict[str, Any]:
        """Return the loss of the last chunk of teachers: private."""
        return {"critic_loss": float(self.loss.mean())}

    @torch.no_grad()
    def ask(self, question: Callable[[Parameters, Buffers], Tensor]) -> Tensor:
        """Return every teacher's answer, [K, ...] in the order of the partitions: private."""
        answers = []
        for start in range(0, self.count, self.chunk):
            some = self.critics.copy(np.arange(start, min(start + self.chunk, self.count)))
            answers.append(question(some.params, some.buffers))
        return torch.cat(answers)
