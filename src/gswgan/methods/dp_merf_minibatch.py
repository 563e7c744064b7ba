"""DP-MERF as the GS-WGAN paper ran it: a noisy mean embedding of a minibatch in each of 600 iterations.

The appendix has a batch of 500 of 60,000 records, noise scale 0.588 and 600 iterations. The noise scale is relative to
the sensitivity of the mean, 2 / 500 for one record replaced, so on the sum it is 2 x 0.588. Records take part by
secret coins. Labels are taken as balanced: the sum of a class is divided by its expected share of the batch, which is
public, and no counts are released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures, products
from gswgan.critics.one_thread import one_thread
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.generators.generator import Generator
from gswgan.plan.context import RunContext
from gswgan.plan.facts import Facts
from gswgan.plan.plan import CriticSettings, Draft, Plan
from gswgan.privacy import Contribution, Event, Gaussian, GaussianMechanism, Repeated, Sampled
from gswgan.privacy.claims import Claim, claimed_minibatches
from gswgan.privacy.mechanism import Block
from gswgan.privacy.participation import expected_participants, usual_participants
from gswgan.ranges import Batch, Features, LengthScale, Seed, Steps

RECORD = Contribution(clip_norm=1.0)
"""Features of norm 1 at the place of the record's class; no count."""


@dataclass(frozen=True, kw_only=True)
class MinibatchSettings(CriticSettings):
    """The kernel, and what is released of it. All but the kernel, with the number of records, is what epsilon needs."""

    features: Features
    length_scale: LengthScale
    noise_std: float  # on the sum of a batch
    learning_batch: Batch = 500  # records a release, on average
    releases: Steps = 600  # one a step
    seed: Seed = 0  # of the random frequencies

    @property
    def noise_scale(self) -> float:
        """The paper's: relative to the sensitivity."""
        return self.noise_std / RECORD.sensitivity("replace-one")

    @property
    def accounted_steps(self) -> int:
        """How many steps the run has, as each releases."""
        return self.releases

    @property
    def kernel(self) -> KernelSettings:
        """The features."""
        return KernelSettings(features=self.features, length_scales=(self.length_scale,), seed=self.seed)

    def rate(self, facts: Facts) -> float:
        """The probability that a record takes part."""
        return min(1.0, self.learning_batch / facts.records)

    def event(self, facts: Facts) -> Sampled:
        """One release."""
        gaussian = Gaussian(noise_std=self.noise_std, sensitivity=RECORD.sensitivity("replace-one"))
        return Sampled(rate=self.rate(facts), event=gaussian)

    def events(self, facts: Facts, steps: int) -> Event:
        """One release in each of the first so many steps."""
        return Repeated(event=self.event(facts), times=min(steps, self.releases))

    def total(self, draft: Draft, steps: int) -> Event:
        """One release in each step."""
        return self.events(draft.facts, steps)

    def describe(self, draft: Draft) -> str:
        """The kernel and its batches on one line."""
        records = f"{self.rate(draft.facts) * draft.facts.records:.0f} records on average"
        features = f"kernel, {self.features:,} random features, length scale {self.length_scale:.3g}"
        return f"{features}; in each step the embedding of {records}"

    def how_often(self, facts: Facts) -> str:
        """How often an embedding is released."""
        return f"in each step, of {self.rate(facts) * facts.records:.0f} records on average"

    def check(self, plan: Plan) -> None:
        """A record is protected, not a person; each step makes one release; the features exist."""
        if plan.facts.persons is not None:
            raise PlanError("persons", plan.facts.persons, "none: a minibatch of records protects one record at a time")
        check_embedding(self.features, self.releases, plan)

    def claimed(self, draft: Draft, delta: float) -> Claim:
        """The GS-WGAN paper's figure (10.02 for its run of DP-MERF on MNIST)."""
        rate = self.rate(draft.facts)
        return claimed_minibatches(self.noise_scale, rate=rate, releases=self.releases, delta=delta)

    def make(self, plan: Plan, context: RunContext) -> MinibatchCritic:
        """The critic on features of pixels."""
        features = RandomFeatures(self.kernel, plan.facts.channels, plan.facts.image_size, context.device)
        return self.make_on(features, plan, context)

    def make_on(self, features: RandomFeatures, plan: Plan, context: RunContext) -> MinibatchCritic:
        """A critic on these features behind the mechanism that records what is accounted for."""
        mechanism = context.mechanism(RECORD, self.event(plan.facts))
        return MinibatchCritic(features, mechanism, classes=plan.facts.classes)


def check_embedding(features: int, steps: int | None, plan: Plan) -> None:
    """The features exist, and the plan has the steps that are accounted for (None: they release nothing)."""
    if steps is not None and plan.training.steps != steps:
        raise PlanError("steps", plan.training.steps, f"{steps}, as accounted for")
    if features < 2 or features % 2:
        raise PlanError("features", features, "an even number of at least 2")


class MinibatchCritic(KernelCritic):
    """The kernel critic with a new, noisier target in each step."""

    can_be_captured = False  # every step passes the ledger, unlike those of its base class

    def __init__(self, features: RandomFeatures, mechanism: GaussianMechanism, *, classes: int) -> None:
        super().__init__(features, mechanism, Path())  # nothing is kept: a release serves its step
        self._batches, self._classes = mechanism, classes
        self._participants = 0

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Keep the data at hand, fix the size of a chunk. Nothing leaves."""
        assert data is not None, "batches are drawn from data"
        self._images = torch.from_numpy(data.images)
        self._labels = torch.from_numpy(np.zeros(data.n, np.int64) if data.labels is None else data.labels)
        self.expected = expected_participants(self._batches.event, data.n)
        self.chunk = usual_participants(self._batches.event, data.n)
        self._means = torch.zeros(2, self._classes, self.features.width // 2, device=self.features.frequencies.device)

    def learn(self, step: int, generator: Generator) -> None:
        """Release the embedding of a batch: each record by its own secret coin; an empty batch releases noise."""
        name, size = f"step {step}", {"slots": self._classes, "width": self.features.width}
        members = self._batches.participants(name, len(self._images))
        self._participants = len(members)
        with products(tf32=False):
            found = self._batches.answer(name, self._blocks(members), **size)
        means = torch.from_numpy(found.sums * (self._classes / self.expected)).to(self._means)
        self._targets = means.unflatten(1, (2, -1)).transpose(0, 1).contiguous()

    def _blocks(self, members: np.ndarray) -> Iterator[Block]:
        """In chunks of one size, so that a record's features never depend on who else takes part."""
        device = self.features.frequencies.device
        for start in range(0, len(members), self.chunk):
            some = members[start : start + self.chunk]
            index = torch.from_numpy(np.resize(some, self.chunk))
            with one_thread(device):
                rows = self.features(self._images[index].to(device).to(torch.float32) / 255)[: len(some)]
            yield rows[:, None], self._labels[index[: len(some)]].to(device)

    def metrics(self) -> dict[str, Any]:
        """Of the last step; private."""
        return {"participants": self._participants, **super().metrics()}
