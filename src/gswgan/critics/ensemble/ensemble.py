"""The ensemble of critics of GS-WGAN: K networks, one for each disjoint partition of the records.

In step t each critic takes part by its own secret coin (or exactly one is drawn, as the paper does); the mechanism
draws them as its event is accounted for. Participants learn on their own partition and compute their gradients on the
same fakes; the clipped gradients are summed, one Gaussian draw is added, and the sum is divided by the expected number
of participants, which is fixed.
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
from gswgan.critics.ensemble.warm_start import WarmStart, warm_up
from gswgan.data import ImageData
from gswgan.generators.generator import Generator
from gswgan.privacy import BatchStreams, Contribution, Streams
from gswgan.privacy.events import BaseEvent
from gswgan.privacy.mechanism import Answer, Block
from gswgan.privacy.participation import expected_participants, usual_participants

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""What the private log keeps of a step's gradient norms (the paper's figures 2 and A.1)."""


class Mechanism(Protocol):
    """A `GaussianMechanism`, or its stand-in where some of the critics are in other processes."""

    contribution: Contribution
    event: BaseEvent

    def participants(self, name: str, count: int) -> np.ndarray:
        """Return the indices in `count` of those who take part in the query of this name."""

    def answer(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Answer:
        """Return the noisy sum of the clipped blocks."""


class Ensemble(Learners, Critic):
    """K critics whose data only leaves through the mechanism, in `upstream_gradient`."""

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
            usual=usual_participants(mechanism.event, len(held)), note=note,
        )  # fmt: skip
        self._mechanism, self._warm_start = mechanism, warm_start
        self._step, self._participants = 0, np.empty(0, np.int64)
        self._norms: list[Tensor] = []

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Partition the records and run the warm start, unless a saved state will be loaded. Nothing leaves."""
        super().prepare(data, resumed=resumed)
        if self._warm_start is not None and not resumed and len(self.images):
            warm_up(self, self._warm_start)

    def learn(self, step: int, generator: Generator) -> None:
        """Draw who takes part in this step; participants make n_dis updates, each on its own partition."""
        self._step, drawn = step, self.draw_participants(step)
        own = drawn[(drawn >= self.held.start) & (drawn < self.held.stop)] - self.held.start
        self._participants = own[self.partitions.sizes[own] > 0]  # a critic without records adds nothing
        self._learn(self._participants, generator, step)

    def draw_participants(self, step: int) -> np.ndarray:
        """Draw who takes part: independent secret coins (Poisson), everyone, or the paper's k ~ U[1, K]."""
        return self._mechanism.participants(f"step {step}", self.count)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Return M_{sigma,C} of the sum of the participants' gradients on the same fakes: the step's one answer."""
        images = fake.detach()
        name, size = f"step {self._step}", {"slots": len(images), "width": images[0].numel()}
        while True:
            try:
                answer = self._mechanism.answer(name, self._blocks(images, labels), **size)
                break
            except torch.OutOfMemoryError as wrong:  # while it was summed: nothing was recorded, nothing has left
                self._halve(wrong)
        expected = expected_participants(self._mechanism.event, self.count)
        mean = torch.from_numpy(answer.sums / expected).to(torch.float32)
        return mean.view(images.shape).to(self.device)

    def metrics(self) -> dict[str, Any]:
        """Return the last step's number of participants, loss of the last chunk and quantiles of gradient norms."""
        found: dict[str, Any] = {"participants": len(self._participants), "critic_loss": float(self.loss.mean())}
        if self._norms:
            norms = torch.cat(self._norms).flatten().double().nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
            after = norms.clip(max=self._mechanism.contribution.clip_norm)
            found["norm_before"] = np.quantile(norms, QUANTILES).tolist()
            found["norm_after"] = np.quantile(after, QUANTILES).tolist()
        return found

    def _blocks(self, images: Tensor, labels: Tensor) -> Iterator[Block]:
        self._norms = []
        for members, real in chunks_of(self._participants, self.chunk):
            rows = self.input_gradients(members[:real], images, labels).flatten(2)
            self._norms.append(rows.norm(dim=2))
            yield rows, None
