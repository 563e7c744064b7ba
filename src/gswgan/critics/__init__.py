"""Critics: the part that sees the data. What leaves a critic is sanitized, or computed from sanitized answers.

All critics have one interface, so the training loop is the same for each, also for critics on remote machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gswgan.data import ImageData
from gswgan.generators.generator import Generator

__all__ = ["Critic"]


class Critic(ABC):
    """The interface of Algorithm 1 to a critic, which may compute here or on remote machines."""

    @property
    def can_be_captured(self) -> bool:
        """Whether a gradient is computed on the device alone, so that a step can be captured as a CUDA graph."""
        return False

    @property
    def finished(self) -> bool:
        """Whether all planned releases are made before the last step: the run ends here."""
        return False

    @property
    def moves_generator(self) -> bool:
        """Whether `learn` has trained the generator already, so that there is nothing left to do in this step."""
        return False

    @abstractmethod
    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Prepare the first step. Kernel: the one answer. Ensemble: partitions and warm start, and nothing leaves.

        `resumed`: a state will be loaded next, so no warm start is needed.
        """

    @abstractmethod
    def learn(self, step: int, generator: Generator) -> None:
        """Learn from the private data against the generator's current fakes. The result stays private."""

    @abstractmethod
    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Return the sanitized gradient of the generator's loss with respect to each fake [B, c, h, w]."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return private figures for the private log."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return everything private that is needed to continue after a stop."""

    @abstractmethod
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
