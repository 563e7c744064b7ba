"""Images from a denoiser: the network that is released, which solves the way from noise to an image in a few steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gswgan.errors import PlanError
from gswgan.generators.denoiser import DATA_STD, PLAIN, Denoiser, Operations, scales

EVALUATIONS = 10
"""Of the denoiser, for each image."""

MAX_NOISE, MIN_NOISE, BEND = 20.0, 0.02, 7.0
"""Of the noise levels passed through (Karras et al. 2022, equation 5)."""


def noise_levels(evaluations: int) -> Tensor:
    """From MAX_NOISE down to MIN_NOISE, denser towards the end; [evaluations], in float64."""
    place = torch.linspace(0, 1, evaluations, dtype=torch.float64)
    first, last = MAX_NOISE ** (1 / BEND), MIN_NOISE ** (1 / BEND)
    return (first + place * (last - first)) ** BEND


class DenoisedSampler(nn.Module):
    """G(z, y): z is the noise that the way begins with, one number for each of an image's."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        if latent != channels * image_size**2:
            raise PlanError("latent", latent, f"{channels * image_size**2}, as many numbers as an image has")
        self.shape = (image_size, image_size, channels)
        self.denoiser = Denoiser(image_size=image_size, channels=channels, classes=classes, width=width)
        self.evaluations = EVALUATIONS

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images [n, channels, side, side] in [0, 1]: DPM-Solver++(2M), Lu et al. 2022, from noise to an image."""
        levels = noise_levels(self.evaluations).tolist()
        images = latent.unflatten(1, self.shape) * (levels[0] ** 2 + DATA_STD**2) ** 0.5
        before: Tensor | None = None
        for index, level in enumerate(levels):
            clean = denoise(self.denoiser, images, level, labels)
            if index + 1 == len(levels):
                return ((clean.permute(0, 3, 1, 2) + 1) / 2).clamp(0, 1)
            following, target = levels[index + 1], clean
            if before is not None:  # second order: as the answers change along ln(noise)
                ratio = _apart(levels[index - 1], level) / _apart(level, following)
                target = clean + (clean - before) / (2 * ratio)
            images = (following / level) * images + (1 - following / level) * target
            before = clean
        raise AssertionError("there is at least one level")


def _apart(high: float, low: float) -> float:
    """How far two noise levels are from each other, in ln(noise)."""
    return float(torch.tensor(high / low, dtype=torch.float64).log())


def denoise(denoiser: Denoiser, images: Tensor, level: float, labels: Tensor, operations: Operations = PLAIN) -> Tensor:
    """D(x; level): the image that is expected behind the noise, [n, side, side, c] in [-1, 1]."""
    skip, out, scaled, told = scales(torch.full((len(images),), level, device=images.device))
    found = denoiser(scaled[:, None, None, None] * images, told, labels, None, operations)
    return (skip[:, None, None, None] * images + out[:, None, None, None] * found).clamp(-1, 1)
