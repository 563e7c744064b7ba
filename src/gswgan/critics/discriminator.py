"""The discriminator that the GAN baselines share, and a critic that consists of one discriminator.

It is a small conditional DCGAN without batch norm, so that an image's score does not depend on the rest of the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gswgan.critics import Critic
from gswgan.data import ImageData
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.generator import Generator
from gswgan.generators.optimizer_state import load_optimizer, optimizer_tensors
from gswgan.privacy import Streams

KERNEL, STRIDE, PADDING = 4, 2, 1
SLOPE = 0.2  # of the leaky ReLU


class Convolution(nn.Conv2d):
    """A convolution that halves the side, as a matrix product over copied windows.

    In this form the gradients of single samples are products.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """[n, in, h, w] to [n, out, h // 2, w // 2]."""
        side, padded = maps.shape[-1] // STRIDE, F.pad(maps, [PADDING] * 4)
        every = [slice(tap, tap + STRIDE * side, STRIDE) for tap in range(KERNEL)]
        taps = [padded[:, :, rows, columns] for rows in every for columns in every]
        windows = torch.stack(taps, dim=2).flatten(3).flatten(1, 2)
        assert self.bias is not None
        return (self.weight.flatten(1) @ windows + self.bias[:, None]).unflatten(-1, (side, side))


class Discriminator(nn.Module):
    """D(x, y) = head(h) + <label(y), h>, h the maps after the last convolution (projection: Miyato and Koyama 2018).

    Convolutions of `width`, 2 `width`, ... maps, down to a side of 4 or less.
    """

    def __init__(self, *, image_size: int, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        layers: list[nn.Module] = []
        side, incoming, outgoing = image_size, channels, width
        while side > 4:
            layers += [Convolution(incoming, outgoing, KERNEL, STRIDE, PADDING), nn.LeakyReLU(SLOPE)]
            side, incoming, outgoing = side // STRIDE, outgoing, 2 * outgoing
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(incoming * side**2, 1)
        self.label = nn.Linear(self.head.in_features, classes, bias=False)  # a row for each class

    def codes(self, labels: Tensor) -> Tensor:
        """Return one-hot labels [n, classes], as `forward` takes them."""
        return F.one_hot(labels, self.classes).to(torch.float32)

    def forward(self, images: Tensor, codes: Tensor) -> Tensor:
        """Return the logits of "real" [n] of images [n, c, h, w]."""
        maps, weights = self.body(images), self.head.weight + codes @ self.label.weight  # exact: a row is selected
        return (maps * weights).sum(dim=1) + self.head.bias  # no matrix product: its rounding depends on places


def cross_entropy(logits: Tensor, *, real: bool) -> Tensor:
    """Return the standard GAN loss (Goodfellow et al. 2014) per image: -log sigmoid(D), or -log(1 - sigmoid(D)).

    The discriminator minimizes it for records as real and fakes as not real, the generator for its fakes as real.
    """
    return F.softplus(-logits if real else logits)


class DiscriminatorCritic(Critic):
    """One discriminator with its optimizer: the common part of the private and the non-private GAN."""

    def __init__(self, settings: Any, *, public: Streams, device: torch.device, **shape: int) -> None:
        """`settings` have a width, a learning rate and betas; `shape` is that of the images, with the classes."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(public.integer("discriminator weights"))
            network = Discriminator(width=settings.width, **shape)
        self.settings, self.device = settings, device
        self.discriminator = network.to(device)
        self.adam = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, betas=settings.betas)
        self.images = self.labels = torch.zeros(1)
        self._recorded = Captured(self._answer)

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Put the data on the device. Nothing leaves."""
        assert data is not None, "a discriminator learns from data"
        self.images = torch.from_numpy(data.images).to(self.device)
        labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
        labels = labels.clip(0, self.discriminator.classes - 1)  # total: no label raises, it concerns its record alone
        self.labels = torch.from_numpy(labels).to(self.device)

    @abstractmethod
    def learn(self, step: int, generator: Generator) -> None:
        """Update the discriminator on records and on fakes of the current generator."""

    def records(self, members: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return images in [0, 1] and one-hot labels of these records."""
        index = torch.from_numpy(members).to(self.device)
        return self.images[index].to(torch.float32) / 255, self.discriminator.codes(self.labels[index])

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of B x the generator's loss with respect to each fake."""
        gradient = self._recorded(fake, labels)
        assert gradient is not None
        return gradient

    def _answer(self, fake: Tensor, labels: Tensor) -> Tensor:
        images = fake.detach().requires_grad_()
        losses = cross_entropy(self.discriminator(images, self.discriminator.codes(labels)), real=True)
        (gradient,) = torch.autograd.grad(losses.sum(), images)
        return gradient

    def metrics(self) -> dict[str, Any]:
        """Return private figures for the private log."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return weights and optimizer state."""
        weights = {f"discriminator.{name}": value for name, value in self.discriminator.state_dict().items()}
        return weights | optimizer_tensors(self.adam, "adam.")

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        prefix = "discriminator."
        weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        self.discriminator.load_state_dict(weights)
        load_optimizer(self.adam, tensors, "adam.")
