"""The plan of preset `refined`: a part of the budget for the kernel's release, the rest for DP-SGD."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.critics import Critic
from gswgan.critics.kernel.embedding import PlannedEmbedding
from gswgan.critics.kernel.features import KernelSettings
from gswgan.critics.refined.critic import Refined
from gswgan.critics.refined.records import hold_records
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.denoised import DenoisedSampler, latent_size
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.generators.refined import RefinedGenerator
from gswgan.methods.ensemble import partial_sum, sum_mechanism
from gswgan.methods.kernel import (
    FEATURES_TOO,
    announce_release,
    check_kernel,
    check_sums,
    describe_kernel,
    kernel_critic,
    network_statement,
    person_clip,
    trained_encoder,
)
from gswgan.methods.kernel_then_ensemble import started_total
from gswgan.plan.context import RunContext
from gswgan.plan.defaults import TINY, kernel_defaults, sum_noise
from gswgan.plan.facts import Facts
from gswgan.plan.method import PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, PrivacySettings
from gswgan.plan.settings import check_whole
from gswgan.privacy import Contribution, Event, Gaussian, Streams

SHARE = 0.27
"""Of the budget that the kernel's release has, about, counted in mu^2 (see kernel_then_ensemble.py). At epsilon 10 and
60,000 records its release alone is at epsilon 4.2, and costs DP-SGD 5 % more noise than one at 3 would."""

CLIP = 0.003
"""Norm that each record's gradient is clipped to: below what they have, so that every record has the same say. The
steps do not depend on the scale."""

LEVEL_MEAN, LEVEL_STD = -0.8, 0.8
"""Of ln(noise level) in DP-SGD: mostly the middle levels, since samples of the kernel's generator teach the others."""

PUBLIC_SHARE = 0.5
"""Of a batch of the pre-training on samples, where there are public images: they get its smallest noise levels."""

ROUNDS = 10
"""In which sites make their steps of DP-SGD."""

WIDTHS = 4
"""The width of a denoiser is a multiple of it: products of other sizes round a row by where it stands on a CPU."""

