"""The ensemble of critics: GS-WGAN proper. K networks, one for each disjoint shard of the data, as one batched model.

In step t each critic takes part by its own secret coin (or exactly one is drawn, as the paper does); the mechanism
draws them, as its event is accounted for. Participants learn on their own shard; all of them judge the same fakes;
their clipped gradients are summed, one Gaussian draw is added, and the sum is divided by the fixed number of
participants that is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble.learners import EnsembleSettings, Learners, chunks_of
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.warm_start import WarmStart
from gswgan.generators.generator import Generator
from gswgan.privacy import BatchStreams, Contribution, Streams
from gswgan.privacy.events import BaseEvent
from gswgan.privacy.mechanism import Block, Released
from gswgan.privacy.participation import expected_participants, usual_participants

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""What the private log keeps of a step's gradient norms (the paper's figures 2 and A.1)."""


class Mechanism(Protocol):
    """The way out: `GaussianMechanism`, or what stands in for it where some of the critics are elsewhere."""

    contribution: Contribution
    event: BaseEvent

    def participants(self, name: str, count: int) -> np.ndarray:
        """Who of `count` takes part in the release of this name."""

    def release(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Released:
        """The noisy sum of what the blocks have, clipped."""


class Ensemble(Learners, Critic):
    """K critics behind the barrier; `upstream_gradient` is the only way out."""

    def __init__(
        self,
        settings: EnsembleSettings,
        shape: CriticShape,
        mechanism: Mechanism,
        *,
        count: int,
        held: range | None = None,
        public: Streams,
        batches: BatchStreams,
        device: torch.device,
        warm_start: WarmStart | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        held = range(count) if held is None else held
        super().__init__(
            settings, shape, count=count, held=held, public=public, batches=batches, device=device,
            usual=usual_participants(mechanism.event, len(held)), warm_start=warm_start, note=note,
        )  # fmt: skip
        self._mechanism = mechanism
        self._step, self._participants = 0, np.empty(0, np.int64)
        self._norms: list[Tensor] = []

    def learn(self, step: int, generator: Generator) -> None:
        """Draw who takes part in this step; participants make n_dis updates, each on its own shard."""
        self._step, drawn = step, self.draw_participants(step)
        own = drawn[(drawn >= self.held.start) & (drawn < self.held.stop)] - self.held.start
        self._participants = own[self.shards.sizes[own] > 0]  # who has no records adds nothing
        self._learn(self._participants, generator, step)

    def draw_participants(self, step: int) -> np.ndarray:
        """Who takes part: independent secret coins (Poisson), everyone, or the paper's k ~ U[1, K]."""
        return self._mechanism.participants(f"step {step}", self.count)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """M_{sigma,C} of the sum of the participants' gradients on the same fakes: the step's one release."""
        images = fake.detach()
        name, size = f"step {self._step}", {"slots": len(images), "width": images[0].numel()}
        while True:
            try:
                released = self._mechanism.release(name, self._blocks(images, labels), **size)
                break
            except torch.OutOfMemoryError as wrong:  # while it was summed: nothing was recorded, nothing has left
                self._halve(wrong)
        expected = expected_participants(self._mechanism.event, self.count)
        mean = torch.from_numpy(released.sums / expected).to(torch.float32)
        return mean.view(images.shape).to(self._device)

    def metrics(self) -> dict[str, Any]:
        """The last step: how many took part, the loss of its last chunk, QUANTILES of the norms of their gradients."""
        found: dict[str, Any] = {"participants": len(self._participants), "critic_loss": float(self._loss.mean())}
        if self._norms:
            norms = torch.cat(self._norms).flatten().double().nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
            after = norms.clip(max=self._mechanism.contribution.clip_norm)
            found["norm_before"] = np.quantile(norms, QUANTILES).tolist()
            found["norm_after"] = np.quantile(after, QUANTILES).tolist()
        return found

    def _blocks(self, images: Tensor, labels: Tensor) -> Iterator[Block]:
        self._norms = []
        for members, real in chunks_of(self._participants, self.chunk):
            rows = self.judge(members[:real], images, labels).flatten(2)
            self._norms.append(rows.norm(dim=2))
            yield rows, None
