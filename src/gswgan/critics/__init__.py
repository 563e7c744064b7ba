"""Critics: the part that sees data. What leaves a critic is sanitized, or made from what was.

All critics answer one interface, so the training loop (and, for remote critics, the federated one) is the same.
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
    """What Algorithm 1 asks of a critic, whether its answers are computed here or on remote machines."""

    @property
    def can_be_captured(self) -> bool:
        """Whether an answer happens on the device alone, so that a step can be recorded and replayed."""
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
        """Before the first step. Kernel: the one release. Ensemble: partitions and warm start, nothing leaves.

        `resumed`: a state will be loaded next, so there is no need to warm up.
        """

    @abstractmethod
    def learn(self, step: int, generator: Generator) -> None:
        """Improve on the private data against the generator's current fakes. What happens here stays private."""

    @abstractmethod
    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The sanitized gradient of the generator's loss with respect to each fake [B, c, h, w]."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Private figures for the private log."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything private that is needed to go on after a stop."""

    @abstractmethod
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
