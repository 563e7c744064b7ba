"""Critics: the part that sees data. What leaves a critic is sanitized, or made from what was.

Both critics answer one interface, so the training loop (and, for remote critics, the federated one) is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from gswgan.data import ImageData
from gswgan.generators.generator import Generator

__all__ = ["Critic"]


class Critic(Protocol):
    """What Algorithm 1 asks of a critic. Who answers (here, or on remote machines) is its own affair."""

    @property
    def can_be_captured(self) -> bool:
        """Whether an answer happens on the device alone, so that a step can be recorded and replayed."""

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Before the first step. Kernel: the one release. Ensemble: shards and warm start, nothing leaves.

        `resumed`: a state will be loaded next, so there is no need to warm up.
        """

    def learn(self, step: int, generator: Generator) -> None:
        """Improve on the private data against the generator's current fakes. What happens here stays private."""

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The sanitized gradient of the generator's loss with respect to each fake [B, c, h, w]."""

    def metrics(self) -> dict[str, Any]:
        """Private figures for the private log."""

    def state(self) -> dict[str, Tensor]:
        """Everything private that is needed to go on after a stop."""

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
