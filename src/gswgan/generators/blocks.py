"""Layers and functions that the generator networks share."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


def normed(layer: nn.Module, on: bool) -> nn.Module:
    """Return the layer, with spectral normalization if `on` (the published networks use it throughout)."""
    return spectral_norm(layer) if on else layer


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
