"""The paper's generator: residual blocks adapted from BigGAN (Brock et al. 2019).

The paper's blocks double the side by repeating pixels. Ours may interpolate instead (`smooth`): such a network draws
noise less readily and strokes as well (docs/methods.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gswgan.generators.blocks import doubled, label_code, normed, repeated, to_pixels, upsampling


class ResidualBlock(nn.Module):
    """Normalize, activate, double the side, convolve, twice; plus a 1x1 shortcut."""

    def __init__(self, width: int, spectral_norm: bool, smooth: bool) -> None:
        super().__init__()
        self.smooth = smooth
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1 = normed(nn.Conv2d(width, width, 3, padding=1), spectral_norm)
        self.conv2 = normed(nn.Conv2d(width, width, 3, padding=1), spectral_norm)
        self.shortcut = normed(nn.Conv2d(width, width, 1), spectral_norm)

    def forward(self, maps: Tensor) -> Tensor:
        """Twice the side, the same number of maps."""
        double = doubled if self.smooth else repeated
        hidden = self.conv1(double(torch.relu(self.norm1(maps))))
        hidden = self.conv2(torch.relu(self.norm2(hidden)))
        return hidden + double(self.shortcut(maps))


class ResNetGenerator(nn.Module):
    """Latent code and label to a small feature map, residual blocks up to the image."""

    def __init__(
        self,
        *,
        latent: int,
        classes: int,
        channels: int,
        image_size: int,
        width: int,
        spectral_norm: bool = False,
        smooth: bool = False,
    ) -> None:
        super().__init__()
        self.classes, self.image_size = classes, image_size
        side, doublings = upsampling(image_size)
        inputs = latent + (classes if classes > 1 else 0)
        self.first = (width, side, side)
        self.project = normed(nn.Linear(inputs, width * side**2), spectral_norm)
        self.blocks = nn.Sequential(*(ResidualBlock(width, spectral_norm, smooth) for _ in range(doublings)))
        self.norm = nn.BatchNorm2d(width)
        self.head = normed(nn.Conv2d(width, channels, 3, padding=1), spectral_norm)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): images [n, channels, side, side]."""
        hidden = self.project(torch.cat([latent, label_code(labels, self.classes)], dim=1))
        hidden = self.blocks(hidden.view(-1, *self.first))
        images = self.head(torch.relu(self.norm(hidden)))
        return to_pixels(images, self.image_size)
