"""The kernel critic in a plan: one release of everybody's features, then any number of steps at no further cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gswgan.critics import Critic
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.embedding import RARE, PlannedEmbedding, count_weight
from gswgan.critics.kernel.encoder import ENCODER, Training, encoder_of
from gswgan.critics.kernel.features import KernelSettings, features_of
from gswgan.critics.kernel.streaming import OnePass
from gswgan.critics.kernel.vgg import STATEMENT
from gswgan.errors import PlanError, short
from gswgan.plan.context import RunContext
from gswgan.plan.defaults import Defaults, sum_noise
from gswgan.plan.facts import Facts
from gswgan.plan.method import PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, PrivacySettings
from gswgan.privacy import Event, GaussianMechanism
from gswgan.privacy.mechanism import MAX_NOISE, ClippedSum

MAX_LAYERS = 8
"""Of an untrained network: each halves the side, and no side is more than 128."""

FEATURES_TOO = "; the features were trained on them as well"
"""What the statement about public images adds where there is an encoder."""

PERSON_NORM = 0.7
"""Clip norm of a person times sqrt(classes): the norm of a person with records of all classes alike whose features have
class means of squared length 0.4, and counts of the least weight. A longer vector loses its length and nothing else."""


@dataclass(frozen=True, kw_only=True)
class PlannedKernel(KernelSettings, CriticSettings):
    """The kernel critic of a plan; see also the plan's privacy."""

    has_embedding = True
    can_stream = True

    @property
    def kernel_settings(self) -> KernelSettings:
        """The features."""
        return self

    def released_embedding(self, draft: Draft) -> PlannedEmbedding:
        """The one release."""
        noise = sum_noise(draft.facts, draft.sums)
        return PlannedEmbedding(features=self.features, noise_std=noise, clip_norm=draft.sums.clip_norm)

    def total(self, draft: Draft, steps: int) -> Event:
        """One release, whatever the steps."""
        return draft.sums.total()

    def describe(self, draft: Draft) -> str:
        """The features on one line."""
        return describe_kernel(self)

    def public_use(self) -> str | None:
        """They train the encoder."""
        return FEATURES_TOO if self.encoder_steps else None

    def network_statement(self) -> str:
        """That of the features."""
        return network_statement(self)

    def check(self, plan: Plan) -> None:
        """One release of everybody, enough of them to be told from its noise, features that exist."""
        privacy, facts = check_sums(plan), plan.facts
        found = (privacy.sampling, privacy.rows, privacy.releases, privacy.counts)
        needed = ("all", 1, 1, facts.labelled and facts.persons is None)
        if found != needed:
            raise PlanError("privacy", found, f"{needed}: the kernel critic makes one release of everybody")
        check_kernel(self, plan)
        units, what = (facts.records, "records") if facts.persons is None else (facts.persons, "persons")
        if units < (least := _enough(facts, privacy)):
            raise PlanError(
                what, units, f"at least {least} at this epsilon, or no class could be told from the noise",
                f"Use more {what} or a larger --epsilon.",
            )  # fmt: skip

    def make(self, plan: Plan, context: RunContext) -> Critic:
        """The critic on an embedding that it releases first."""
        encoder = trained_encoder(self, plan, context)
        announce_release(context)
        mechanism = context.mechanism(plan.sums.contribution, plan.sums.event)
        summed = _summed(self, plan, context, mechanism, encoder)
        return kernel_critic(self, plan, context.embedding, context.device, encoder, mechanism, summed)

    def reuse(self, plan: Plan, embedding: Path, device: torch.device) -> Critic:
        """The critic on an embedding that was released before."""
        encoder = encoder_of(self, plan.facts, embedding.with_name(ENCODER), None)
        return kernel_critic(self, plan, embedding, device, encoder)


def network_statement(settings: KernelSettings) -> str:
    """The statement about the network of the features that others trained; empty where there is none."""
    return STATEMENT if settings.public_network else ""


def describe_kernel(settings: KernelSettings) -> str:
    """The features on one line."""
    of, layers = "", len(settings.convolutions)
    if settings.public_network:
        of = ", half of VGG19 (8 convolutional layers that others trained)"
    elif settings.encoder_steps:
        of = f", half of {layers} convolutional layers trained on public images for {settings.encoder_steps:,} steps"
    elif layers:
        of = f", half of {layers} untrained convolutional layers"
    return f"kernel, {settings.features:,} random features{settings.averaged}{of}, length scale {settings.scales}"


def check_kernel(settings: KernelSettings, plan: Plan) -> None:
    """Features that exist; a network of a size that exists, trained where there are public images to train it with."""
    scales, blocks = len(settings.length_scales), plan.training.feature_blocks
    if not scales or settings.features % 2 or blocks > settings.features // 2:
        features = (settings.features, scales, blocks)
        raise PlanError("features", features, "an even number, a length scale, at most half as many blocks")
    if len(settings.windows) != scales:
        raise PlanError("windows", short(settings.windows), f"{scales}, one for each length scale")
    if settings.public_network and (settings.convolutions or settings.encoder_steps):
        raise PlanError("public_network", settings.public_network, "no other network beside it")
    if len(settings.convolutions) > MAX_LAYERS:
        raise PlanError("convolutions", short(settings.convolutions), f"at most {MAX_LAYERS} layers")
    if settings.encoder_steps and (plan.public is None or not settings.convolutions):
        raise PlanError("encoder_steps", settings.encoder_steps, "some exactly where public images are stated")
    if settings.has_encoder and (plan.facts.silos is not None or plan.sums.observer == "server"):
        found = (settings.public_network, settings.encoder_steps)
        raise PlanError("encoder", found, "none: sites and clients get a plan and no encoder")


