"""The generator of DP-MERF AE (Harder et al. 2021): a small network makes codes, a decoder makes images of them.

The decoder is trained beforehand and stays fixed. In training mode the network returns codes, which its critic
compares; in evaluation mode, and so in all that is published, it returns images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gswgan.generators.networks import crop, label_code, normed, upsampling

CODE = 10
"""The length of a code."""

HIDDEN = 200


def on_sphere(codes: Tensor) -> Tensor:
    """Scale codes to norm sqrt(CODE), so that their largest distance, and a length scale, are known without data."""
    return F.normalize(codes, dim=1) * math.sqrt(codes.shape[1])


class Full(nn.Linear):
    """A full layer that for a single image multiplies and sums output by output, without a matrix product.

    Gradients of single records are computed for many at once. A matrix product of all their codes would round a
    record's row depending on its place among the others.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[n, in] to [n, out]."""
        if len(input) > 1:
            return super().forward(input)
        return (self.weight * input[:, None]).sum(dim=2) + self.bias


class Spread(nn.ConvTranspose2d):
    """A 4x4 transposed convolution that doubles the side, as a matrix product followed by a sum of windows.

    In this form the gradients of single samples are products.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__(incoming, outgoing, 4, stride=2, padding=1)

    def forward(self, maps: Tensor, output_size: list[int] | None = None) -> Tensor:
        """[n, in, h, w] to [n, out, 2 h, 2 w]."""
        windows = self.weight.flatten(1).T @ maps.flatten(2)
        assert self.bias is not None
        return F.fold(windows, 2 * maps.shape[-1], 4, padding=1, stride=2) + self.bias[:, None, None]


class Decoder(nn.Module):
    """Code to image: a full layer to a small feature map, which is doubled up to the image."""

    def __init__(self, *, channels: int, image_size: int, width: int) -> None:
        super().__init__()
        self.image_size = image_size
        side, doublings = upsampling(image_size)
        self.first = (width * 2 ** (doublings - 1), side, side)
        self.project = Full(CODE, math.prod(self.first))
        layers: list[nn.Module] = []
        for level in range(doublings):
            last = level == doublings - 1
            incoming = width * 2 ** (doublings - 1 - level)
            layers += [nn.LeakyReLU(0.2), Spread(incoming, channels if last else incoming // 2)]
        self.body = nn.Sequential(*layers)

    def logits(self, codes: Tensor) -> Tensor:
        """[n, CODE] to [n, channels, side, side]."""
        return crop(self.body(self.project(codes).unflatten(1, self.first)), self.image_size)

    def forward(self, codes: Tensor) -> Tensor:
        """Images in [0, 1]."""
        return torch.sigmoid(self.logits(codes))


class DecodedGenerator(nn.Module):
    """Latent code and label through two hidden layers to a code, and on through the decoder."""

    def __init__(
        self, *, latent: int, classes: int, channels: int, image_size: int, width: int, spectral_norm: bool = False
    ) -> None:
        super().__init__()
        self.classes = classes
        layers: list[nn.Module] = []
        for size in (latent + (classes if classes > 1 else 0), HIDDEN):
            layers += [normed(nn.Linear(size, HIDDEN), spectral_norm), nn.BatchNorm1d(HIDDEN), nn.ReLU()]
        self.body = nn.Sequential(*layers, normed(nn.Linear(HIDDEN, CODE), spectral_norm))
        self.decoder = Decoder(channels=channels, image_size=image_size, width=width).requires_grad_(False)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): codes [n, CODE] in training, images [n, channels, side, side] afterwards."""
        codes = on_sphere(self.body(torch.cat([latent, label_code(labels, self.classes)], dim=1)))
        return codes if self.training else self.decoder(codes)
