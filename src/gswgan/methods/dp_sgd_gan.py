"""DP-SGD GAN: a conditional GAN whose discriminator is trained with DP-SGD (Abadi et al. 2016).

As in DP-CGAN (Torkzadehmahani et al. 2019), which the GS-WGAN paper compares itself with, and in "Private GANs,
Revisited" (Bie et al. 2023). One update of the discriminator takes each record with probability q by a secret
coin, clips the gradient of each record's loss in the discriminator's parameters, sums, adds noise: the release.
The fakes' part of the loss touches no data and gets no noise. Either its gradients are clipped as the records' are (or
the fakes would outweigh the records), or, with `pairs`, each record's gradient meets that of the fakes of its class
before the clip: what all images have in common, nearly all of a long gradient, cancels then and does not use the clip
up. All that follows is post-processing: the discriminator's weights, how well it tells fakes, and what the generator
learns through it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gswgan.critics import dp_sgd
from gswgan.critics.discriminator import DiscriminatorCritic, cross_entropy
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.ensemble.ensemble import QUANTILES
from gswgan.data import ImageData
from gswgan.errors import PlanError, PrivacyError
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods.gan_generator import gan_generator, is_tiny
from gswgan.plan.context import RunContext
from gswgan.plan.facts import Facts
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, TrainingSettings
from gswgan.privacy import Contribution, Event, GaussianMechanism, Repeated, Sampled, Streams
from gswgan.privacy.claims import Claim, claimed_minibatches
from gswgan.privacy.mechanism import Block

LADDER = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""Updates a generator step, where they are raised as the discriminator falls behind (Bie et al. 2023)."""

MEMORY = 0.99
"""Of the moving average of the accuracy on fakes, from one generator step to the next (Bie et al. 2023)."""

GRACE = 200
"""Generator steps, at the least, from one rung of the ladder to the next: 2 / (1 - MEMORY) (Bie et al. 2023)."""

UPDATES, BATCH = 8000, 1024
"""Of the discriminator with `revisited`, for 60,000 records: see `for_facts`."""


@dataclass(frozen=True, kw_only=True)
class DPSGDGANSettings(CriticSettings):
    """The discriminator and how it learns. The first four, with the number of records, are what the guarantee needs."""

    clip_norm: float
    noise_multiplier: float  # noise_std over clip_norm
    learning_batch: int  # records an update, on average
    releases: int  # updates of the discriminator in the whole run
    updates: int = 1  # of the discriminator, a generator step (n_dis); at first, if they are raised
    raise_below: float | None = None  # accuracy on fakes below which updates are raised; None: never
    pairs: bool = False  # clip a record's gradient together with the mean one of the fakes of its class
    width: int = 32
    learning_rate: float = 2e-4
    betas: tuple[float, float] = (0.5, 0.999)

    def __post_init__(self) -> None:
        if self.raise_below is not None and not 0 < self.raise_below < 1:
            raise PlanError("raise_below", self.raise_below, "an accuracy between 0 and 1, or none")

    @property
    def most_steps(self) -> int:
        """Generator steps after which all releases are made, at the latest."""
        return math.ceil(self.releases / self.updates)

    @property
    def contribution(self) -> Contribution:
        """The most that one record adds to an update: one gradient of norm clip_norm."""
        return Contribution(clip_norm=self.clip_norm)

    def event(self, records: int) -> Sampled:
        """One update of the discriminator."""
        return dp_sgd.update_event(
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            batch=self.learning_batch,
            records=records,
        )

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


