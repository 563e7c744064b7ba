"""The plan of DP-SGD GAN: as published (DP-CGAN), and as "Private GANs, Revisited" (Bie et al. 2023) improved it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gswgan.critics.dp_sgd_gan import DPSGDGAN, DPSGDSettings
from gswgan.errors import PlanError
from gswgan.generators.generator import OptimizerSettings
from gswgan.methods.gan_generator import gan_generator, is_tiny
from gswgan.plan.context import RunContext
from gswgan.plan.facts import Facts
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, TrainingSettings
from gswgan.privacy import Event, Repeated
from gswgan.privacy.claims import Claim, claimed_minibatches

UPDATES, BATCH = 8000, 1024
"""Of the discriminator with `revisited`, for 60,000 records: see `for_facts`."""


@dataclass(frozen=True, kw_only=True)
class DPSGDGANSettings(DPSGDSettings, CriticSettings):
    """The discriminator of a plan."""

    def events(self, records: int, updates: int | None = None) -> Event:
        """The whole run on so many records, or its first updates."""
        return Repeated(event=self.event(records), times=self.releases if updates is None else updates)

    def total(self, draft: Draft, steps: int) -> Event:
        """All releases where the steps are not known beforehand; otherwise those of the steps."""
        made = self.releases if self.raise_below is not None else min(self.releases, steps * self.updates)
        return self.events(draft.facts.records, made)

    def describe(self, draft: Draft) -> str:
        """The discriminator on one line."""
        often = f"{self.updates} a step"
        if self.raise_below is not None:
            often += f", more when it tells {self.raise_below:g} of the fakes or less"
        gradients = "gradients together with fakes'" if self.pairs else "gradients"
        return (
            f"discriminator of width {self.width} trained with DP-SGD: updates on {self.learning_batch} records on "
            f"average, {gradients} clipped to {self.clip_norm:g}, {often}"
        )

    def check(self, plan: Plan) -> None:
        """A record is protected, not a person; the steps are those that the releases can last for."""
        if plan.facts.persons is not None:
            raise PlanError("persons", plan.facts.persons, "none: DP-SGD GAN protects one record at a time")
        if plan.training.steps != self.most_steps:
            raise PlanError("steps", plan.training.steps, f"{self.most_steps}, as accounted for")

    def claimed(self, draft: Draft, delta: float) -> Claim | None:
        """The GS-WGAN paper's figure for its run: noise relative to the clip, which is what a record *added* moves."""
        if draft.preset != "dp-cgan":
            return None
        rate = self.learning_batch / draft.facts.records
        return claimed_minibatches(self.noise_multiplier, rate=rate, releases=self.releases, delta=delta)

    def make(self, plan: Plan, context: RunContext) -> DPSGDGAN:
        """The discriminator behind the mechanism that records what is accounted for."""
        mechanism = context.mechanism(self.contribution, self.event(plan.facts.records))
        return DPSGDGAN(self, mechanism, **plan.facts.shape, public=context.public, device=context.device)


PRESETS = {
    "dp-cgan": DPSGDGANSettings(clip_norm=1.1, noise_multiplier=2.1, learning_batch=600, releases=30_000),
    "revisited": DPSGDGANSettings(
        clip_norm=1.0, noise_multiplier=2.0, learning_batch=512, releases=174_000, raise_below=0.6
    ),
}
"""As the GS-WGAN paper's appendix sets DP-SGD GAN, and as Bie et al. 2023 set theirs for Fashion-MNIST."""


def for_facts(settings: DPSGDGANSettings, facts: Facts) -> DPSGDGANSettings:
    """Fewer and larger steps than theirs, in pairs, on batches of at most a tenth of the records.

    At a given epsilon the noise in an update's mean gradient is about sqrt(updates) / records, whatever the batch is,
    if that is not too small (512 of 60,000: 13 % more): 8000 updates instead of 174,000 are about four times quieter
    each, and soon made. Its length goes with the root of the number of weights: a narrow discriminator. Fewer records
    have as many passes. Tiny images are soon learned.
    """
    batch = max(1, min(BATCH, facts.records // 10))
    if is_tiny(facts):
        releases, rate = 300, 5e-3
    else:
        releases, rate = min(UPDATES, max(1000, UPDATES * facts.records // 60_000)), 2e-3
    return replace(
        settings, learning_batch=batch, releases=releases, updates=2, width=16, learning_rate=rate, pairs=True
    )


class DPSGDGANMethod(Method):
    """`dp-cgan` as it was published; `revisited` for these facts. `noise` is the noise multiplier."""

    name = "dp-sgd-gan"
    about = "DP-SGD GAN (Torkzadehmahani et al. 2019; Bie et al. 2023): the discriminator learns with DP-SGD"
    settings = DPSGDGANSettings
    presets = ("revisited", "dp-cgan")

    def critic(self, request: PlanRequest, noise: float) -> DPSGDGANSettings:
        """The discriminator at this noise."""
        critic = PRESETS[request.preset]
        if request.preset == "revisited":
            critic = for_facts(critic, request.facts)
        critic = replace(critic, noise_multiplier=noise)
        return critic if request.steps is None else replace(critic, releases=request.steps * critic.updates)

    def events(self, request: PlanRequest, noise: float) -> Event:
        """All updates of the discriminator."""
        return self.critic(request, noise).events(request.facts.records)

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings, with the generator of the GAN baselines."""
        critic = self.critic(request, noise)
        return Draft(
            method=self.name,
            preset=request.preset,
            facts=request.facts,
            critic=critic,
            generator=gan_generator(request),
            optimizer=OptimizerSettings(learning_rate=critic.learning_rate, betas=critic.betas, average=0.99),
            training=TrainingSettings(steps=critic.most_steps, batch_size=max(64, critic.learning_batch)),
        )

    def own_noise(self, preset: str) -> float | None:
        """That of DP-CGAN as published."""
        return PRESETS[preset].noise_multiplier if preset == "dp-cgan" else None


METHOD = DPSGDGANMethod()
