"""The non-private GAN: the same discriminator without clipping and noise. An upper reference, never for release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gswgan.critics.discriminator import DiscriminatorCritic, cross_entropy
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods.gan_generator import gan_generator, is_tiny
from gswgan.plan.context import RunContext
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, TrainingSettings
from gswgan.privacy import Streams
from gswgan.ranges import Batch, Betas, LearningRate, Updates, Width

VOID = (
    "made by a GAN WITHOUT differential privacy: it has NO guarantee, no epsilon, and may reproduce training records; "
    "for comparison only, not to be published"
)
"""For the `void` field of privacy.json."""


@dataclass(frozen=True, kw_only=True)
class GANSettings(CriticSettings):
    """The discriminator and how it learns."""

    void = VOID

    learning_batch: Batch = 128  # records and fakes an update
    updates: Updates = 1  # of the discriminator, a generator step
    width: Width = 32
    learning_rate: LearningRate = 2e-4
    betas: Betas = (0.5, 0.999)

    def total(self, draft: Draft, steps: int) -> None:
        """Nothing is sanitized."""

    def describe(self, draft: Draft) -> str:
        """The discriminator on one line."""
        return f"discriminator of width {self.width}, NOT private"

    def check(self, plan: Plan) -> None:
        """Any settings fit."""

    def make(self, plan: Plan, context: RunContext) -> GAN:
        """The discriminator, without a barrier."""
        return GAN(self, **plan.facts.shape, public=context.public, device=context.device)


class GAN(DiscriminatorCritic):
    """A discriminator that shows the generator what it has seen. There is no barrier here."""

    def __init__(self, settings: GANSettings, *, public: Streams, device: torch.device, **shape: int) -> None:
        super().__init__(settings, public=public, device=device, **shape)
        self._public, self._loss = public, torch.zeros(())

    def learn(self, step: int, generator: Generator) -> None:
        """Updates on batches of records and of fakes, as in the GAN of Goodfellow et al. 2014."""
        size, network = self.settings.learning_batch, self.discriminator
        for update in range(self.settings.updates):
            members = self._public.generator("batch", step, update).integers(0, len(self.images), size)
            fake, labels = generator.fakes(size, "discriminator", step, update)
            on_real = cross_entropy(network(*self.records(members)), real=True)
            on_fake = cross_entropy(network(fake, network.codes(labels)), real=False)
            loss = on_real.mean() + on_fake.mean()
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            self._loss = loss.detach()

    def metrics(self) -> dict[str, Any]:
        """The loss of the last update."""
        return {"discriminator_loss": float(self._loss)}


class GANMethod(Method):
    """There is no noise. Few steps for tiny images, as for all methods; as many as a small GAN needs for others."""

    name = "gan"
    about = "a GAN (Goodfellow et al. 2014) WITHOUT differential privacy, as an upper reference"
    settings = GANSettings
    has_guarantee = False

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings."""
        tiny = is_tiny(request.facts)
        steps, rate = (3000, 2e-3) if tiny else (10_000, 2e-4)
        return Draft(
            method=self.name,
            preset=request.preset,
            facts=request.facts,
            critic=GANSettings(width=8 if tiny else 32, learning_rate=rate),
            generator=gan_generator(request),
            optimizer=OptimizerSettings(learning_rate=rate, betas=(0.5, 0.999), average=0.99),
            training=TrainingSettings(steps=steps if request.steps is None else request.steps, batch_size=128),
        )


METHOD = GANMethod()
