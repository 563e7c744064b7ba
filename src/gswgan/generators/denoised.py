"""Images from a denoiser: the network that is released, which solves the way from noise to an image in a few steps."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from gswgan.errors import PlanError
from gswgan.generators.denoiser import PLAIN, Denoiser, Operations, scales

EVALUATIONS = 15
"""Of the denoiser on the way to an image, one at each noise level; one more finds where the way begins."""

MAX_NOISE, MIN_NOISE, BEND = 12.0, 0.05, 7.0
"""Of the noise levels passed through (Karras et al. 2022, equation 5). DP-SGD hardly trains the levels beyond them."""


def latent_size(pixels: int) -> int:
    """Numbers in a code: the noise that the way begins with, and the fresh noise of each step but the last."""
    return pixels * EVALUATIONS


def noise_levels(evaluations: int) -> Tensor:
    """From MAX_NOISE down to MIN_NOISE, denser towards the end; [evaluations], in float64."""
    place = torch.linspace(0, 1, evaluations, dtype=torch.float64)
    first, last = MAX_NOISE ** (1 / BEND), MIN_NOISE ** (1 / BEND)
    return (first + place * (last - first)) ** BEND


class DenoisedSampler(nn.Module):
    """G(z, y): z is the noise that the way begins with and all fresh noise on it."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        if latent != latent_size(channels * image_size**2):
            raise PlanError("latent", latent, f"{latent_size(channels * image_size**2)}, the noise on the way")
        self.shape = (image_size, image_size, channels)
        self.denoiser = Denoiser(image_size=image_size, channels=channels, classes=classes, width=width)
        self.evaluations = EVALUATIONS

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images [n, channels, side, side] in [0, 1]: the stochastic DPM-Solver++(2M), Lu et al. 2022.

        The way begins at the mean image that the denoiser expects behind pure noise. In each step a part of the noise
        is replaced by fresh noise, which makes up for errors of the steps before.
        """
        levels = noise_levels(self.evaluations).tolist()
        begin, *fresh = latent.unflatten(1, (-1, *self.shape)).unbind(1)
        images = begin * levels[0]
        images = images + denoise(self.denoiser, images, levels[0], labels)
        target = before = denoise(self.denoiser, images, levels[0], labels)
        for index, (level, following) in enumerate(itertools.pairwise(levels)):
            kept = (following / level) ** 2
            images = kept * images + (1 - kept) * target + following * math.sqrt(1 - kept) * fresh[index]
            clean = denoise(self.denoiser, images, following, labels)
            if index + 2 < len(levels):  # second order: as the answers change along ln(noise)
                ahead = math.log(following / levels[index + 2]) / math.log(level / following)
                target = clean + (clean - before) * (ahead / 2)
            before = clean
        return ((before.permute(0, 3, 1, 2) + 1) / 2).clamp(0, 1)


def denoise(denoiser: Denoiser, images: Tensor, level: float, labels: Tensor, operations: Operations = PLAIN) -> Tensor:
    """D(x; level): the image that is expected behind the noise, [n, side, side, c] in [-1, 1]."""
    skip, out, scaled, told = scales(torch.full((len(images),), level, device=images.device))
    found = denoiser(scaled[:, None, None, None] * images, told, labels, None, operations)
    return (skip[:, None, None, None] * images + out[:, None, None, None] * found).clamp(-1, 1)
