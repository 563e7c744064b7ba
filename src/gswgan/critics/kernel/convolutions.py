"""An untrained convolutional network: what the random features see of a colour image in place of its pixels.

In pixels the colours of an image drown its shapes, because a difference of colour is one in every pixel. Random
convolutions of differences answer to edges of every direction and colour, and pooling forgives small shifts. The
weights are public and follow from a seed; each image is mapped alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.privacy import Streams

SLOPE = 0.1
"""Of the leaky ReLU below 0."""

DIFFERENCE = 0.8
"""How much of its mean each filter is without: with all of it the network sees no plain colour."""

MADE = 64
"""Made images that the output is scaled with."""


class UntrainedConvolutions:
    """Layers of 3x3 convolutions with leaky ReLU, each pooled to half the side (rounded up).

    The output is scaled so that images which are made of noise are as far apart in it as in pixels: then the length
    scales of pixels fit it, whatever the weights and the number of layers.
    """

    def __init__(
        self, widths: tuple[int, ...], channels: int, side: int, streams: Streams, device: torch.device
    ) -> None:
        """`widths`: the number of filters of each layer."""
        self._weights: list[Tensor] = []
        self._scale = 1.0
        inputs, left = channels, side
        for layer, outputs in enumerate(widths):
            weight = torch.from_numpy(streams.gaussian((outputs, inputs, 3, 3), "convolutions", layer))
            weight -= DIFFERENCE * weight.mean(dim=(2, 3), keepdim=True)
            self._weights.append(weight / math.sqrt(9 * inputs / 2))
            inputs, left = outputs, (left + 1) // 2
        self.size = inputs * left**2
        made = torch.from_numpy(noise_images(MADE, channels, side, streams))
        self._scale = _apart(made.flatten(1)) / _apart(self(made))
        self._weights = [weight.to(torch.float32).to(device) for weight in self._weights]

    def __call__(self, images: Tensor) -> Tensor:
        """Return [n, size] of images [n, c, h, w] in [0, 1]."""
        for weight in self._weights:
            images = nn.functional.leaky_relu(nn.functional.conv2d(images, weight, padding=1), SLOPE)
            images = nn.functional.avg_pool2d(images, 2, ceil_mode=True)
        return self._scale * images.flatten(1)


def noise_images(number: int, channels: int, side: int, streams: Streams) -> np.ndarray:
    """Made images [number, channels, side, side] in [0, 1]: noise as strong in every octave, much alike in all colours.

    That is roughly how photographs are. None of them is needed, so no data is used.
    """
    rough = streams.gaussian((number, 1 + channels, side, side), "made images")
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None, :])
    frequency[0, 0] = 1 / side
    smooth = np.fft.ifft2(np.fft.fft2(rough) / frequency).real
    smooth /= math.sqrt(np.mean(smooth**2))
    return np.clip(0.5 + 0.2 * (smooth[:, :1] + 0.4 * smooth[:, 1:]), 0.0, 1.0)


def _apart(rows: Tensor) -> float:
    """The root of the mean squared distance of neighbouring rows."""
    return math.sqrt(float((rows[1:] - rows[:-1]).square().sum(dim=1).mean()))
