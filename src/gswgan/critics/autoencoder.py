"""The auto-encoder of DP-MERF AE, trained with DP-SGD: each update uses one noisy sum of clipped gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gswgan.critics import dp_sgd
from gswgan.critics.discriminator import Convolution
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.resumable import Stopped
from gswgan.data import ImageData
from gswgan.generators.decoded import CODE, Decoder, Full, on_sphere
from gswgan.privacy import Contribution, Sampled
from gswgan.ranges import Batch, LearningRate, NoiseMultiplier, Steps


@dataclass(frozen=True, kw_only=True)
class AutoencoderSettings:
    """The training of the auto-encoder. The first four, with the number of records, are part of the guarantee."""

    noise_multiplier: NoiseMultiplier  # noise_std over clip_norm
    learning_batch: Batch  # expected records per update
    releases: Steps  # updates
    clip_norm: float = 1.0
    learning_rate: LearningRate = 1e-3

    @property
    def contribution(self) -> Contribution:
        """One clipped gradient per record."""
        return Contribution(clip_norm=self.clip_norm)

    def event(self, records: int) -> Sampled:
        """Return the event of one update on data with so many records."""
        return dp_sgd.update_event(
            clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier, batch=self.learning_batch, records=records
        )


class Autoencoder(nn.Module):
    """Encodes images by convolutions that halve the side and a full layer; decodes codes to the logits of images."""

    def __init__(self, *, image_size: int, channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        side, incoming, outgoing = image_size, channels, width
        while side > 7:
            layers += [Convolution(incoming, outgoing, 4, 2, 1), nn.LeakyReLU(0.2)]
            side, incoming, outgoing = side // 2, outgoing, 2 * outgoing
        self.encoder = nn.Sequential(*layers, nn.Flatten(), Full(incoming * side**2, CODE))
        self.decoder = Decoder(channels=channels, image_size=image_size, width=width)

    def encode(self, images: Tensor) -> Tensor:
        """Return the codes [n, CODE] of images in [0, 1]; a code depends on its own image alone."""
        return on_sphere(self.encoder(images))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the pixels."""
        return self.decoder.logits(self.encode(images))


def reconstruction_loss(logits: Tensor, images: Tensor) -> Tensor:
    """Return the cross-entropy of each image's pixels, [n]."""
    return F.binary_cross_entropy_with_logits(logits, images, reduction="none").flatten(1).sum(dim=1)


def train(
    autoencoder: Autoencoder,
    gradients: RecordGradients,
    data: ImageData,
    settings: AutoencoderSettings,
    stopped: Callable[[], bool],
) -> None:
    """Train by DP-SGD with Adam: each record takes part in an update with probability q, by a secret coin."""
    device = next(autoencoder.parameters()).device
    images = torch.from_numpy(data.images).to(device)
    adam = torch.optim.Adam(autoencoder.parameters(), lr=settings.learning_rate, fused=True)

    def rows(members: np.ndarray) -> Tensor:
        batch = images[torch.from_numpy(members).to(device)].to(torch.float32) / 255
        return gradients.rows(reconstruction_loss, batch)

    gradients.prepare(len(images))
    for update in range(settings.releases):
        if stopped():
            raise Stopped
        dp_sgd.descend(adam, autoencoder, gradients.answer(f"auto-encoder update {update}", rows))
        for group in adam.param_groups:  # decreases linearly: the last steps average the noise
            group["lr"] = settings.learning_rate * (1 - (update + 1) / settings.releases)
