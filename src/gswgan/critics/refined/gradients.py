"""Gradients of the denoiser's loss: of single records, averaged over their noise draws, or of a batch of samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gswgan.critics.refined.draws import LEVEL_MEAN, LEVEL_STD, noise_levels, normal_noise
from gswgan.critics.refined.operations import ByRecord
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.denoiser import Denoiser, loss_of_draws

SAMPLES_PER_ROW = 8
"""On a GPU the gradient of a batch of samples is the mean of those of so many at a time."""


class Gradients:
    """Rows of gradients in all weights of a denoiser, in the order of its parameters.

    On a GPU in bfloat16. Those of records are recorded and replayed: their shapes never change, and the weights are
    read where they are.
    """

    def __init__(
        self, denoiser: Denoiser, *, draws: int, level_mean: float = LEVEL_MEAN, level_std: float = LEVEL_STD
    ) -> None:
        """`draws`: noise draws for each record; the rest is the law of ln(noise level) for records."""
        self.denoiser, self.draws, self._operations = denoiser, draws, ByRecord()
        self.level_mean, self.level_std = level_mean, level_std
        self._of_records = Captured(self._record_rows)

    def of_records(self, images: Tensor, labels: Tensor, records: Tensor, seed: Tensor) -> Tensor:
        """[n, P]: the gradient of each record's loss, a mean over its draws; not clipped.

        `images` are uint8 [n, c, side, side], `records` the numbers [n] that the noise belongs to, `seed` is that of
        the step. A person is like a record with an image and a label for each draw: [n x draws], one after the other.
        """
        found = self._of_records(images, labels, records, seed)
        assert found is not None
        return found

    def of_samples(self, images: Tensor, labels: Tensor, seed: Tensor) -> Tensor:
        """[P]: the gradient of the mean loss of images [n, c, side, side] in [0, 1], with a draw for each of them."""
        number = torch.arange(len(images), device=images.device)
        noise, many = normal_noise(seed, number, images[0].numel()), centred(images)
        levels = noise_levels(seed, number[:1], len(images))[0]
        if images.is_cuda:  # our own kernels are faster, and sum over eight images at a time
            groups = len(images) // math.gcd(len(images), SAMPLES_PER_ROW)
            return self._rows(many, noise.view(many.shape), levels, labels, groups).float().mean(dim=0)
        weights = {name: value.detach().requires_grad_() for name, value in self.denoiser.weights.items()}
        with torch.enable_grad():
            losses = loss_of_draws(self.denoiser, many, noise.view(many.shape), levels, labels, weights)
            found = torch.autograd.grad(losses.mean(), list(weights.values()))
        return torch.cat([part.flatten() for part in found])

    def _record_rows(self, images: Tensor, labels: Tensor, records: Tensor, seed: Tensor) -> Tensor:
        pixels = images[0].numel()
        noise = normal_noise(seed, records, self.draws * pixels)
        levels = noise_levels(seed, records, self.draws, mean=self.level_mean, std=self.level_std)
        each = self.draws * len(records) // len(images)  # draws of an image
        many = centred(images.float() / 255).repeat_interleave(each, dim=0)
        return self._rows(many, noise.view(many.shape), levels.flatten(), labels.repeat_interleave(each), len(records))

    def _rows(self, images: Tensor, noise: Tensor, levels: Tensor, labels: Tensor, groups: int) -> Tensor:
        """[groups, P]: the gradient of each group's mean loss; the images of a group follow each other."""
        kind = torch.bfloat16 if images.is_cuda else torch.float32
        weights = {
            name: value.detach().to(kind).expand(groups, *value.shape).requires_grad_()
            for name, value in self.denoiser.weights.items()
        }
        with torch.enable_grad():
            losses = loss_of_draws(self.denoiser, images, noise, levels, labels, weights, self._operations)
            total = losses.sum() * (groups / len(images))
        found = torch.autograd.grad(total, list(weights.values()))
        return torch.cat([part.flatten(1) for part in found], dim=1)


def centred(images: Tensor) -> Tensor:
    """[n, c, side, side] in [0, 1] to [n, side, side, c] in [-1, 1]."""
    return (2 * images - 1).permute(0, 2, 3, 1).contiguous()
