"""A small fully connected generator for tiny images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gswgan.generators.blocks import label_code, normed


class MLPGenerator(nn.Module):
    """Latent code and label through hidden layers of `width` to pixels in [0, 1]."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        self.classes, self.shape = classes, (channels, image_size, image_size)
        inputs = latent + (classes if classes > 1 else 0)
        layers: list[nn.Module] = []
        for size in (inputs, width):
            layers += [normed(nn.Linear(size, width), spectral_norm), nn.BatchNorm1d(width), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = normed(nn.Linear(width, channels * image_size**2), spectral_norm)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): images [n, channels, side, side]."""
        hidden = self.body(torch.cat([latent, label_code(labels, self.classes)], dim=1))
        return torch.sigmoid(self.head(hidden)).view(-1, *self.shape)
