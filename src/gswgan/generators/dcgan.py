"""A DCGAN generator (Radford et al. 2016): transposed convolutions, light enough for a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gswgan.generators.blocks import label_code, normed, to_pixels, upsampling


class DCGANGenerator(nn.Module):
    """Latent code and label to a small feature map, doubled by 4x4 transposed convolutions up to the image."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        self.classes, self.image_size = classes, image_size
        side, doublings = upsampling(image_size)
        inputs = latent + (classes if classes > 1 else 0)
        maps = width * 2 ** (doublings - 1)
        self.first = (2 * maps, side, side)
        self.project = normed(nn.Linear(inputs, 2 * maps * side**2), spectral_norm)
        layers: list[nn.Module] = [nn.BatchNorm2d(2 * maps), nn.ReLU()]
        incoming = 2 * maps
        for level in range(doublings):
            outgoing = maps // 2**level
            layers += [
                normed(nn.ConvTranspose2d(incoming, outgoing, 4, stride=2, padding=1), spectral_norm),
                nn.BatchNorm2d(outgoing),
                nn.ReLU(),
            ]
            incoming = outgoing
        self.body = nn.Sequential(*layers)
        self.head = normed(nn.Conv2d(incoming, channels, 3, padding=1), spectral_norm)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): images [n, channels, side, side]."""
        hidden = self.project(torch.cat([latent, label_code(labels, self.classes)], dim=1))
        hidden = self.body(hidden.view(-1, *self.first))
        return to_pixels(self.head(hidden), self.image_size)
