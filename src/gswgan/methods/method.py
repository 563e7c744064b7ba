"""What a method is: the same loop, ledger, accountant and release, with its own settings, releases and critic.

A method is one file that ends in a `Method`, and one line in `METHODS` (gswgan/methods/__init__.py). Everything
else (calibration, plan, resume, guarantee, card, report) follows from what is said here. docs/methods.md has an
example that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from gswgan.critics import Critic
from gswgan.critics.kernel.streaming import Workers
from gswgan.data import ImageStream
from gswgan.plan.plan import Draft, Facts, LowerBound, Plan
from gswgan.privacy import BatchStreams, Contribution, Event, GaussianMechanism, Ledger, Streams
from gswgan.privacy.claims import Claim
from gswgan.privacy.events import BaseEvent, Neighbours
from gswgan.run.budget_entry import Entered
from gswgan.run.folder import RunFolder

if TYPE_CHECKING:
    from gswgan.critics.ensemble.distributed import Ranks


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What was asked for. Public, all of it."""

    facts: Facts
    preset: str
    delta: float
    shards: int | None = None
    steps: int | None = None
    seed: int = 0
    device: str = "cpu"
    neighbours: Neighbours = "replace-one"


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a critic is made with: streams that may be published and streams that may not, and the ledger."""

    plan: Plan
    folder: RunFolder
    public: Streams
    secret: Streams
    device: torch.device
    note: Callable[[str], None]
    stopped: Callable[[], bool]
    entered: Entered | None = None  # of a run that has a budget
    stream: ImageStream | None = None  # data that stays in its files
    workers: Workers = 1  # that read it
    reading: Callable[[int, int], None] = lambda done, total: None
    ranks: Ranks | None = None  # the processes among which critics are spread

    @cached_property
    def ledger(self) -> Ledger:
        """The run's ledger. A critic that never asks for it can release nothing, and leaves none."""
        assert self.plan.guarantee is not None
        entered = self.entered
        return Ledger(
            self.folder.ledger,
            observer=self.plan.guarantee.observer,
            context=self.plan.digest(),
            journal=self.folder.journal if entered is None else entered.journal,
            before_repeat=(lambda entry: None) if entered is None else entered.before_repeat,
        )

    def mechanism(self, contribution: Contribution, event: BaseEvent) -> GaussianMechanism:
        """The way out for sums: it draws who takes part, records and adds the noise, with the run's key and ledger."""
        return GaussianMechanism(contribution=contribution, event=event, ledger=self.ledger, streams=self.secret)

    @property
    def batches(self) -> BatchStreams:
        """What a critic draws its own records with: all of the key that it gets."""
        return BatchStreams(self.secret)

    @property
    def shape(self) -> dict[str, int]:
        """Of the images, as critics take it."""
        facts = self.plan.facts
        return {"image_size": facts.image_size, "channels": facts.channels, "classes": facts.classes}

    @property
    def for_votes(self) -> dict[str, Any]:
        """What a critic of voting teachers is made with, beside its settings."""
        common = {"ledger": self.ledger, "public": self.public, "secret": self.secret, "device": self.device}
        return {**self.shape, **common}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train a generator on private images."""

    name: str
    about: str
    """What it is, on one line."""

    settings: Any
    """The type of `Plan.critic`, a frozen dataclass (or a union of some)."""

    presets: tuple[str, ...]
    """The first is the default."""

    draft: Callable[[PlanRequest, float], Draft]
    """All settings at this noise, in whatever unit: less than what it is calibrated to costs more."""

    total: Callable[[Draft, int], Event | None]
    """What the first so many steps release at the most. The ledger is checked against it. None: no guarantee."""

    critic: Callable[[Plan, RunContext], Critic]
    """The critic behind its barrier."""

    words: Callable[[Draft], str]
    """The critic on one line."""

    check: Callable[[Plan], None] = lambda plan: None
    """Raise a PlanError where the settings do not fit each other or the facts."""

    own_noise: Callable[[str], float | None] = lambda preset: None
    """The noise that a preset fixes; None where it is calibrated to epsilon."""

    claimed: Callable[[Draft, float], Claim | None] = lambda draft, delta: None
    """The figure that is stated elsewhere for such a run, at this delta. Not a guarantee."""

    lower_bound: Callable[[Draft], LowerBound | None] = lambda draft: None
    """What no analysis of such a run can prove less than, where that is known."""

    takes_shards: bool = False
    """Whether the number of its critics or teachers can be asked for."""

    void: str | None = None
    """Why no run has a guarantee, for the method that has none."""
