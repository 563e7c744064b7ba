"""A convolutional network: what half of the random features see of an image in place of its pixels.

In pixels the colours of an image drown its shapes, because a difference of colour is one in every pixel. Convolutions
of differences answer to edges of every direction and colour, and pooling forgives small shifts. Untrained weights
follow from a seed; `encoder.py` trains them on public images; `vgg.py` has those of a network that others trained. Each
image is mapped alone, and there is nothing in it that could fail: every image has a finite output of the same norm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.privacy import Streams

DIFFERENCE = 0.8
"""How much of its mean each untrained filter is without: with all of it the network sees no plain colour."""

MADE = 64
"""Made images that the output of an untrained network is scaled with."""

GRID = 4
"""A layer's output is pooled to so many places a side, at the most."""

FLAT = 1e-3
"""Added to the variance of a layer, so that a plain image has no contrast to be made of nothing."""

Weights = Mapping[str, Tensor]
"""A `weight` and a `bias` for each layer, and the `scale` of the output."""


class Network(ABC):
    """A network as features: all its layers, pooled, each of length 1, times a scale.

    So the last layer does not outweigh the first, and images are as far apart in the output as in pixels: the length
    scales of pixels fit it, whatever the weights and the layers.
    """

    size: int
    """How many numbers it makes of an image."""

    scale: Tensor

    @abstractmethod
    def layers(self, images: Tensor) -> list[Tensor]:
        """Return the layers [n, filters, h, w] that are seen of images [n, c, h, w] in [0, 1]."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return [n, size] of images [n, c, h, w] in [0, 1]."""
        pooled = [nn.functional.adaptive_avg_pool2d(layer, min(GRID, layer.shape[-1])) for layer in self.layers(images)]
        return self.scale * torch.cat([nn.functional.normalize(layer.flatten(1), dim=1) for layer in pooled], dim=1)


class Convolutions(Network):
    """Layers of 3x3 convolutions, each centred and scaled by image, smoothly rectified and pooled to half the side."""

    def __init__(self, weights: Weights, channels: int, side: int, device: torch.device) -> None:
        tensors = {name: value.to(device) for name, value in weights.items()}
        count = (len(tensors) - 1) // 2
        self._layers = [(tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]) for layer in range(count)]
        self.scale = tensors["scale"]
        self.size = output_size(tuple(len(bias) for _, bias in self._layers), side)

    def layers(self, images: Tensor) -> list[Tensor]:
        """Return the output of each layer [n, filters, h, w] of images [n, c, h, w] in [0, 1]."""
        found, seen = [], 2 * images - 1
        for weight, bias in self._layers:
            seen = nn.functional.conv2d(seen, weight, bias, padding=1)
            mean = seen.mean(dim=(1, 2, 3), keepdim=True)
            seen = seen - mean
            seen = seen / (seen.square().mean(dim=(1, 2, 3), keepdim=True) + FLAT).sqrt()
            seen = nn.functional.avg_pool2d(nn.functional.silu(seen), 2, ceil_mode=True)
            found.append(seen)
        return found


def output_size(widths: tuple[int, ...], side: int) -> int:
    """How many numbers a network of so many filters in each layer makes of an image."""
    size = 0
    for width in widths:
        side = (side + 1) // 2
        size += width * min(GRID, side) ** 2
    return size


def weight_shapes(widths: tuple[int, ...], channels: int) -> dict[str, tuple[int, ...]]:
    """The shape of each of the weights, all of them float32."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(zip((channels, *widths), widths)):
        shapes |= {f"{layer}.weight": (outputs, inputs, 3, 3), f"{layer}.bias": (outputs,)}
    return {**shapes, "scale": ()}


def untrained_weights(widths: tuple[int, ...], channels: int, side: int, streams: Streams) -> dict[str, Tensor]:
    """Random weights, scaled by made images: public, and no data is used."""
    weights = {}
    for name, shape in weight_shapes(widths, channels).items():
        if name.endswith("weight"):
            weight = torch.from_numpy(streams.gaussian(shape, "convolutions", name))
            weight -= DIFFERENCE * weight.mean(dim=(2, 3), keepdim=True)
            weights[name] = (weight / math.sqrt(math.prod(shape[1:]) / 2)).float()
        else:
            weights[name] = torch.zeros(shape)
    return scaled(weights, made_images(channels, side, streams))


def scaled(weights: Weights, images: Tensor) -> dict[str, Tensor]:
    """The weights with the scale at which these images are as far apart behind the network as in pixels."""
    network = Convolutions({**weights, "scale": torch.ones(())}, images.shape[1], images.shape[-1], images.device)
    return {**weights, "scale": scale_for(network, images)}


def scale_for(network: Network, images: Tensor) -> Tensor:
    """The factor at which these images are as far apart behind the network as in pixels."""
    apart = torch.tensor(_apart(images.flatten(1)), dtype=torch.float64)  # equal images have no scale: not a number
    return (apart / _apart(network(images))).float()


def made_images(channels: int, side: int, streams: Streams) -> Tensor:
    """Some images that are made of noise, as float32."""
    return torch.from_numpy(noise_images(MADE, channels, side, streams)).float()


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
