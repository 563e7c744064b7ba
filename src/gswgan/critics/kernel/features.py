"""Random features phi of a public kernel k: <phi(x), phi(y)> approximates k(x, y), and no data is used."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from gswgan.critics.kernel.convolutions import Convolutions, Network, Weights, untrained_weights
from gswgan.critics.kernel.vgg import Vgg19
from gswgan.errors import PlanError
from gswgan.privacy import Streams
from gswgan.ranges import MAX_STEPS, OMIT_DEFAULT, Features, Range, Seed

PublicNetwork = Literal["", "vgg19"]
"""A network that others trained on public images; the empty one is none."""


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """The public kernel: how many random features, at which length scales (in units of pixel distance).

    Each length scale has a window, in pixels: 0 looks at the whole image, more at a neighbourhood of about that radius.
    """

    features: Features
    length_scales: Annotated[tuple[float, ...], Range(1e-6, 1e6)]
    windows: Annotated[tuple[float, ...], Range(0.0, 1e6)] = (0.0,)
    seed: Seed = 0  # of the random frequencies
    convolutions: Annotated[tuple[int, ...], Range(1, 1024)] = field(default=(), metadata=OMIT_DEFAULT)
    """Filters in each layer of a network, whose output half of the features see in place of the pixels."""
    encoder_steps: Annotated[int, Range(0, MAX_STEPS)] = field(default=0, metadata=OMIT_DEFAULT)
    """Steps in which that network learns from public images, before the release; 0: it stays untrained."""
    encoder_batch: Annotated[int, Range(2, 2**16)] = field(default=512, metadata=OMIT_DEFAULT)
    public_network: PublicNetwork = field(default="", metadata=OMIT_DEFAULT)
    """The network that others trained on public images, in place of convolutions."""
    pooled: Annotated[int, Range(1, 16)] = field(default=1, metadata=OMIT_DEFAULT)
    """Pixels along a side that are averaged before anything sees them; scales and windows are in averaged pixels."""

    @property
    def has_encoder(self) -> bool:
        """Whether the network has weights of its own, which are published with the embedding."""
        return self.encoder_steps > 0 or self.public_network != ""

    @property
    def averaged(self) -> str:
        """What is averaged, as text."""
        return "" if self.pooled == 1 else f" of {self.pooled}x{self.pooled} pixels averaged"

    @property
    def scales(self) -> str:
        """The length scales as text."""
        pairs = zip(self.length_scales, self.windows, strict=True)
        return ", ".join(
            f"{scale:.3g} in windows of {window:.3g}" if window else f"{scale:.3g}" for scale, window in pairs
        )


class RandomFeatures:
    """phi(x) = sqrt(2/D) (cos w_j.x, sin w_j.x), j = 1..D/2, w_j ~ N(0, I / length_scale^2): public, |phi(x)| = 1.

    Approximates the Gaussian kernel (Rahimi and Recht 2007); with several length scales, their mean. Where a length
    scale has a window, w_j is faded out around a random place: the kernel then compares neighbourhoods. With
    convolutions, x is the image together with what a network makes of it, and each w_j sees one of the two: pooled
    convolutions see shapes and are blind to fine patterns, pixels are the other way round. |phi(x)| = 1 as ever.
    """

    def __init__(
        self, settings: KernelSettings, channels: int, side: int, device: torch.device, encoder: Weights | None = None
    ) -> None:
        """`encoder`: the weights of the network, where it was trained; without it they are untrained."""
        if settings.has_encoder != (encoder is not None):
            raise PlanError("encoder_steps", settings.encoder_steps, "an encoder exactly where it was trained")
        half, streams = settings.features // 2, Streams.public(settings.seed)
        self.pooled, seen = settings.pooled, pooled_side(side, settings.pooled)
        draws = streams.gaussian((channels * seen**2, half), "features")
        draws /= (scales := np.resize(np.asarray(settings.length_scales), half))
        draws *= np.tile(_windows(np.resize(np.asarray(settings.windows), half), seen, streams), (channels, 1))
        self.network: Network | None = None
        if settings.public_network and encoder is not None:
            self.network = Vgg19(encoder, channels, seen, device)
        elif settings.convolutions:
            weights = untrained_weights(settings.convolutions, channels, seen, streams) if encoder is None else encoder
            self.network = Convolutions(weights, channels, seen, device)
        if self.network is not None:
            convolved = streams.gaussian((self.network.size, half), "convolved features") / scales
            behind = np.arange(half) // len(settings.length_scales) % 2 == 1  # all length scales on both sides
            draws[:, behind] = convolved[:, ~behind] = 0.0
            draws = np.concatenate([draws, convolved])
        self.frequencies = torch.from_numpy(draws.astype(np.float32)).to(device)
        self.width, self.side = 2 * half, side
        self.encoder = ""
        """SHA-256 of the file of the network, where it was trained."""

    @property
    def sees_pixels(self) -> bool:
        """Whether the frequencies act on the pixels as they are, and on nothing else."""
        return self.network is None and self.pooled == 1

    def seen(self, images: Tensor) -> Tensor:
        """Return what the frequencies act on: the pixels [n, c h w], followed by what the network makes of them."""
        averaged = average(images, self.pooled)
        pixels = averaged.flatten(1)
        return pixels if self.network is None else torch.cat([pixels, self.network(averaged)], dim=1)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features [n, D] of images [n, c, h, w] in [0, 1]."""
        angles = self.seen(images.to(self.frequencies.dtype)) @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=1) * math.sqrt(2 / self.width)


def pooled_side(side: int, pooled: int) -> int:
    """The side of an image whose pixels are averaged; at its edge fewer of them are."""
    return -(-side // pooled)


def average(images: Tensor, pooled: int) -> Tensor:
    """Images [n, c, h, w] of averages of pooled x pooled pixels."""
    return images if pooled == 1 else nn.functional.avg_pool2d(images, pooled, ceil_mode=True)


def _windows(radii: np.ndarray, side: int, streams: Streams) -> np.ndarray:
    """Return [side^2, n]: a Gaussian of each radius around a random place, edges included; 1 for radius 0."""
    centres = streams.generator("windows").random((2, len(radii))) * (side - 1 + 2 * radii) - radii
    apart = (np.arange(side)[None, :, None] - centres[:, None]) ** 2 / np.where(radii > 0, 2 * radii**2, np.inf)
    rows, columns = np.exp(-apart)
    return (rows[:, None] * columns[None]).reshape(side**2, len(radii))


def features_of(
    settings: KernelSettings, channels: int, side: int, device: torch.device, encoder: bytes | None
) -> RandomFeatures:
    """The features of a plan, with the content of its encoder's file."""
    weights = None if encoder is None else safetensors.torch.load(encoder)
    features = RandomFeatures(settings, channels, side, device, weights)
    features.encoder = "" if encoder is None else hashlib.sha256(encoder).hexdigest()
    return features


@contextlib.contextmanager
def products(*, tf32: bool) -> Iterator[None]:
    """Allow TF32 for products and convolutions (post-processing), or force full float32 (private sums)."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
