"""The kernel critic: the best critic in the unit ball of a kernel space, f(x) ~ <m_data - m_fake, phi(x)>.

m_data is the noisy mean embedding of each class. Everything after this one answer is post-processing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.kernel.embedding import Embedding, embed, embed_records
from gswgan.critics.kernel.features import RandomFeatures, products
from gswgan.data import ImageData
from gswgan.errors import RunError
from gswgan.generators.generator import Generator
from gswgan.privacy import GaussianMechanism
from gswgan.privacy.mechanism import ClippedSum


def gaussian_blur(side: int, radius: float) -> Tensor:
    """Return a matrix [side, side] that blurs a row of pixels; symmetric, its rows add up to at most 1."""
    place = torch.arange(side)
    blur = torch.exp(-((place[:, None] - place) ** 2) / (2 * radius**2))
    return blur / blur.sum(dim=1).max()


def nothing_to_see() -> RunError:
    """For a release in which every class is below its noise."""
    return RunError(
        "class counts", "all below their noise", "a class that can be told from noise",
        "This run is over: its release is spent, and resuming would find the same. Start a new run with more records, "
        "fewer classes or a larger epsilon; what this one has spent is added to it.",
    )  # fmt: skip


class KernelCritic(Critic):
    """Computes gradients for any number of fakes from the noisy embedding, at no further privacy cost."""

    def __init__(
        self,
        features: RandomFeatures,
        mechanism: GaussianMechanism | None,
        path: Path,
        *,
        summed: Callable[[], tuple[ClippedSum, int]] | None = None,
        blocks: int = 1,
        memory: float = 0.0,
        smoothing: float = 0.0,
    ) -> None:
        """`path`: the file of the embedding. The mechanism is asked only where there is no embedding yet.

        `summed` returns the sum over the records and their number, where the data does not fit into memory. With
        several `blocks` each step uses one block of the features in turn: a block is a smaller approximation of the
        same kernel, and makes a step that much cheaper. The mean embedding of the fakes is a moving average that keeps
        `memory` of itself from step to step, because the mean of one batch is mostly noise. Gradients are smoothed over
        `smoothing` pixels, because the noise is equal in all pixels and the differences of images are not.
        """
        self.features, self._mechanism, self._path = features, mechanism, path
        self._summed = summed
        self.embedding: Embedding | None = None
        half = features.width // 2
        cuts = [half * i // blocks for i in range(blocks + 1)]
        self._parts = [slice(low, high) for low, high in itertools.pairwise(cuts)]
        self._part, self._memory = self._parts[0], memory**blocks  # a block is seen once in `blocks` steps
        self._targets = self._means = torch.zeros(0)
        self._steps = torch.zeros((), device=features.frequencies.device)
        self._blur = gaussian_blur(features.side, smoothing).to(self._steps) if smoothing > 0 else None

    @property
    def can_be_captured(self) -> bool:
        """Whether every step uses the same features."""
        return len(self._parts) == 1

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Ask the mechanism for the embedding once, or read the saved one."""
        if not self._path.exists():
            if (data is None and self._summed is None) or self._mechanism is None:
                raise RunError("embedding", str(self._path), "a released embedding, or data to release one from")
            found = self._embedded(data, self._mechanism)
            dataclasses.replace(found, encoder=self.features.encoder).save(self._path)
        self.embedding = Embedding.load(self._path)
        if self.embedding.encoder != self.features.encoder:
            expected = f"{self.embedding.encoder[:16] or 'none'}, with which the embedding was released"
            raise RunError("encoder", self.features.encoder[:16] or "none", expected, "Restore its file.")
        if len(self.embedding.kept) == 0:
            raise nothing_to_see()
        means = self.embedding.means().to(self.features.frequencies.device)
        self._targets = means.unflatten(1, (2, -1)).transpose(0, 1).contiguous()  # cosines and sines: [2, L, D/2]
        self._means = self._targets.clone()  # a class that has had no fakes yet asks for nothing

    def _embedded(self, data: ImageData | None, mechanism: GaussianMechanism) -> Embedding:
        if data is not None or self._summed is None:
            assert data is not None
            return embed(data, self.features, mechanism)
        total, records = self._summed()
        return embed_records(total, records, len(total.total), self.features.width, mechanism)

    def learn(self, step: int, generator: Generator) -> None:
        """Choose the features of this step and tell the generator which classes are kept; nothing is learnt."""
        assert self.embedding is not None, "prepare comes first"
        generator.label_set = self.embedding.kept
        self._part = self._parts[step % len(self._parts)]

    @torch.no_grad()
    @products(tf32=True)
    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of B x the squared distance to the embedding with respect to each fake."""
        if self.features.sees_pixels:
            gradient = self._gradient(fake.flatten(1), labels).view_as(fake)
        else:  # through the averages or the convolutions
            with torch.enable_grad():
                images = fake.detach().to(self.features.frequencies.dtype).requires_grad_()
                seen = self.features.seen(images)
            (gradient,) = torch.autograd.grad(seen, images, self._gradient(seen.detach(), labels))
        if self._blur is not None:
            gradient = self._blur @ gradient @ self._blur
        return gradient * fake.shape[0]

    def _gradient(self, seen: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of the squared distance with respect to what the frequencies act on.

        With m the mean embedding of a class of n fakes, t its target and p_i = W x_i, the gradient of |m - t|^2 is
        (2/n) sqrt(2/D) (cos p_i (m - t)_sin - sin p_i (m - t)_cos) W. The mean of the *other* fakes, n m / (n - 1) up
        to a part orthogonal to the gradient, makes it unbiased: the plain square rewards less variety.
        """
        frequencies = self.features.frequencies[:, self._part]
        angles = seen @ frequencies
        waves = torch.stack([angles.cos(), angles.sin()]) * math.sqrt(2 / self.features.width)
        member = torch.nn.functional.one_hot(labels, self._targets.shape[1]).to(waves.dtype)  # [B, L]
        count = member.sum(dim=0).clamp(min=1.0)
        batch = (member / count).T @ waves  # [2, L, block]
        kept = (self._steps / len(self._parts)).floor()
        fresh = 1 - (kept / (kept + 10)).clamp(max=self._memory)  # the first steps are soon forgotten
        self._steps += 1
        fresh = fresh * (member.sum(dim=0) > 0)[:, None]
        means, targets = self._means[:, :, self._part], self._targets[:, :, self._part]
        others = batch * (count / (count - 1).clamp(min=1.0))[:, None]
        witness = (member * (2 / count)) @ (means.lerp(others, fresh) - targets)  # [2, B, block]: each fake's own
        means.lerp_(batch, fresh)
        return (waves[0] * witness[1] - waves[1] * witness[0]) @ frequencies.T

    def metrics(self) -> dict[str, Any]:
        """Return the squared distance of the fakes' moving mean to the noisy embedding over all classes."""
        return {"distance": float((self._means - self._targets).square().sum())}

    def state(self) -> dict[str, Tensor]:
        """Return the moving mean of the fakes, which is public."""
        return {"means": self._means, "steps": self._steps}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._means.copy_(tensors["means"])
        self._steps.copy_(tensors["steps"])
