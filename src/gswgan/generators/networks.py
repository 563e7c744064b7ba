"""The generator networks, the parts that they share, and the latent codes and labels that they are fed."""

from __future__ import annotations

import functools
import itertools
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as normalize_spectrum

LatentKind = Literal["normal", "bernoulli"]


def latent_codes(count: int, dim: int, kind: LatentKind, rng: np.random.Generator) -> Tensor:
    """z ~ P_z: standard normal, or Bernoulli(0.5) as in the published code."""
    if kind == "normal":
        return torch.from_numpy(rng.standard_normal((count, dim), dtype=np.float32))
    return torch.from_numpy(rng.integers(0, 2, (count, dim)).astype(np.float32))


def balanced_labels(count: int, classes: np.ndarray, rng: np.random.Generator) -> Tensor:
    """Labels with a uniform prior, as evenly spread as `count` allows, in random order.

    Every class that occurs does so at least twice (the kernel's distance needs pairs): with too many classes
    for one batch, a random subset of them is taken.
    """
    chosen = rng.permutation(classes)[: max(1, count // 2)]
    return torch.from_numpy(rng.permutation(np.resize(chosen, count)).astype(np.int64))


def normed(layer: nn.Module, on: bool) -> nn.Module:
    """The layer, under spectral normalization where asked for (the published networks use it throughout)."""
    return normalize_spectrum(layer) if on else layer


def label_code(labels: Tensor, classes: int) -> Tensor:
    """One-hot labels; nothing at all for an unconditional generator."""
    if classes == 1:
        return torch.zeros(labels.shape[0], 0, device=labels.device)
    return nn.functional.one_hot(labels, classes).to(torch.float32)


def upsampling(image_size: int) -> tuple[int, int]:
    """(side of the first feature map, number of doublings): 8 -> (4, 1), 28 -> (7, 2), 64 -> (4, 4).

    The result may be larger than asked for (30 -> 4 x 2^3 = 32); the networks crop the middle.
    """
    doublings = 1
    while image_size > 7 * 2**doublings:
        doublings += 1
    return -(-image_size // 2**doublings), doublings


def repeated(maps: Tensor) -> Tensor:
    """Twice the side: each pixel four times."""
    return nn.functional.interpolate(maps, scale_factor=2.0)


def doubled(maps: Tensor, *, corners: bool = False) -> Tensor:
    """Twice the side, bilinear: `interpolate(..., align_corners=corners)` as two matrix products.

    The gradient of `interpolate` on CUDA adds in any order and, with 16 bits, slowly; that of a product does neither.
    """
    kind = torch.float64 if maps.dtype == torch.float64 else torch.float32
    weights = _interpolation(maps.shape[-1], corners, maps.device, kind)
    return weights @ (maps @ weights.T)


@functools.cache
def _interpolation(side: int, corners: bool, device: torch.device, kind: torch.dtype) -> Tensor:
    """[2 side, side]: each new pixel as a mixture of the old ones along one axis."""
    ones = torch.eye(side, dtype=kind)[:, None]
    rows = nn.functional.interpolate(ones, scale_factor=2.0, mode="linear", align_corners=corners)
    return rows[:, 0].T.contiguous().to(device)


def crop(images: Tensor, size: int) -> Tensor:
    """The middle size x size of the images."""
    top = (images.shape[-1] - size) // 2
    return images[..., top : top + size, top : top + size]


def to_pixels(maps: Tensor, size: int) -> Tensor:
    """Images in [0, 1] from the last maps, in 32 bits also where the network computes in 16."""
    middle = crop(maps, size)
    return torch.sigmoid(middle if middle.dtype == torch.float64 else middle.float())


class MLPGenerator(nn.Module):
    """For tiny images: latent code and label through hidden layers of `width` to pixels in [0, 1]."""

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


class DCGANGenerator(nn.Module):
    """A DCGAN (Radford et al. 2016): a small feature map, doubled by 4x4 transposed convolutions up to the image."""

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


HIDDEN = 200


class BilinearGenerator(nn.Module):
    """The small generator of DP-MERF (Harder et al. 2021): two full layers, then a small feature map that is doubled
    without weights and smoothed by one 5x5 convolution per level."""

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
    """The paper's generator: residual blocks adapted from BigGAN (Brock et al. 2019) up to the image.

    The paper's blocks double the side by repeating pixels. Ours may interpolate instead (`smooth`): such a network
    draws noise less readily and strokes as well (docs/methods.md).
    """

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
