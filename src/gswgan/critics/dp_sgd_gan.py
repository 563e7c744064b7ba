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
from dataclasses import dataclass
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
from gswgan.generators.generator import Generator
from gswgan.privacy import Contribution, GaussianMechanism, Sampled, Streams
from gswgan.privacy.mechanism import Block
from gswgan.ranges import Batch, Betas, LearningRate, NoiseMultiplier, Steps, Updates, Width

LADDER = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""Updates a generator step, where they are raised as the discriminator falls behind (Bie et al. 2023)."""

MEMORY = 0.99
"""Of the moving average of the accuracy on fakes, from one generator step to the next (Bie et al. 2023)."""

GRACE = 200
"""Generator steps, at the least, from one rung of the ladder to the next: 2 / (1 - MEMORY) (Bie et al. 2023)."""


@dataclass(frozen=True, kw_only=True)
class DPSGDSettings:
    """The discriminator and how it learns. The first four, with the number of records, are what the guarantee needs."""

    clip_norm: float
    noise_multiplier: NoiseMultiplier  # noise_std over clip_norm
    learning_batch: Batch  # records an update, on average
    releases: Steps  # updates of the discriminator in the whole run
    updates: Updates = 1  # of the discriminator, a generator step (n_dis); at first, if they are raised
    raise_below: float | None = None  # accuracy on fakes below which updates are raised; None: never
    pairs: bool = False  # clip a record's gradient together with the mean one of the fakes of its class
    width: Width = 32
    learning_rate: LearningRate = 2e-4
    betas: Betas = (0.5, 0.999)

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


class DPSGDGAN(DiscriminatorCritic):
    """The discriminator behind its barrier: each update is one release."""

    def __init__(
        self,
        settings: DPSGDSettings,
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
