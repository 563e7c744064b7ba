"""Discriminators of the DP-SGD GAN, public fakes for them, and what they release."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from gswgan.critics.dp_sgd_gan import DPSGDGAN
from gswgan.data import ImageData
from gswgan.generators.generator import Generator
from gswgan.methods.dp_sgd_gan import DPSGDGANSettings
from gswgan.privacy import Streams

CPU = torch.device("cpu")


CLIP = 0.7


SETTINGS = DPSGDGANSettings(
    clip_norm=CLIP, noise_multiplier=1.5, learning_batch=24, releases=12, updates=2, width=4, learning_rate=1e-2
)


class Fakes:
    """A generator that is public and fixed: its fakes depend on the index alone."""

    def __init__(self, shape: tuple[int, ...] = (1, 8, 8), classes: int = 3) -> None:
        self.shape, self.classes = shape, classes

    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        rng = Streams.public(5).generator("fakes", *index)
        images = torch.from_numpy(rng.random((count, *self.shape), dtype=np.float32))
        return images, torch.from_numpy(rng.permutation(np.resize(np.arange(self.classes), count)))


FAKES: Generator = Fakes()  # type: ignore[assignment]


def make(data: ImageData, mechanism_for, *, device: torch.device = CPU, **changes) -> DPSGDGAN:
    settings = dataclasses.replace(SETTINGS, **changes)
    critic = DPSGDGAN(
        settings, mechanism_for(settings.contribution, event=settings.event(data.n), key=3),
        image_size=data.image_size, channels=data.channels, classes=data.classes,
        public=Streams.public(0), device=device,
    )  # fmt: skip
    critic.prepare(data)
    return critic


def drawn(critic: DPSGDGAN, step: int, update: int) -> np.ndarray:
    """Who takes part in one update."""
    return critic.gradients.draw(f"step {step} update {update}")


def watch(critic: DPSGDGAN) -> list[tuple[str, np.ndarray]]:
    """The names and sums of all releases of this critic, in a list that grows."""
    seen: list[tuple[str, np.ndarray]] = []
    original = critic.gradients.mechanism.answer

    def release(name, blocks, *, slots, width):
        released = original(name, blocks, slots=slots, width=width)
        seen.append((name, released.sums))
        return released

    critic.gradients.mechanism.answer = release  # type: ignore[method-assign]
    return seen


def steepened(critic: DPSGDGAN) -> DPSGDGAN:
    """With gradients much longer than CLIP."""
    with torch.no_grad():
        for weight in critic.discriminator.parameters():
            weight.mul_(4)
    return critic
