from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from gswgan.privacy import Contribution, GaussianMechanism, Ledger, Streams
from gswgan.privacy.events import BaseEvent

SECRET = bytes(range(32))

settings.register_profile("fixed", derandomize=True, database=None)
settings.load_profile("fixed")

MakeMechanism = Callable[..., GaussianMechanism]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_mechanism(tmp_path: Path) -> MakeMechanism:
    """A mechanism with a ledger and a journal in a folder of its own; the same folder again resumes it."""

    def make(
        contribution: Contribution,
        event: BaseEvent,
        *,
        folder: str = "run",
        secret: bytes = SECRET,
        context: str = "plan",
        observer: str = "public",
    ) -> GaussianMechanism:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        ledger = Ledger(
            place / f"{observer}.jsonl", observer=observer, context=context, journal=place / f"{observer}.journal"
        )
        return GaussianMechanism(
            contribution=contribution, event=event, ledger=ledger, streams=Streams(secret, context)
        )

    return make
