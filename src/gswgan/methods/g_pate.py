"""G-PATE (Long et al. 2021): teacher discriminators vote on the gradient that the generator receives.

In a step every teacher has the gradient of the generator's loss with respect to each fake. It is projected to a few
random directions, each coordinate is put into one of some bins, and that is the teacher's vote. The aggregator is
the confident GNMax of Papernot et al. 2018, for each fake and direction by itself: if the largest count plus
N(0, check_noise^2) passes the threshold, the bin with the largest count plus N(0, vote_noise^2) is taken, and its
middle is the coordinate; if not, the coordinate is 0. The coordinates are projected back.

Where the paper is silent this follows its published code: 10 bins of equal width over [-bound, bound], gradients of
the batch's *mean* loss, fresh directions for each fake with entries N(0, 1/projection), the transposed matrix back.
Its teachers have the WGAN loss with gradient penalty that the code offers, and are ours (critics/ensemble/ensemble.py).

The guarantee is the data-independent one: both noises are paid for every fake and direction of every step, whether
the check passes or not. (The paper's data-dependent figure depends on the votes: publishing it would leak.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.loss import generator_gradient
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.teachers import Teachers
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods.gan_generator import gan_generator, is_tiny
from gswgan.methods.teacher_count import check_teachers, number_of_teachers
from gswgan.plan.context import RunContext
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, TrainingSettings
from gswgan.privacy import Ballot, BatchStreams, Composed, Event, Ledger, Repeated, Streams, VoteMechanism
from gswgan.ranges import NoiseMultiplier, Range, TeacherCount, Width

DISCRIMINATOR = EnsembleSettings(width=32, updates=1, learning_batch=30, learning_rate=1e-3, betas=(0.5, 0.999))
"""How a teacher learns, as far as the GS-WGAN paper and G-PATE's code say it."""

TINY_DISCRIMINATOR = replace(DISCRIMINATOR, width=4, updates=4, learning_batch=8, learning_rate=3e-3)


@dataclass(frozen=True, kw_only=True)
class GPateSettings(CriticSettings):
    """The GS-WGAN paper's figures for G-PATE; bins, bound and how teachers learn as in G-PATE's code."""

    teachers: TeacherCount = 2000
    discriminator: EnsembleSettings = DISCRIMINATOR
    projection: Width = 10  # random directions a fake
    bins: Annotated[int, Range(2, 4096)] = 10
    bound: Annotated[float, Range(1e-12, 1e6)] = 1e-4  # of a projected coordinate: beyond it is the outermost bin
    threshold: float = 0.5  # of the teachers, that must agree
    check_noise: NoiseMultiplier = 600.0  # sigma_1, in votes
    vote_noise: NoiseMultiplier = 100.0  # sigma_2

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise PlanError("bound", self.bound, "a positive number")
        if not 0 <= self.threshold <= 1:
            raise PlanError("threshold", self.threshold, "a share of the teachers, from 0 to 1")

    def ballots(self, batch_size: int) -> tuple[Ballot, Ballot]:
        """What a step releases: for each fake and direction the largest count, and the counts of all bins."""
        questions = batch_size * self.projection
        return (
            Ballot(questions=questions, options=self.bins, largest=True),
            Ballot(questions=questions, options=self.bins),
        )

    def events(self, *, steps: int, batch_size: int) -> Event:
        """So many steps, whatever the votes will be.

        A replaced teacher's vote moves a largest count by at most 1 and two counts by 1 each, in every question: in
        L2, sqrt(B k) for the check and sqrt(2 B k) for the votes of B fakes and k directions.
        """
        check, vote = self.ballots(batch_size)
        step = Composed(events=(check.gaussian(self.check_noise), vote.gaussian(self.vote_noise)))
        return Repeated(event=step, times=steps)

    def total(self, draft: Draft, steps: int) -> Event:
        """Two releases in each step."""
        return self.events(steps=steps, batch_size=draft.training.batch_size)

    def describe(self, draft: Draft) -> str:
        """The teachers on one line."""
        return (
            f"{self.teachers:,} teachers of width {self.discriminator.width}, each with its own part of the data; "
            f"they vote on {self.projection} random directions of each fake's gradient, in {self.bins} bins"
        )

    def check(self, plan: Plan) -> None:
        """Each teacher has a part of the data."""
        check_teachers(plan.facts, self.teachers)

    def make(self, plan: Plan, context: RunContext) -> GPate:
        """The teachers behind the barrier."""
        return GPate(self, batch_size=plan.training.batch_size, **context.for_votes(plan.facts.shape))


