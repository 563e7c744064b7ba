"""Images from a denoiser: the network that is released, which solves the way from noise to an image in a few steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gswgan.errors import PlanError
from gswgan.generators.denoiser import PLAIN, Denoiser, Operations, scales

EVALUATIONS = 10
"""Of the denoiser, for each image."""

MAX_NOISE, MIN_NOISE, BEND = 20.0, 0.02, 7.0
"""Of the noise levels passed through (Karras et al. 2022, equation 5)."""


FRESH = 0.0
"""How much of the noise is replaced by fresh noise on the way: 0 none (an ordinary differential equation), 1 as much as
the reversed diffusion has."""


def latent_size(pixels: int) -> int:
    """Numbers in a code: the noise that the way begins with and, with FRESH, that of each step but the last."""
    return pixels * (EVALUATIONS if FRESH else 1)


def noise_levels(evaluations: int, highest: float = MAX_NOISE) -> Tensor:
    """From `highest` down to MIN_NOISE, denser towards the end; [evaluations], in float64."""
    place = torch.linspace(0, 1, evaluations, dtype=torch.float64)
    first, last = highest ** (1 / BEND), MIN_NOISE ** (1 / BEND)
    return (first + place * (last - first)) ** BEND


class DenoisedSampler(nn.Module):
    """G(z, y): z is the noise that the way begins with, one number for each of an image's."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        if latent != latent_size(channels * image_size**2):
            raise PlanError("latent", latent, f"{latent_size(channels * image_size**2)}, the noise on the way")
        self.shape = (image_size, image_size, channels)
        self.denoiser = Denoiser(image_size=image_size, channels=channels, classes=classes, width=width)
        self.evaluations, self.max_noise, self.fresh, self.centred = EVALUATIONS, MAX_NOISE, FRESH, True

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images [n, channels, side, side] in [0, 1]: DPM-Solver++(2M), Lu et al. 2022, from noise to an image.

        With FRESH > 0 it is the solver of the stochastic equation: a part of the noise is replaced on the way by
        fresh noise, which makes up for errors of the steps before.
        """
        levels = noise_levels(self.evaluations, self.max_noise).tolist()
        images, *more = latent.unflatten(1, (-1, *self.shape)).unbind(1)
        images = images * levels[0]
        if self.centred:
            images = images + denoise(self.denoiser, images, levels[0], labels)
        before: Tensor | None = None
        for index, level in enumerate(levels):
            clean = denoise(self.denoiser, images, level, labels)
            if index + 1 == len(levels):
                return ((clean.permute(0, 3, 1, 2) + 1) / 2).clamp(0, 1)
            following, target, step = levels[index + 1], clean, math.log(level / levels[index + 1])
            if before is not None:  # second order: as the answers change along ln(noise)
                target = clean + (clean - before) * (step / (2 * math.log(levels[index - 1] / level)))
            kept = math.exp(-self.fresh * step)
            images = kept * (following / level) * images + (1 - kept * following / level) * target
            if self.fresh:
                images = images + (following * math.sqrt(1 - kept**2)) * more[index]
            before = clean
        raise AssertionError("there is at least one level")


def denoise(denoiser: Denoiser, images: Tensor, level: float, labels: Tensor, operations: Operations = PLAIN) -> Tensor:
    """D(x; level): the image that is expected behind the noise, [n, side, side, c] in [-1, 1]."""
    skip, out, scaled, told = scales(torch.full((len(images),), level, device=images.device))
    found = denoiser(scaled[:, None, None, None] * images, told, labels, None, operations)
    return (skip[:, None, None, None] * images + out[:, None, None, None] * found).clamp(-1, 1)
