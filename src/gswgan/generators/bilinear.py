"""The small generator of DP-MERF (Harder et al. 2021): two full layers, bilinear upsampling, 5x5 convolutions."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from gswgan.generators.blocks import doubled, label_code, normed, to_pixels, upsampling

HIDDEN = 200


class BilinearGenerator(nn.Module):
    """Latent code and label to a small feature map, doubled without weights, smoothed by one convolution a level."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        self.classes, self.image_size = classes, image_size
        side, doublings = upsampling(image_size)
        maps = [width * 2 ** max(0, doublings - 1 - level) for level in range(doublings)] + [channels]
        self.first = (maps[0], side, side)
        inputs, flat = latent + (classes if classes > 1 else 0), maps[0] * side**2
        self.body = nn.Sequential(
            normed(nn.Linear(inputs, HIDDEN), spectral_norm), nn.BatchNorm1d(HIDDEN), nn.ReLU(),
            normed(nn.Linear(HIDDEN, flat), spectral_norm), nn.BatchNorm1d(flat),
        )  # fmt: skip
        self.levels = nn.ModuleList(
            normed(nn.Conv2d(incoming, outgoing, 5, padding=2), spectral_norm)
            for incoming, outgoing in itertools.pairwise(maps)
        )

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): images [n, channels, side, side]."""
        hidden = self.body(torch.cat([latent, label_code(labels, self.classes)], dim=1)).view(-1, *self.first)
        for number, level in enumerate(self.levels):
            hidden = torch.relu(hidden) if number else hidden
            hidden = level(doubled(hidden, corners=True))
        return to_pixels(hidden, self.image_size)
