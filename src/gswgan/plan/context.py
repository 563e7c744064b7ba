"""What a critic is made with: plain paths, streams, the ledger, and how to report progress. No run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.critics.ensemble.distributed import Ranks
from gswgan.critics.ensemble.warm_start import Store
from gswgan.critics.kernel.streaming import Workers
from gswgan.data import ImageStream
from gswgan.privacy import BatchStreams, Contribution, GaussianMechanism, Ledger, Streams
from gswgan.privacy.events import BaseEvent


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Streams that may be published and streams that may not, the ledger, and places for files."""

    public: Streams
    secret: Streams
    device: torch.device
    note: Callable[[str], None]
    """Called with a line about what is going on; never anything private."""

    stopped: Callable[[], bool]
    open_ledger: Callable[[], Ledger]
    embedding: Path
    """Where a released embedding is kept."""

    store: Callable[[str], Store]
    """The private checkpoint of this name, bound to the plan."""

    write_private: Callable[[str, dict[str, Any]], None]
    """Write a private JSON file of this name."""

    public_images: Callable[[], np.ndarray]
    """Images that the plan states to be public, uint8 [n, channels, side, side]."""

    stream: ImageStream | None = None  # data that stays in its files
    workers: Workers = 1  # that read it
    reading: Callable[[int, int], None] = lambda done, total: None
    ranks: Ranks | None = None  # the processes among which critics are spread

    @cached_property
    def ledger(self) -> Ledger:
        """The run's ledger. A critic that never asks for it can release nothing, and leaves none."""
        return self.open_ledger()

    def mechanism(self, contribution: Contribution, event: BaseEvent) -> GaussianMechanism:
        """The way out for sums: it draws who takes part, records and adds the noise, with the run's key and ledger."""
        return GaussianMechanism(contribution=contribution, event=event, ledger=self.ledger, streams=self.secret)

    @property
    def batches(self) -> BatchStreams:
        """What a critic draws its own records with: all of the key that it gets."""
        return BatchStreams(self.secret)

    def for_votes(self, shape: dict[str, int]) -> dict[str, Any]:
        """What a critic of voting teachers is made with, beside its settings."""
        return {**shape, "ledger": self.ledger, "public": self.public, "secret": self.secret, "device": self.device}
