"""Critics: the part that sees the data. What leaves a critic is sanitized, or computed from sanitized answers.

All critics have one interface, so the training loop is the same for each, also for critics on remote machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from gswgan.data import ImageData
from gswgan.generators.generator import Generator

__all__ = ["Critic"]


class Critic(Protocol):
    """The interface of Algorithm 1 to a critic, which may compute here or on remote machines."""

    @property
    def can_be_captured(self) -> bool:
        """Whether a gradient is computed on the device alone, so that a step can be captured as a CUDA graph."""

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Prepare the first step. Kernel: the one answer. Ensemble: partitions and warm start, and nothing leaves.

        `resumed`: a state will be loaded next, so no warm start is needed.
        """

    def learn(self, step: int, generator: Generator) -> None:
        """Learn from the private data against the generator's current fakes. The result stays private."""

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Return the sanitized gradient of the generator's loss with respect to each fake [B, c, h, w]."""

    def metrics(self) -> dict[str, Any]:
        """Return private figures for the private log."""

    def state(self) -> dict[str, Tensor]:
        """Return everything private that is needed to continue after a stop."""

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