class GPate(Critic):
    """The teachers behind the barrier; two releases a step, both of votes."""

    def __init__(
        self,
        settings: GPateSettings,
        *,
        image_size: int,
        channels: int,
        classes: int,
        batch_size: int,
        ledger: Ledger,
        public: Streams,
        secret: Streams,
        device: torch.device,
    ) -> None:
        """`batch_size` is the number of fakes that the generator shows in a step."""
        self.settings, self._public, self._device = settings, public, device
        shape = CriticShape(
            image_size=image_size, channels=channels, classes=classes, width=settings.discriminator.width
        )
        self.teachers = Teachers(
            settings.discriminator,
            shape,
            count=settings.teachers,
            public=public,
            batches=BatchStreams(secret),
            device=device,
        )
        check, vote = settings.ballots(batch_size)
        self._check = VoteMechanism(
            ballot=check, event=check.gaussian(settings.check_noise), ledger=ledger, streams=secret
        )
        self._vote = VoteMechanism(ballot=vote, event=vote.gaussian(settings.vote_noise), ledger=ledger, streams=secret)
        self._step, self._passed, self._agreement = 0, 0.0, 0.0

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Divide the data. Nothing leaves."""
        self.teachers.prepare(data, resumed=resumed)

    def learn(self, step: int, generator: Generator) -> None:
        """Every teacher learns on its own part of the data against the generator's current fakes."""
        self._step = step
        self.teachers.learn(step, generator)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The voted gradient with respect to each fake: confident GNMax, then post-processing."""
        images, options = fake.detach(), self.settings
        directions = self.directions(images)
        votes = self.votes(images, labels, directions)
        largest = self._check.answer(f"step {self._step} check", votes)
        counts = self._vote.answer(f"step {self._step} votes", votes)
        passed = largest >= options.threshold * options.teachers
        middles = (np.arange(options.bins) + 0.5) * (2 * options.bound / options.bins) - options.bound
        chosen = torch.from_numpy(np.where(passed, middles[counts.argmax(axis=1)], 0.0)).to(directions)
        self._passed = float(passed.mean())
        self._agreement = float(self._check.counts(votes).mean()) / options.teachers
        back = directions @ chosen.view(len(images), -1, 1)  # [B, d, k] [B, k, 1]
        return len(images) * back.view(images.shape)  # of the sum over the batch, as the loop wants it

    def directions(self, images: Tensor) -> Tensor:
        """The step's random projection for each fake, [B, d, k]: public, fresh in each step."""
        shape = (len(images), images[0].numel(), self.settings.projection)
        draws = self._public.generator("projection", self._step).standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(draws).to(self._device) / self.settings.projection**0.5

    def votes(self, images: Tensor, labels: Tensor, directions: Tensor) -> Tensor:
        """The bin of each teacher for each fake and direction, [K, B k]: private. Non-finite gradients do not vote."""
        bound, bins = self.settings.bound, self.settings.bins
        dtype = self.settings.discriminator.compute_dtype
        rows = self.teachers.ask(
            lambda params, buffers: torch.einsum(
                "mbd,bdk->mbk", generator_gradient(params, buffers, images, labels, dtype).flatten(2), directions
            )
        )
        rows = rows.flatten(1) / len(images)
        place = ((rows + bound) * (bins / (2 * bound))).floor().clamp(0, bins - 1)
        return torch.where(torch.isfinite(rows), place, -torch.ones_like(place)).to(torch.int64)

    def metrics(self) -> dict[str, Any]:
        """The last step: the share of coordinates that passed the check, the mean share of the most frequent vote."""
        return {**self.teachers.metrics(), "passed": self._passed, "agreement": self._agreement}

    def state(self) -> dict[str, Tensor]:
        """Everything private that is needed to go on: the teachers."""
        return self.teachers.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.teachers.load_state(tensors)


BATCH = 30
"""Fakes in a step."""


class GPateMethod(Method):
    """The paper's settings, with `noise` on the votes and six times as much on the check (600 and 100).

    Few steps, or the noise would drown the votes. Tiny images: small teachers that learn quickly, a small latent code.
    """

    name = "g-pate"
    about = "G-PATE (Long et al. 2021): teachers vote on the gradients that the generator receives"
    settings = GPateSettings
    takes_critics = True

    def critic(self, request: PlanRequest, noise: float) -> GPateSettings:
        """The teachers at this noise."""
        paper = GPateSettings()
        teacher = TINY_DISCRIMINATOR if is_tiny(request.facts) else replace(paper.discriminator, updates=2)
        return replace(
            paper,
            discriminator=replace(teacher, precision="bfloat16") if request.device.startswith("cuda") else teacher,
            teachers=number_of_teachers(request, most=paper.teachers),
            vote_noise=noise,
            check_noise=noise * paper.check_noise / paper.vote_noise,
        )

    def steps(self, request: PlanRequest) -> int:
        """As asked for, or by the size of the images."""
        return request.steps or (100 if is_tiny(request.facts) else 200)

    def events(self, request: PlanRequest, noise: float) -> Event:
        """Two releases in each step."""
        return self.critic(request, noise).events(steps=self.steps(request), batch_size=BATCH)

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings, with the generator of the GAN baselines."""
        rate = 2e-3 if is_tiny(request.facts) else 1e-3
        return Draft(
            method=self.name,
            preset=request.preset,
            facts=request.facts,
            critic=self.critic(request, noise),
            generator=gan_generator(request, tiny_latent=2),
            optimizer=OptimizerSettings(learning_rate=rate, betas=(0.5, 0.9), decay=True, average=0.95),
            training=TrainingSettings(steps=self.steps(request), batch_size=BATCH),
        )


METHOD = GPateMethod()
