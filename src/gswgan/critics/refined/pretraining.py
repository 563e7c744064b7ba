"""The pre-training of the denoiser: on public images where there are some, then on samples of the kernel's generator.

Nothing here looks at records. Public images have labels at random, which teaches the denoiser that the class says
nothing about them. In the steps on samples a share of each batch is public images, and they get its smallest noise
levels: at these the denoiser learns details, which samples of the kernel's generator do not have; at the larger ones it
learns the classes, which public images do not have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.refined.gradients import Gradients
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.refined import RefinedGenerator
from gswgan.privacy import Streams

SAMPLES_PER_GRADIENT = 256
"""Images in each of the gradients that the preconditioner comes from."""

PIXELS_AT_ONCE = 2**18
"""Of the images whose gradient is computed together."""

WARM_UP = 100
"""Steps in which the learning rate rises."""


def at_once(side: int) -> int:
    """Images whose gradient is computed together, of so many that are averaged: memory does not grow with the side."""
    return max(1, min(SAMPLES_PER_GRADIENT, PIXELS_AT_ONCE // side**2))


class Pretraining:
    """Both stages, each with a new optimizer and a learning rate that falls to 0."""

    def __init__(
        self,
        settings: RefinedSettings,
        generator: RefinedGenerator,
        gradients: Gradients,
        *,
        streams: Streams,
        public_images: Callable[[], np.ndarray],
        average: float,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`average`: how much the averaged weights keep of themselves in a step, at the most."""
        self.settings, self.generator, self._gradients = settings, generator, gradients
        self._streams, self._average, self._note, self.device = streams, average, note, generator.device
        self.classes = generator.denoised.denoiser.classes
        self._public: Tensor | None = None
        if settings.public_steps:
            self._public = torch.from_numpy(public_images()).to(self.device)  # uint8: gathered in each step
        self._on_public = Captured(self._public_step)
        self._on_samples: Captured | None = None

    def step(self, step: int) -> None:
        """Step number `step` of both stages together."""
        settings, first = self.settings, self.settings.public_steps
        if step in (0, first):
            self.generator.begin()
        batch = settings.pretraining_batch
        if step < first:
            some = self._some_public("public batch", step, batch)
            self._on_public(*some, *self._schedule("public", step, first))
            return
        step -= first
        share = int(settings.public_share * batch)
        chosen = self._draw("pretraining batch", step, settings.samples, batch - share)
        public = self._some_public("public share", step, share) if share else ()
        if self._on_samples is None:
            self._on_samples = Captured(self._make_sample_step())
        self._on_samples(chosen, *self._schedule("pretraining", step, settings.pretraining), *public)

    def gradients(self, count: int) -> Tensor:
        """[n, P]: gradients of batches like those of the last stage, `count` images in all.

        The preconditioner comes from them: post-processing, free.
        """
        images, labels = self.generator.samples(count)
        found = []
        number = 0
        for group in torch.arange(count, device=self.device).split(SAMPLES_PER_GRADIENT):
            each = []
            for some in group.split(at_once(images.shape[-1])):  # each part has all noise levels, as a batch has
                share = int(self.settings.public_share * len(some))
                public = self._some_public("preconditioner", number, share) if share else ()
                batch = self._mixed(images[some[share:]].float(), labels[some[share:]], *public)
                each.append(self._gradients.of_samples(*batch, torch.tensor(number).to(self.device)))
                number += 1
            found.append(torch.stack(each).mean(dim=0))
        return torch.stack(found)

    def _public_step(self, some: Tensor, labels: Tensor, seed: Tensor, rate: Tensor, keep: Tensor) -> None:
        self._descend(self._public_images(some), labels, seed, rate, keep)

    def _make_sample_step(self) -> Callable[..., None]:
        self._note(f"drawing {self.settings.samples:,} samples for the pre-training")
        images, labels = self.generator.samples(self.settings.samples)

        def work(chosen: Tensor, seed: Tensor, rate: Tensor, keep: Tensor, *public: Tensor) -> None:
            self._descend(*self._mixed(images[chosen].float(), labels[chosen], *public), seed, rate, keep)

        return work

    def _mixed(self, images: Tensor, labels: Tensor, *public: Tensor) -> tuple[Tensor, Tensor]:
        """Samples after public images, if any: the noise levels of a batch rise from its first image to its last."""
        if not public:
            return images, labels
        return torch.cat([self._public_images(public[0]), images]), torch.cat([public[1], labels])

    def _descend(self, images: Tensor, labels: Tensor, seed: Tensor, rate: Tensor, keep: Tensor) -> None:
        self.generator.descend_denoiser(self._gradients.of_samples(images, labels, seed), rate, keep)

    def _public_images(self, some: Tensor) -> Tensor:
        assert self._public is not None
        return self._public[some].float() / 255

    def _schedule(self, name: str, step: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """The seed of the step's noise, its learning rate, and what the averaged weights keep of themselves."""
        rate = self.settings.pretraining_rate * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
        keep = min(self._average, step / (step + 10))
        seed = torch.tensor(self._streams.integer(name, step), dtype=torch.int64)
        return seed.to(self.device), torch.tensor(rate).to(self.device), torch.tensor(keep).to(self.device)

    def _some_public(self, name: str, step: int, count: int) -> tuple[Tensor, Tensor]:
        """Places of public images, and labels at random."""
        assert self._public is not None
        return self._draw(name, step, len(self._public), count), self._draw(
            f"{name}: labels", step, self.classes, count
        )

    def _draw(self, name: str, step: int, below: int, count: int) -> Tensor:
        return torch.from_numpy(self._streams.generator(name, step).integers(below, size=count)).to(self.device)
