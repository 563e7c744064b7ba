"""The generator networks: the paper's ResNet, a DCGAN, the small network of DP-MERF, and one for tiny images.

The layers that they share, and that the decoded generator shares with them, come first.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

HIDDEN = 200
"""The width of the full layer of DP-MERF's network."""


def normed(layer: nn.Module, on: bool) -> nn.Module:
    """Return the layer, with spectral normalization if `on` (the published networks use it throughout)."""
    return parametrizations.spectral_norm(layer) if on else layer


def label_code(labels: Tensor, classes: int) -> Tensor:
    """Return one-hot labels [n, classes], or [n, 0] for an unconditional generator."""
    if classes == 1:
        return torch.zeros(labels.shape[0], 0, device=labels.device)
    return nn.functional.one_hot(labels, classes).to(torch.float32)


def upsampling(image_size: int) -> tuple[int, int]:
    """Return the side of the first feature map and the number of doublings: 8 -> (4, 1), 28 -> (7, 2), 64 -> (4, 4).

    The result may be larger than asked for (30 -> 4 x 2^3 = 32); the networks crop the middle.
    """
    doublings = 1
    while image_size > 7 * 2**doublings:
        doublings += 1
    return -(-image_size // 2**doublings), doublings


def repeated(maps: Tensor) -> Tensor:
    """Double the side by repeating each pixel four times."""
    return nn.functional.interpolate(maps, scale_factor=2.0)


def doubled(maps: Tensor, *, corners: bool = False) -> Tensor:
    """Double the side bilinearly: `interpolate(..., align_corners=corners)` as two matrix products.

    The gradient of `interpolate` on CUDA adds in any order and, with 16 bits, slowly; that of a product does neither.
    """
    kind = torch.float64 if maps.dtype == torch.float64 else torch.float32
    weights = _interpolation(maps.shape[-1], corners, maps.device, kind)
    return weights @ (maps @ weights.T)


@functools.cache
def _interpolation(side: int, corners: bool, device: torch.device, kind: torch.dtype) -> Tensor:
    """Return [2 side, side]: each new pixel as a mixture of the old ones along one axis."""
    ones = torch.eye(side, dtype=kind)[:, None]
    rows = nn.functional.interpolate(ones, scale_factor=2.0, mode="linear", align_corners=corners)
    return rows[:, 0].T.contiguous().to(device)


def crop(images: Tensor, size: int) -> Tensor:
    """Return the middle size x size pixels of the images."""
    top = (images.shape[-1] - size) // 2
    return images[..., top : top + size, top : top + size]


def to_pixels(maps: Tensor, size: int) -> Tensor:
    """Return images in [0, 1] from the last maps, in 32 bits even where the network computes in 16."""
    middle = crop(maps, size)
    return torch.sigmoid(middle if middle.dtype == torch.float64 else middle.float())


class ImageGenerator(nn.Module):
    """G(z, y): latent codes and labels to images [n, channels, side, side] in [0, 1]."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        self.classes, self.channels, self.image_size, self.width = classes, channels, image_size, width
        self.spectral_norm = spectral_norm
        self.inputs = latent + (classes if classes > 1 else 0)
        self.side, self.doublings = upsampling(image_size)  # of the first feature map; up to the image

    def layer(self, layer: nn.Module) -> nn.Module:
        """Return the layer, under spectral normalization where that is asked for."""
        return normed(layer, self.spectral_norm)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): images [n, channels, side, side]."""
        return self._draw(torch.cat([latent, label_code(labels, self.classes)], dim=1))

    @abstractmethod
    def _draw(self, inputs: Tensor) -> Tensor:
        """Return the images of latent codes with one-hot labels beside them."""


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
        """Return as many maps of twice the side."""
        double = doubled if self.smooth else repeated
        hidden = self.conv1(double(torch.relu(self.norm1(maps))))
        hidden = self.conv2(torch.relu(self.norm2(hidden)))
        return hidden + double(self.shortcut(maps))


class ResNetGenerator(ImageGenerator):
    """The paper's generator: residual blocks adapted from BigGAN (Brock et al. 2019).

    The paper's blocks double the side by repeating pixels. With `smooth` they interpolate instead, which makes the
    network less prone to drawing noise (docs/methods.md).
    """

    def __init__(self, *, smooth: bool = False, **shape: Any) -> None:
        super().__init__(**shape)
        width = self.width
        self.first = (width, self.side, self.side)
        self.project = self.layer(nn.Linear(self.inputs, width * self.side**2))
        self.blocks = nn.Sequential(*(ResidualBlock(width, self.spectral_norm, smooth) for _ in range(self.doublings)))
        self.norm = nn.BatchNorm2d(width)
        self.head = self.layer(nn.Conv2d(width, self.channels, 3, padding=1))

    def _draw(self, inputs: Tensor) -> Tensor:
        hidden = self.blocks(self.project(inputs).view(-1, *self.first))
        return to_pixels(self.head(torch.relu(self.norm(hidden))), self.image_size)


class DCGANGenerator(ImageGenerator):
    """A DCGAN (Radford et al. 2016): 4x4 transposed convolutions double a small feature map up to the image."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        maps = self.width * 2 ** (self.doublings - 1)
        self.first = (2 * maps, self.side, self.side)
        self.project = self.layer(nn.Linear(self.inputs, 2 * maps * self.side**2))
        layers: list[nn.Module] = [nn.BatchNorm2d(2 * maps), nn.ReLU()]
        incoming = 2 * maps
        for level in range(self.doublings):
            outgoing = maps // 2**level
            layers.append(self.layer(nn.ConvTranspose2d(incoming, outgoing, 4, stride=2, padding=1)))
            layers += [nn.BatchNorm2d(outgoing), nn.ReLU()]
            incoming = outgoing
        self.body = nn.Sequential(*layers)
        self.head = self.layer(nn.Conv2d(incoming, self.channels, 3, padding=1))

    def _draw(self, inputs: Tensor) -> Tensor:
        hidden = self.body(self.project(inputs).view(-1, *self.first))
        return to_pixels(self.head(hidden), self.image_size)


class BilinearGenerator(ImageGenerator):
    """The small generator of DP-MERF (Harder et al. 2021): two full layers, bilinear upsampling, 5x5 convolutions."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        last = self.doublings - 1
        maps = [self.width * 2 ** max(0, last - level) for level in range(self.doublings)] + [self.channels]
        self.first = (maps[0], self.side, self.side)
        flat = maps[0] * self.side**2
        self.body = nn.Sequential(
            self.layer(nn.Linear(self.inputs, HIDDEN)), nn.BatchNorm1d(HIDDEN), nn.ReLU(),
            self.layer(nn.Linear(HIDDEN, flat)), nn.BatchNorm1d(flat),
        )  # fmt: skip
        self.levels = nn.ModuleList(
            self.layer(nn.Conv2d(incoming, outgoing, 5, padding=2)) for incoming, outgoing in itertools.pairwise(maps)
        )

    def _draw(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs).view(-1, *self.first)
        for number, level in enumerate(self.levels):
            hidden = torch.relu(hidden) if number else hidden
            hidden = level(doubled(hidden, corners=True))
        return to_pixels(hidden, self.image_size)


class MLPGenerator(ImageGenerator):
    """A fully connected network for tiny images: two hidden layers of `width`."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        layers: list[nn.Module] = []
        for size in (self.inputs, self.width):
            layers += [self.layer(nn.Linear(size, self.width)), nn.BatchNorm1d(self.width), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = self.layer(nn.Linear(self.width, self.channels * self.image_size**2))

    def _draw(self, inputs: Tensor) -> Tensor:
        images = torch.sigmoid(self.head(self.body(inputs)))
        return images.view(-1, self.channels, self.image_size, self.image_size)
