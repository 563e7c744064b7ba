"""The critic of preset `refined`, in three stages: kernel, pre-training, DP-SGD (docs/methods.md).

1. The kernel critic makes its one release and trains a generator with it.
2. A denoiser is pre-trained, on public images where there are some and then on samples of that generator:
   post-processing, as many steps as one likes (`pretraining.py`).
3. The denoiser learns from the records with DP-SGD: each record takes part by its own secret coin, the gradient of its
   loss, averaged over several noise draws *before* the clip, is clipped, summed and released with noise. Where persons
   are protected, each person does, with a gradient that is a mean over draws of the person's own records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble.distributed import Ranks
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.refined.gradients import Gradients
from gswgan.critics.refined.pretraining import Pretraining
from gswgan.critics.refined.records import HeldRecords, gradients_of, send_weights
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.critics.refined.steps import DPSGD, number
from gswgan.data import ImageData
from gswgan.errors import PrivacyError
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.generators.refined import RefinedGenerator
from gswgan.privacy import GaussianMechanism, Streams
from gswgan.privacy.randomness import BatchStreams

SAMPLES = 2**14
"""Samples at the most whose gradients the preconditioner comes from."""

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""What the private log keeps of a step's gradient norms."""


class RefinedStart(Critic):
    """The first two stages, and the axes of the gradients to come: nothing here looks at records."""

    def __init__(
        self,
        settings: RefinedSettings,
        optimizer: OptimizerSettings,
        kernel: KernelCritic,
        *,
        public: Streams,
        public_images: Callable[[], np.ndarray],
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.settings, self.optimizer, self.kernel, self._note = settings, optimizer, kernel, note
        self._public, self._public_images = public, public_images
        self._step = -1
        self._gradients: Gradients | None = None
        self._pretraining: Pretraining | None = None

    @property
    def moves_generator(self) -> bool:
        """Whether `learn` has trained the denoiser, so that there is nothing left to do in this step."""
        return self._step >= self.settings.steps

    @property
    def can_be_captured(self) -> bool:
        """As the kernel critic, which answers."""
        return self.kernel.can_be_captured

    @property
    def steps(self) -> int:
        """Of both stages together."""
        return self.settings.steps + self.settings.public_steps + self.settings.pretraining

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """The kernel's release, or the one that there is already."""
        self.kernel.prepare(data, resumed=resumed)

    def learn(self, step: int, generator: Generator) -> None:
        """The stage's step."""
        self._step = step
        if step < self.settings.steps:
            self.kernel.learn(step, generator)
            return
        assert isinstance(generator, RefinedGenerator)
        self._pretrainer(generator).step(step - self.settings.steps)

    def fit(self, generator: RefinedGenerator) -> None:
        """The axes and scales of the gradients of records, from those of samples."""
        self._note("before DP-SGD: the axes of gradients, from those of samples")
        found = self._pretrainer(generator).gradients(min(SAMPLES, self.settings.samples))
        generator.preconditioner.fit(found, power=self.settings.scaling)
        self._pretraining = None  # its images are done with

    def gradients(self, generator: RefinedGenerator) -> Gradients:
        """Of the denoiser's loss."""
        if self._gradients is None:
            self._gradients = gradients_of(self.settings, generator.denoised)
        return self._gradients

    def _pretrainer(self, generator: RefinedGenerator) -> Pretraining:
        if self._pretraining is None:
            self._pretraining = Pretraining(
                self.settings, generator, self.gradients(generator), streams=self._public,
                average=self.optimizer.average, public_images=self._public_images, note=self._note,
            )  # fmt: skip
        return self._pretraining

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Post-processing of the kernel's release."""
        return self.kernel.upstream_gradient(fake, labels)

    def metrics(self) -> dict[str, Any]:
        """Of the stage: the kernel's distance."""
        return {"stage": "pre-training"} if self.moves_generator else self.kernel.metrics()

    def state(self) -> dict[str, Tensor]:
        """The kernel critic's: what the denoiser has learnt is the generator's."""
        return self.kernel.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.kernel.load_state(tensors)


class Refined(RefinedStart):
    """The kernel critic for the first steps; after them the denoiser is trained here, and the loop is left out."""

    def __init__(
        self,
        settings: RefinedSettings,
        optimizer: OptimizerSettings,
        kernel: KernelCritic,
        mechanism: GaussianMechanism,
        *,
        releases: int,
        batches: BatchStreams,
        device: torch.device,
        ranks: Ranks | None = None,
        **public: Any,
    ) -> None:
        """`optimizer` is that of DP-SGD, which makes so many `releases`, each by `mechanism`.

        `ranks`: the processes that hold the records; this one is the first of them. `public`: as of the start.
        """
        super().__init__(settings, optimizer, kernel, **public)
        self.mechanism, self.device = mechanism, device
        self._dp_sgd = DPSGD(settings=settings, optimizer=optimizer, releases=releases)
        self._batches, self._ranks = batches, ranks
        self._begun = False  # DP-SGD, in this process
        self.records: HeldRecords

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """The kernel's release; the records, or those that this rank holds, go to the device."""
        if data is None:
            raise PrivacyError("data", None, "data in memory: DP-SGD looks at records again and again")
        if (data.persons is None) != (self.settings.person_clip is None):
            found, expected = ("nobody", "by person") if data.persons is None else ("by person", "by record")
            raise PrivacyError("persons", found, f"data {expected}, as was planned")
        super().prepare(data, resumed=resumed)
        self.records = HeldRecords(data, self.device, self._ranks)

    def learn(self, step: int, generator: Generator) -> None:
        """The stage's step."""
        if step < self.steps:
            super().learn(step, generator)
            return
        self._step = step
        assert isinstance(generator, RefinedGenerator)
        self._dp_sgd_step(step - self.steps, generator)

    def _dp_sgd_step(self, step: int, generator: RefinedGenerator) -> None:
        if step == 0:
            self.fit(generator)
        if self._ranks is not None:
            send_weights(self._ranks, generator.denoised, None if self._begun else generator.preconditioner, step)
        if not self._begun:
            gradients = self.gradients(generator)
            self.records.begin(generator.denoised, generator.preconditioner, gradients, self.mechanism)
            self._begun = True
        self._dp_sgd.step(step, self.records, generator.descent, self._batches)
        generator.average_denoiser(number(self._dp_sgd.kept(step), self.device))

    def metrics(self) -> dict[str, Any]:
        """Of the stage: as of the start, or QUANTILES of the norms of gradients before the clip (private)."""
        if not self._begun:
            return super().metrics()
        found: dict[str, Any] = {"stage": "DP-SGD"}
        if self.records.descent.norms:
            norms = torch.cat(self.records.descent.norms).double().nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
            found |= {"participants": len(norms), "norm_before": np.quantile(norms, QUANTILES).tolist()}
        return found