SCALING = 0.5
"""The power of the second moments of public gradients that scales those of records (generators/preconditioner.py)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRefined(RefinedSettings, CriticSettings):
    """All three stages of a plan; see also the plan's privacy, which is that of DP-SGD."""

    has_embedding = True
    can_spread = True

    @property
    def kernel_settings(self) -> KernelSettings:
        """The features."""
        return self.kernel

    def public_use(self) -> str | None:
        """They train the denoiser, and the encoder where there is one."""
        return FEATURES_TOO if self.kernel.encoder_steps else ""

    def network_statement(self) -> str:
        """That of the kernel's features."""
        return network_statement(self.kernel)

    @property
    def first_generator(self) -> GeneratorSettings:
        """The one that the kernel critic trains."""
        return self.start

    def released_embedding(self, draft: Draft) -> PlannedEmbedding:
        """The kernel's release, before the first step."""
        clip = self.contribution(draft.facts.labelled).clip_norm
        noise = sum_noise(draft.facts, self.first_sums(draft))
        return PlannedEmbedding(features=self.kernel.features, noise_std=noise, clip_norm=clip)

    def first_sums(self, draft: Draft) -> PrivacySettings:
        """Those of the kernel's release."""
        given = {name: getattr(draft.sums, name) for name in ("delta", "neighbours", "unit", "observer")}
        bound = self.contribution(draft.facts.labelled)
        return PrivacySettings(noise_std=self.noise_std, clip_norm=bound.clip_norm, counts=bound.counts, **given)

    def total(self, draft: Draft, steps: int) -> Event:
        """The kernel's release before the first step, and one in each step of DP-SGD, after the pre-training."""
        start = self.event(draft.facts.labelled, draft.sums.neighbours)
        return started_total(start, draft.sums, steps - self.steps - self.public_steps - self.pretraining)

    def describe(self, draft: Draft) -> str:
        """The stages on one line."""
        units, by_person = _units(draft.facts), draft.facts.persons is not None
        what, whose = ("persons", "spread over the records of each") if by_person else ("records", "for each")
        public = "" if draft.public is None else f"{self.public_steps:,} steps on public images, "
        both = " and public images" if self.public_share else ""
        return (
            f"{describe_kernel(self.kernel)}, for {self.steps:,} steps; then a denoiser of width "
            f"{draft.generator.width}: {public}{self.pretraining:,} steps on samples{both}, {draft.sums.releases:,} "
            f"steps of DP-SGD on {round(draft.sums.rate * units):,} {what} on average, {self.draws} noise draws "
            f"{whose}, gradients clipped to {draft.sums.clip_norm:g}"
        )

    def check(self, plan: Plan) -> None:
        """What is accounted for: each record (or person) by its own coin, one release in each step of DP-SGD."""
        privacy = check_sums(plan)
        if (self.person_clip is None) != (plan.facts.persons is None):
            raise PlanError("person_clip", self.person_clip, "a norm exactly where the data has persons")
        check_kernel(self.kernel, plan)
        steps = self.steps + self.public_steps + self.pretraining + privacy.releases
        if plan.training.steps != steps:
            raise PlanError("steps", plan.training.steps, f"{steps}, as accounted for")
        found = (privacy.sampling, privacy.rows, privacy.counts, privacy.critics)
        if found != ("poisson", 1, False, None):
            raise PlanError("privacy", found, "records (or persons) drawn by coins, each with one clipped gradient")
        if (self.public_steps > 0) != (plan.public is not None) or (self.public_share > 0 and plan.public is None):
            raise PlanError("public_steps", self.public_steps, "some exactly where public images are stated")
        if (self.local_steps is not None) != (plan.facts.silos is not None):
            raise PlanError("local_steps", self.local_steps, "a number exactly where sites hold the records")
        if plan.generator.architecture != "denoiser":
            raise PlanError("architecture", plan.generator.architecture, "denoiser: that is what is published")
        if plan.generator.width % WIDTHS:
            expected = f"a multiple of {WIDTHS}: with others a record's gradient depends on who else takes part"
            raise PlanError("width", plan.generator.width, expected)

    def make(self, plan: Plan, context: RunContext) -> Critic:
        """The kernel critic and DP-SGD, each behind its own mechanism."""
        encoder = trained_encoder(self.kernel, plan, context)
        announce_release(context)
        labelled = plan.facts.labelled
        first = context.mechanism(self.contribution(labelled), self.event(labelled, plan.sums.neighbours))
        kernel = kernel_critic(self.kernel, plan, context.embedding, context.device, encoder, first)
        return Refined(
            self, plan.optimizer, kernel, sum_mechanism(plan, context), releases=plan.sums.releases,
            public=context.public, batches=context.batches, device=context.device,
            public_images=context.public_images, ranks=context.ranks, note=context.note,
        )  # fmt: skip

    def start_on(self, plan: Plan, embedding: Path, device: torch.device) -> dict[str, Any]:
        """What the stages before DP-SGD are made with (`RefinedStart`), on an embedding that sites have released."""
        if plan.public is not None:
            raise PlanError("public", plan.public.images, "no public images where sites hold the records")
        kernel = kernel_critic(self.kernel, plan, embedding, device, None)
        streams, none = Streams.public(plan.seed), np.zeros(0, np.uint8)
        return {
            "settings": self, "optimizer": plan.optimizer, "kernel": kernel, "public": streams,
            "public_images": lambda: none,
        }  # fmt: skip

    def hold(self, plan: Plan, context: RunContext, data: ImageData) -> None:
        """The records that this process holds."""
        network = build_network(plan.generator, **plan.facts.shape).to(context.device)
        assert isinstance(network, DenoisedSampler)
        assert context.ranks is not None
        hold_records(context.ranks, self, network, data, partial_sum(plan, context), context.batches)

    def make_generator(self, plan: Plan, **rest: Any) -> Generator:
        """The generator of the start, and beside it the denoiser that is published."""
        return RefinedGenerator(plan.generator, self.start, self.start_optimizer, updates=self.steps, **rest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What does not follow from the noise."""

    batch: int  # records (or persons) in a step of DP-SGD, on average
    releases: int
    draws: int
    width: int
    samples: int
    public_steps: int  # where there are public images
    pretraining: int
    pretraining_batch: int
    learning_rate: float
    averaging: float


def sizes(facts: Facts, device: str) -> Sizes:
    """By the number of records (or persons), the size of the images and the device."""
    units = _units(facts)
    if facts.image_size <= TINY:
        return Sizes(
            batch=max(1, min(256, units // 5)), releases=100, draws=4, width=8, samples=2**14,
            public_steps=600, pretraining=3000, pretraining_batch=128, learning_rate=2e-3, averaging=10.0,
        )  # fmt: skip
    batch = max(1, min(2048, units // 10))
    if device.startswith("cuda"):
        return Sizes(
            batch=batch, releases=450, draws=8, width=32, samples=min(2**18, 2**32 // facts.pixels),
            public_steps=16_000, pretraining=6000, pretraining_batch=512, learning_rate=1.2e-3, averaging=20.0,
        )  # fmt: skip
    return Sizes(
        batch=min(batch, 512), releases=200, draws=4, width=16, samples=2**14, public_steps=4000, pretraining=2000,
        pretraining_batch=64, learning_rate=1.2e-3, averaging=20.0,
    )  # fmt: skip


def _privacy(request: PlanRequest, chosen: Sizes, noise: float) -> tuple[PrivacySettings, float]:
    """The noisy sums of DP-SGD, and the noise of the kernel's release that is in proportion."""
    facts, releases = request.facts, chosen.releases if request.steps is None else request.steps
    rate = chosen.batch / _units(facts)
    privacy = PrivacySettings(
        delta=request.delta,
        noise_std=noise * CLIP,
        clip_norm=CLIP,
        releases=releases,
        sampling="poisson",
        rate=rate,
        neighbours=request.neighbours if request.federation is None else request.federation.neighbours,
        unit="record" if facts.persons is None else "person",
        observer="public" if request.federation is None else request.federation.observer,
    )
    odds = SHARE / (1 - SHARE)
    return privacy, noise * (person_clip(facts) or 1.0) / (rate * math.sqrt(releases * odds))


def _local_steps(request: PlanRequest, releases: int) -> int:
    """Of each round of sites."""
    asked = None if request.federation is None else request.federation.rounds
    rounds = min(ROUNDS, releases) if asked is None else check_whole("rounds", asked, 1, releases)
    return math.ceil(releases / rounds)


def events(request: PlanRequest, noise: float) -> Event:
    """The kernel's release and those of DP-SGD."""
    facts, clip = request.facts, person_clip(request.facts)
    privacy, noise_std = _privacy(request, sizes(facts, request.device), noise)
    each = Contribution(clip_norm=1.0, counts=facts.labelled) if clip is None else Contribution(clip_norm=clip)
    bound = each.sensitivity(privacy.neighbours)
    start = Gaussian(noise_std=noise_std, sensitivity=bound, neighbours=privacy.neighbours)
    return started_total(start, privacy, privacy.releases)


def draft(request: PlanRequest, noise: float) -> Draft:
    """All settings; `noise` is noise_std of DP-SGD over its clip norm."""
    facts, chosen = request.facts, sizes(request.facts, request.device)
    privacy, noise_std = _privacy(request, chosen, noise)
    in_sum = sum_noise(facts, dataclasses.replace(privacy, noise_std=noise_std))
    kernel = kernel_defaults(
        facts, in_sum, request.device, public=request.public, public_features=request.public_features
    )
    critic = PlannedRefined(
        kernel=dataclasses.replace(kernel.critic, seed=request.seed),
        noise_std=noise_std,
        steps=kernel.training.steps,
        start=kernel.generator,
        start_optimizer=kernel.optimizer,
        samples=chosen.samples,
        public_steps=0 if request.public is None else chosen.public_steps,
        public_share=0.0 if request.public is None else PUBLIC_SHARE,
        pretraining=chosen.pretraining,
        pretraining_batch=chosen.pretraining_batch,
        pretraining_rate=1e-3,
        draws=chosen.draws,
        level_mean=LEVEL_MEAN,
        level_std=LEVEL_STD,
        scaling=SCALING,
        averaging=chosen.averaging,
        person_clip=person_clip(facts),
        local_steps=None if facts.silos is None else _local_steps(request, privacy.releases),
    )
    steps = critic.steps + critic.public_steps + critic.pretraining + privacy.releases
    return Draft(
        method="gswgan",
        preset=request.preset,
        facts=facts,
        privacy=privacy,
        critic=critic,
        generator=GeneratorSettings(architecture="denoiser", width=chosen.width, latent=latent_size(facts.pixels)),
        optimizer=OptimizerSettings(learning_rate=chosen.learning_rate, betas=(0.9, 0.999), decay=True, average=0.98),
        training=dataclasses.replace(kernel.training, steps=steps),
        public=request.public,
    )


def _units(facts: Facts) -> int:
    """Those who take part in DP-SGD by coins."""
    return facts.records if facts.persons is None else facts.persons