class DPSGDGAN(DiscriminatorCritic):
    """The discriminator behind its barrier: each update is one release."""

    def __init__(
        self,
        settings: DPSGDGANSettings,
        mechanism: GaussianMechanism,
        *,
        public: Streams,
        device: torch.device,
        **shape: int,
    ) -> None:
        """`mechanism` is made of the settings' `contribution` and `event`; what it records is what happens here."""
        super().__init__(settings, public=public, device=device, **shape)
        if mechanism.contribution != settings.contribution:
            raise PrivacyError("mechanism", mechanism.contribution, f"{settings.contribution}, as in the settings")
        self.gradients = RecordGradients(self.discriminator, mechanism)
        self.done, self.updates = 0, settings.updates
        self._accuracy, self._since = math.nan, 0  # on fakes, a moving average; generator steps on this rung
        self._rivals: Tensor | None = None  # with `pairs`: the fakes' mean gradient, for each class

    @property
    def finished(self) -> bool:
        """Whether all planned releases are made: the run ends here, there is nothing more to learn."""
        return self.done >= self.settings.releases

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Put the data on the device, fix the chunks. Nothing leaves."""
        if data is not None and data.persons is not None:
            raise PrivacyError("persons", data.number_of_persons, "none: this method protects one record at a time")
        super().prepare(data, resumed=resumed)
        self.gradients.prepare(len(self.images))

    def learn(self, step: int, generator: Generator) -> None:
        """n_dis updates of the discriminator, or those that are left; then see how well it tells fakes."""
        updates = min(self.updates, self.settings.releases - self.done)
        for update in range(updates):
            self._update(step, update, generator)
        if updates and self.settings.raise_below is not None:
            self._raise_updates(step, generator)

    def _update(self, step: int, update: int, generator: Generator) -> None:
        """theta_D <- Adam(theta_D, (sum clip(g_real) + noise) / (q n) + mean clip(g_fake)).

        With `pairs`: Adam(theta_D, (sum clip(g_real + mean g_fake of its class) + noise) / (q n)).
        """
        fake, labels = generator.fakes(self._fakes, "discriminator", step, update)
        self._rivals = self._mean_by_class(fake, labels) if self.settings.pairs else None
        gradient = self.gradients.answer(f"step {step} update {update}", self._records_rows)
        self.done += 1
        if self._rivals is None:
            gradient = gradient + self._fake_gradient(fake, self.discriminator.codes(labels))
        self.descend(gradient)

    @property
    def _fakes(self) -> int:
        """As many as records, on average."""
        return max(2, round(self.gradients.expected))

    def descend(self, gradient: Tensor) -> None:
        """One step of Adam with the gradient of all parameters, [P]."""
        dp_sgd.descend(self.adam, self.discriminator, gradient)

    def rows(self, images: Tensor, codes: Tensor, *, real: bool) -> Tensor:
        """The gradient of each image's own loss in all parameters, [n, P]; not clipped."""
        return self.gradients.rows(_loss_of_record if real else _loss_of_fake, images, codes)

    def _records_rows(self, members: np.ndarray) -> Tensor:
        images, codes = self.records(members)
        rows = self.rows(images, codes, real=True)
        return rows if self._rivals is None else rows + self._rivals[codes.argmax(dim=1)]

    def blocks(self, members: np.ndarray) -> Iterator[Block]:
        """The records' gradients as they go into the release."""
        return self.gradients.blocks(members, self._records_rows)

    def _fake_gradient(self, fake: Tensor, codes: Tensor) -> Tensor:
        """The mean of the fakes' gradients, each clipped: public."""
        total, chunk = torch.zeros(self.gradients.width, device=self.device), self.gradients.chunk
        for images, labels in zip(fake.split(chunk), codes.split(chunk)):
            rows = self.rows(images, labels, real=False)
            total += (self.gradients.clip / rows.norm(dim=1)).clamp(max=1.0) @ rows
        return total / len(fake)

    def _mean_by_class(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The mean gradient of the fakes of each class, [classes, P]: public."""
        codes, chunk = self.discriminator.codes(labels), self.gradients.chunk
        total = torch.zeros(codes.shape[1], self.gradients.width, device=self.device)
        for images, some in zip(fake.split(chunk), codes.split(chunk)):
            total += some.T @ self.rows(images, some, real=False)
        return total / codes.sum(dim=0).clamp(min=1)[:, None]

    @torch.no_grad()
    def _raise_updates(self, step: int, generator: Generator) -> None:
        """More updates a generator step from now on where fakes pass for real: seen on fakes alone, so free."""
        fake, labels = generator.fakes(self._fakes, "accuracy", step)
        told = (self.discriminator(fake, self.discriminator.codes(labels)) < 0).double().mean().item()
        self._accuracy = told if math.isnan(self._accuracy) else MEMORY * self._accuracy + (1 - MEMORY) * told
        self._since += 1
        assert self.settings.raise_below is not None
        if self._since >= GRACE and self._accuracy <= self.settings.raise_below:
            self.updates = next((rung for rung in LADDER if rung > self.updates), self.updates)
            self._since = 0

    def metrics(self) -> dict[str, Any]:
        """The last update: who took part, QUANTILES of their gradients' norms before and after clipping (private)."""
        found: dict[str, Any] = {"releases": self.done, "updates": self.updates}
        found["participants"] = self.gradients.participants
        if self.settings.raise_below is not None:
            found["accuracy_on_fakes"] = self._accuracy
        if self.gradients.norms:
            norms = torch.cat(self.gradients.norms).double().nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
            found["norm_before"] = np.quantile(norms, QUANTILES).tolist()
            found["norm_after"] = np.quantile(norms.clip(max=self.gradients.clip), QUANTILES).tolist()
        return found

    def state(self) -> dict[str, Tensor]:
        """Weights, optimizer, how many releases were made and how many updates a step makes."""
        counts = torch.tensor([self.done, self.updates, self._since])
        return super().state() | {"counts": counts, "accuracy": torch.tensor(self._accuracy, dtype=torch.float64)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        super().load_state(tensors)
        self.done, self.updates, self._since = tensors["counts"].tolist()
        self._accuracy = tensors["accuracy"].item()


def _loss_of_record(logits: Tensor, images: Tensor, codes: Tensor) -> Tensor:
    return cross_entropy(logits, real=True)


def _loss_of_fake(logits: Tensor, images: Tensor, codes: Tensor) -> Tensor:
    return cross_entropy(logits, real=False)


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
