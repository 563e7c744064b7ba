"""The plan: everything a run will do, resolved before it starts from public facts alone.

A plan can be printed, saved and run elsewhere (without dp-accounting). Its digest names the run: key and ledger
are bound to it, so one key can never serve two plans. A saved plan carries it: a damaged or edited one is refused.
A plan does not know its method: what depends on it, the settings of its critic answer (`CriticSettings`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch

from gswgan.critics import Critic
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.embedding import PlannedEmbedding
from gswgan.critics.kernel.features import KernelSettings
from gswgan.data import ImageData
from gswgan.errors import PlanError, PrivacyError, RunError
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.plan.context import RunContext
from gswgan.plan.facts import Facts, PublicFacts
from gswgan.plan.settings import check_delta, check_ranges, to_plain
from gswgan.privacy import Accountant, Contribution, DrawnOne, Event, Gaussian, PrivacyCost, Repeated, Sampled
from gswgan.privacy.claims import Claim
from gswgan.privacy.events import BaseEvent, Neighbours, Sampling, sampling_of, tally, unsampled
from gswgan.privacy.storage import named_by_user, write_durably
from gswgan.ranges import BELOW_ONE, OMIT_DEFAULT, Batch, Range, Seed, Steps

FORMAT_VERSION = 6

INSECURE = "made with --insecure-reproducible: the noise can be recomputed from the seed, so there is NO guarantee"

INVENTED = "An invented client is a group of records that a simulation made up: no person, and no holder of data."


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """Everything that the guarantee of noisy sums depends on, and nothing else."""

    delta: float
    noise_std: float
    clip_norm: float
    rows: Batch = 1
    counts: bool = False
    releases: Steps = 1
    sampling: Sampling = "all"
    rate: float = 1.0
    critics: Annotated[int | None, Range(1, 2**32)] = None
    neighbours: Neighbours = "replace-one"
    unit: Literal["record", "person", "invented client"] = "record"
    observer: Literal["public", "server"] = "public"

    def __post_init__(self) -> None:
        check_ranges(self)
        check_delta(self.delta)
        if self.sampling == "one" and self.critics is None:
            raise PlanError("critics", None, "a number of critics to draw one from")
        _ = self.event  # made once: noise, bound and rate are checked by what they are used for

    @property
    def contribution(self) -> Contribution:
        """The most that one critic, record or person adds to a release."""
        return Contribution(clip_norm=self.clip_norm, rows=self.rows, counts=self.counts)

    @property
    def event(self) -> BaseEvent:
        """One release."""
        sensitivity = self.contribution.sensitivity(self.neighbours)
        gaussian = Gaussian(noise_std=self.noise_std, sensitivity=sensitivity, neighbours=self.neighbours)
        if self.sampling == "one":
            return DrawnOne(count=self.critics or 1, event=gaussian)
        return Sampled(rate=self.rate, event=gaussian) if self.sampling == "poisson" else gaussian

    def total(self, releases: int | None = None) -> Event:
        """The whole run, or its first `releases`."""
        return Repeated(event=self.event, times=self.releases if releases is None else releases)


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """What no analysis of a run can prove less than. Not a guarantee."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    observer: str


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The loop. Not private: every generator step is post-processing."""

    steps: Steps
    batch_size: Annotated[int, Range(2, 2**20)]
    feature_blocks: Annotated[int, Range(1, 1024)] = 1  # kernel: the features are used a block at a time
    memory: Annotated[float, Range(0.0, BELOW_ONE)] = 0.0  # kernel: of the fakes' mean embedding, from step to step
    smoothing: Annotated[float, Range(0.0, 64.0)] = 0.0  # kernel: of the answers, in pixels
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)


class CriticSettings(ABC):
    """The settings of a method's critic, a frozen dataclass, and what a plan asks of them."""

    void: ClassVar[str | None] = None
    """Why no run has a guarantee, for the method that has none."""

    has_embedding: ClassVar[bool] = False  # whether the run publishes mean embeddings of features
    can_spread: ClassVar[bool] = False  # whether the critics, or the records, may be spread over several processes
    can_stream: ClassVar[bool] = False  # whether one pass over the data is all that a run needs: it may stay in files

    def public_use(self) -> str | None:
        """What the statement about public images adds; None where they are of no use."""
        return None

    def network_statement(self) -> str:
        """The statement about a network that others trained on public images; empty where there is none."""
        return ""

    @property
    def kernel_settings(self) -> KernelSettings:
        """The kernel on pixels; a PlanError where there is none."""
        raise PlanError("critic", type(self).__name__, "a kernel critic")

    @property
    def ensemble_settings(self) -> EnsembleSettings:
        """The critics of an ensemble; a PlanError where there are none."""
        raise PlanError("critic", type(self).__name__, "an ensemble of critics")

    @property
    def first_generator(self) -> GeneratorSettings | None:
        """The generator of an earlier stage, which is published beside the last one; None where there is none."""
        return None

    def released_embedding(self, draft: Draft) -> PlannedEmbedding | None:
        """The mean embedding that stays in the release; None where there is none."""
        return None

    @abstractmethod
    def total(self, draft: Draft, steps: int) -> Event | None:
        """What the first so many steps release at the most. The ledger is checked against it. None: no guarantee."""

    @abstractmethod
    def describe(self, draft: Draft) -> str:
        """The critic on one line."""

    @abstractmethod
    def make(self, plan: Plan, context: RunContext) -> Critic:
        """The critic behind its barrier."""

    def hold(self, plan: Plan, context: RunContext, data: ImageData) -> None:
        """Be one of several processes, where `can_spread`: hold its part and follow rank 0 until the run is over."""
        raise PlanError("critic", type(self).__name__, "a critic that can be spread")

    def reuse(self, plan: Plan, embedding: Path, device: torch.device) -> Critic:
        """The critic on an embedding that was released before: no data, no mechanism."""
        raise PlanError("critic", type(self).__name__, "a critic that an embedding is enough for (preset kernel)")

    @abstractmethod
    def check(self, plan: Plan) -> None:
        """Raise a PlanError where the settings do not fit each other or the facts."""

    def claimed(self, draft: Draft, delta: float) -> Claim | None:
        """The figure that is stated elsewhere for such a run, at this delta. Not a guarantee."""
        return None

    def lower_bound(self, draft: Draft) -> LowerBound | None:
        """What no analysis of such a run can prove less than, where that is known."""
        return None

    def make_generator(self, plan: Plan, **rest: Any) -> Generator:
        """The untrained generator; `rest` is what does not come from the settings."""
        return Generator(plan.generator, plan.optimizer, updates=plan.training.steps, **rest)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A run before its cost is stated: what its method makes of the public facts."""

    method: str
    preset: str
    facts: Facts
    critic: CriticSettings  # of the method's own type
    generator: GeneratorSettings
    optimizer: OptimizerSettings
    training: TrainingSettings
    privacy: PrivacySettings | None = None  # GS-WGAN and DP-MERF; the others have all in `critic`
    public: PublicFacts | None = dataclasses.field(default=None, metadata=OMIT_DEFAULT)

    @property
    def sums(self) -> PrivacySettings:
        """The settings of the noisy sums that it releases; a PlanError where it releases something else."""
        if self.privacy is None:
            raise PlanError("privacy", None, f"the settings of noisy sums, which method {self.method} does not have")
        return self.privacy

    @property
    def size(self) -> str:
        """How much data, in words."""
        invented = self.privacy is not None and self.privacy.unit == "invented client"
        return self.facts.size.replace("person", "invented client") if invented else self.facts.size

    def describe(self) -> str:
        """The critic on one line."""
        return self.critic.describe(self)

    def total(self, steps: int | None = None) -> Event | None:
        """What the first `steps` steps release at the most (without it: the whole run); None: nothing is sanitized."""
        return self.critic.total(self, self.training.steps if steps is None else steps)

    def releases(self) -> dict[BaseEvent, int]:
        """The kinds of releases of the whole run, with how many there are of each; empty without a guarantee."""
        total = self.total()
        return {} if total is None else tally(total)


@dataclass(frozen=True, kw_only=True)
class Plan(Draft):
    """A run, before it runs."""

    guarantee: PrivacyCost | None  # None: the method has none
    claimed: Claim | None = None
    lower_bound: LowerBound | None = None
    curve: tuple[tuple[int, float], ...] = ()  # (steps done, epsilon spent)
    seed: Seed = 0
    insecure_reproducible: bool = False
    source: str | None = None  # the ledger head of the run whose embedding is used again

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.public is not None and self.critic.public_use() is None:
            raise PlanError("public", self.public.images, f"none with preset {self.preset} of {self.method}")
        self.critic.check(self)
        total = self.total()
        if total is None or self.guarantee is None:
            if total is not None or self.guarantee is not None:
                raise PlanError("guarantee", self.guarantee, f"one exactly where the method has one ({self.method})")
            return
        check_delta(self.guarantee.delta)
        unit = "record" if self.facts.persons is None else "person" if self.privacy is None else self.privacy.unit
        neighbours = unsampled(next(iter(tally(total)))).neighbours
        stated = (self.guarantee.neighbours, self.guarantee.unit, self.guarantee.sampling, self.guarantee.accountant)
        ruled = (neighbours, unit, sampling_of(total), Accountant(neighbours).method(total))
        if stated != ruled:
            what = "neighbours, unit, sampling and accountant of what is released"
            raise PlanError("guarantee", stated, f"{ruled}: {what}")

    @property
    def cost(self) -> PrivacyCost:
        """The guarantee; a PrivacyError where the method has none."""
        if self.guarantee is None:
            raise PrivacyError("guarantee", None, f"a method with a guarantee, which {self.method} is not")
        return self.guarantee

    @property
    def void(self) -> str | None:
        """Why the run has no guarantee, where it has none."""
        return self.critic.void or (INSECURE if self.insecure_reproducible else None)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(to_plain(self), sort_keys=True).encode()).hexdigest()

    def digest(self) -> str:
        """The name of this plan: equal plans have equal digests, whether a number was written 1 or 1.0."""
        return self._digest

    def fits(self, facts: Facts) -> bool:
        """Whether data with these facts is what was planned for; its name may differ."""
        return dataclasses.replace(facts, data=self.facts.data, class_names=self.facts.class_names) == self.facts

    def epsilon_after(self, steps: int) -> float | None:
        """Epsilon spent after so many steps, read from the curve, rounded up to its next point."""
        whole = None if self.guarantee is None else self.guarantee.epsilon
        if not self.curve or self.source is not None:
            return whole
        return next((epsilon for done, epsilon in self.curve if done >= steps), whole)

    def to_json(self) -> dict[str, Any]:
        """Plain data with its format version and its digest. `gswgan.methods.read_plan` reads it back."""
        return {"format_version": FORMAT_VERSION, "digest": self.digest(), **to_plain(self)}

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        try:
            write_durably(named_by_user(path), (json.dumps(self.to_json(), indent=1) + "\n").encode())
        except OSError as wrong:
            expected = f"a place that can be written ({wrong.strerror})"
            raise RunError("plan", str(path), expected, "Choose another --save-plan.") from wrong