def trained_encoder(settings: KernelSettings, plan: Plan, context: RunContext) -> bytes | None:
    """The encoder of the run, which is made first where the plan has one. No data is here, and no key.

    Once the embedding is released there is no other than the one that it was released with.
    """
    training = None if context.embedding.exists() else Training(
        images=context.public_images, streams=context.public, device=context.device, store=context.store("encoder"),
        stopped=context.stopped, note=context.note,
    )  # fmt: skip
    return encoder_of(settings, plan.facts, context.embedding.with_name(ENCODER), training)


def check_sums(plan: Plan) -> PrivacySettings:
    """The settings of a plan's noisy sums, which are those that its guarantee is for."""
    privacy, cost = plan.privacy, plan.guarantee
    if privacy is None or cost is None:
        raise PlanError("privacy", privacy, "the settings of a noisy sum")
    if privacy.noise_std > MAX_NOISE * privacy.clip_norm:
        raise PlanError(
            "noise_std", privacy.noise_std, f"at most {MAX_NOISE:.0f} times clip_norm",
            "Ask for a larger epsilon or delta.",
        )  # fmt: skip
    stated = {name: getattr(cost, name) for name in ("delta", "neighbours", "unit", "observer", "sampling")}
    ruled = {name: getattr(privacy, name) for name in stated}
    if stated != ruled:
        raise PlanError("guarantee", stated, f"{ruled}, as in privacy")
    if (privacy.unit == "record") != (plan.facts.persons is None):
        raise PlanError("privacy.unit", privacy.unit, "record exactly where the data has no persons")
    return privacy


def _enough(facts: Facts, privacy: PrivacySettings) -> int:
    """How many records (persons) in one class its noisy count needs to be told from the noise, most probably."""
    if not privacy.counts and facts.persons is None:
        return 2  # without labels the only count is n, which is public
    noise, share = privacy.noise_std / privacy.clip_norm, 1.0
    if facts.persons is not None:  # a person's count is clipped with the features
        weight = count_weight(facts.persons, facts.classes, noise)
        share = weight / math.hypot(1, weight)
    return max(2, math.ceil(RARE * noise / share))


def person_clip(facts: Facts) -> float | None:
    """What the class sums of a person are clipped to; None where records are protected."""
    return None if facts.persons is None else PERSON_NORM * facts.classes**-0.5


def kernel_privacy(request: PlanRequest, noise: float) -> PrivacySettings:
    """One release of everybody's features: with counts by record, or by person, clipped."""
    by_person, clients = request.facts.persons is not None, request.federation
    clip = person_clip(request.facts) or 1.0
    return PrivacySettings(
        delta=request.delta,
        noise_std=noise * clip,
        clip_norm=clip,
        counts=request.facts.labelled and not by_person,
        unit="person" if by_person else "record",
        neighbours=request.neighbours if clients is None else clients.neighbours,
        observer="public" if clients is None else clients.observer,
    )


def kernel_draft(
    method: str, request: PlanRequest, privacy: PrivacySettings, defaults: Defaults[KernelSettings]
) -> Draft:
    """A run of the kernel critic with these settings: any number of steps after the one release."""
    steps = defaults.training.steps if request.steps is None else request.steps
    return Draft(
        method=method,
        preset=request.preset,
        facts=request.facts,
        privacy=privacy,
        critic=PlannedKernel(**{**vars(defaults.critic), "seed": request.seed}),
        generator=defaults.generator,
        optimizer=defaults.optimizer,
        training=dataclasses.replace(defaults.training, steps=steps),
        public=request.public,
    )


def announce_release(context: RunContext) -> None:
    """Say that the data will be read, where the embedding is not there yet."""
    if not context.embedding.exists():
        context.note("releasing the embedding: one pass over the data")


def kernel_critic(
    settings: KernelSettings,
    plan: Plan,
    embedding: Path,
    device: torch.device,
    encoder: bytes | None,
    mechanism: GaussianMechanism | None = None,
    summed: Callable[[], tuple[ClippedSum, int]] | None = None,
) -> KernelCritic:
    """The kernel critic of the plan; without a mechanism, on an embedding that was released before."""
    return KernelCritic(
        features_of(settings, plan.facts.channels, plan.facts.image_size, device, encoder),
        mechanism,
        embedding,
        summed=summed,
        blocks=plan.training.feature_blocks,
        memory=plan.training.memory,
        smoothing=plan.training.smoothing,
    )


def _summed(
    settings: KernelSettings, plan: Plan, context: RunContext, mechanism: GaussianMechanism, encoder: bytes | None
) -> Callable[[], tuple[ClippedSum, int]] | None:
    """How data that stays in its files is summed; None where it is handed over."""
    if context.stream is None:
        return None
    records = plan.facts.records
    summing = OnePass(
        stream=context.stream,
        workers=context.workers,
        store=context.store("sums"),
        progress=context.reading,
        stopped=context.stopped,
        keep=lambda left_out: context.write_private("left_out", {"records": records, "left_out": left_out}),
    )
    return lambda: summing.total(settings, mechanism.contribution, context.device, encoder)
