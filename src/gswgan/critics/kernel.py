"""The kernel critic: the best critic of a kernel's unit ball is known, f(x) ~ <m_data - m_fake, phi(x)>.

It needs one thing of the data, the mean embedding of each class, and that is linear in the records: one sum,
sanitized once (the idea of DP-MERF, Harder et al. 2021). All that follows is post-processing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from gswgan.data import ImageData
from gswgan.errors import RunError
from gswgan.generators.generator import Generator
from gswgan.privacy import GaussianMechanism, Streams
from gswgan.privacy.mechanism import Block
from gswgan.privacy.randomness import write_durably

CHUNK_ELEMENTS = 2**24
"""Features held at a time while the data is summed: memory does not depend on the number of records."""

RARE = 5.0
"""A class whose noisy count is below so many standard deviations of its noise is left out."""


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """The public kernel: how many random features, at which length scales (in units of pixel distance)."""

    features: int
    length_scales: tuple[float, ...]
    seed: int = 0  # of the random frequencies


class RandomFeatures:
    """phi(x) = sqrt(2/D) (cos w_j.x, sin w_j.x), j = 1..D/2, w_j ~ N(0, I / length_scale^2): public, |phi(x)| = 1.

    Approximates the Gaussian kernel (Rahimi and Recht 2007); with several length scales, their mean. The
    frequencies come in orthogonal blocks (Yu et al. 2016): each is normal by itself, together they cover the
    space more evenly.
    """

    def __init__(self, settings: KernelSettings, pixels: int, device: torch.device) -> None:
        half = settings.features // 2
        scale = np.resize(np.asarray(settings.length_scales), half)
        draws = _orthogonal_normal(pixels, half, Streams.public(settings.seed)) / scale
        self.frequencies = torch.from_numpy(draws.astype(np.float32)).to(device)
        self.width = 2 * half

    def __call__(self, images: Tensor, part: slice = slice(None)) -> Tensor:
        """Features [n, D] of images [n, c, h, w] in [0, 1]; of a part of the frequencies, its share of them."""
        angles = images.flatten(1) @ self.frequencies[:, part]
        return torch.cat([angles.cos(), angles.sin()], dim=1) * math.sqrt(2 / self.width)


def _orthogonal_normal(rows: int, columns: int, streams: Streams) -> np.ndarray:
    """[rows, columns] whose columns are standard normal vectors, orthogonal to each other within blocks of `rows`."""
    blocks = []
    for start in range(0, columns, rows):
        count = min(rows, columns - start)
        normal = streams.gaussian((rows, count), "features", start)
        directions, _ = np.linalg.qr(normal)
        lengths = np.linalg.norm(streams.gaussian((rows, count), "feature lengths", start), axis=0)
        signs = np.sign(np.einsum("ij,ij->j", directions, normal))  # QR's own choice of sign is not uniform
        blocks.append(directions * (signs * lengths))
    return np.concatenate(blocks, axis=1)


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """What was released: noisy class sums of features [L, D], noisy class counts [L], and their noise."""

    sums: Tensor
    counts: Tensor
    noise_std: float
    count_noise_std: float

    @property
    def kept(self) -> np.ndarray:
        """Classes with enough records to be told from noise; the others are never divided by."""
        return np.flatnonzero(self.counts.numpy() >= RARE * self.count_noise_std)

    def means(self) -> Tensor:
        """Class means [L, D] in float32; zero for classes that are left out."""
        kept = torch.zeros(len(self.counts), dtype=torch.bool)
        kept[torch.from_numpy(self.kept)] = True
        safe = torch.where(kept, self.counts, torch.ones_like(self.counts))
        return (self.sums / safe[:, None] * kept[:, None]).to(torch.float32)

    def save(self, path: Path) -> None:
        """On the disk before training starts, so that it is released once and serves many generators."""
        noise = torch.tensor([self.noise_std, self.count_noise_std], dtype=torch.float64)
        tensors = {"sums": self.sums.contiguous(), "counts": self.counts.contiguous(), "noise": noise}
        write_durably(path, safetensors.torch.save(tensors, {"format_version": "1"}))

    @classmethod
    def load(cls, path: Path) -> Embedding:
        """Read a saved embedding."""
        try:
            tensors = safetensors.torch.load_file(path)
            noise = tensors["noise"].tolist()
            return cls(sums=tensors["sums"], counts=tensors["counts"], noise_std=noise[0], count_noise_std=noise[1])
        except (OSError, KeyError, IndexError, safetensors.SafetensorError) as wrong:
            raise RunError("embedding", str(path), "a released embedding", "Train anew.") from wrong


def embed(data: ImageData, features: RandomFeatures, mechanism: GaussianMechanism) -> Embedding:
    """The one release: class sums of (phi, 1) over all records, or over all persons' averages."""
    classes, width = data.classes, features.width
    std = mechanism.noise_std
    if data.persons is not None:
        blocks = _person_blocks(data, features)
        flat = mechanism.release("embedding", blocks, slots=1, width=classes * (width + 1)).sums
        table = torch.from_numpy(flat.reshape(classes, width + 1))
        sums, counts, count_std = table[:, :width], table[:, width], std
    else:
        released = mechanism.release("embedding", _record_blocks(data, features), slots=classes, width=width)
        sums = torch.from_numpy(released.sums)
        if released.counts is None:  # without labels the only count is n, which is public
            counts, count_std = torch.tensor([float(len(data.images))], dtype=torch.float64), 0.0
        else:
            counts, count_std = torch.from_numpy(released.counts), std / mechanism.contribution.clip_norm
    return Embedding(sums=sums, counts=counts, noise_std=std, count_noise_std=count_std)


def _pixels(images: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(images).to(device).to(torch.float32) / 255


def _record_blocks(data: ImageData, features: RandomFeatures) -> Iterator[Block]:
    device, chunk = features.frequencies.device, max(1, CHUNK_ELEMENTS // features.width)
    for start in range(0, len(data.images), chunk):
        rows = features(_pixels(data.images[start : start + chunk], device))
        labels = np.zeros(len(rows), np.int64) if data.labels is None else data.labels[start : start + chunk]
        yield rows[:, None], torch.from_numpy(labels).to(device)


def _person_blocks(data: ImageData, features: RandomFeatures) -> Iterator[Block]:
    """Each person's class sums with counts, divided by the person's own number of records."""
    assert data.persons is not None
    device = features.frequencies.device
    order = np.argsort(data.persons, kind="stable")
    bounds = np.searchsorted(data.persons[order], np.arange(data.number_of_persons + 1))
    for person in range(data.number_of_persons):
        mine = order[bounds[person] : bounds[person + 1]]
        table = torch.zeros(data.classes, features.width + 1, dtype=torch.float64, device=device)
        for part in np.array_split(mine, max(1, len(mine) * features.width // CHUNK_ELEMENTS)):
            rows = features(_pixels(data.images[part], device)).to(torch.float64)
            rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64, device=device)], dim=1)
            labels = np.zeros(len(part), np.int64) if data.labels is None else data.labels[part]
            member = torch.from_numpy(labels[None, :] == np.arange(data.classes)[:, None]).to(device)
            table += member.to(torch.float64) @ rows / max(1, len(mine))
        yield table.view(1, 1, -1), torch.zeros(1, dtype=torch.int64, device=device)


def distance(features: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Squared distance of the fakes' class means to the targets, up to a constant, unbiased, summed over classes.

    For n fakes of a class with mean m and target t: (n |m|^2 - mean |phi|^2) / (n - 1) - 2 <m, t>. The plain
    square |m|^2 would add (1 - |m_true|^2) / n, which rewards less variety. Every class that occurs needs n >= 2.
    """
    member = torch.nn.functional.one_hot(labels, len(targets)).to(features.dtype)
    count = member.sum(dim=0)
    present = count > 0
    count = torch.where(present, count, torch.full_like(count, 2.0))
    means = member.T @ features / count[:, None]
    own = member.T @ features.square().sum(dim=1) / count
    square = (count * means.square().sum(dim=1) - own) / (count - 1)
    return ((square - 2 * (means * targets).sum(dim=1)) * present).sum()


class KernelCritic:
    """Answers every batch of fakes from the released embedding: repeatable, and free of further cost."""

    def __init__(
        self, features: RandomFeatures, mechanism: GaussianMechanism | None, path: Path, *, blocks: int = 1
    ) -> None:
        """`path` is where the embedding is kept; it is released only where no embedding is there yet.

        With several `blocks` each step looks at one block of the features in turn: a block is a smaller
        approximation of the same kernel, and a step costs that much less.
        """
        self.features, self._mechanism, self._path = features, mechanism, path
        self.embedding: Embedding | None = None
        half = features.width // 2
        cuts = [half * i // blocks for i in range(blocks + 1)]
        self._parts = [slice(low, high) for low, high in itertools.pairwise(cuts)]
        self._part, self._targets, self._distance = self._parts[0], torch.zeros(()), torch.zeros(())

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Release the embedding once, or read what was released."""
        if not self._path.exists():
            if data is None or self._mechanism is None:
                raise RunError("embedding", str(self._path), "a released embedding, or data to release one from")
            embed(data, self.features, self._mechanism).save(self._path)
        self.embedding = Embedding.load(self._path)
        if len(self.embedding.kept) == 0:
            raise RunError(
                "class counts", "all below their noise", "a class that can be told from noise",
                "The release is spent. Use more records, a larger epsilon or fewer classes.",
            )  # fmt: skip
        means = self.embedding.means().to(self.features.frequencies.device)
        self._targets = means.unflatten(1, (2, -1))  # cosines and sines

    def learn(self, step: int, generator: Generator) -> None:
        """Nothing to learn: the critic is known in closed form. Classes left out are not asked for."""
        assert self.embedding is not None, "prepare comes first"
        generator.label_set = self.embedding.kept
        self._part = self._parts[step % len(self._parts)]

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Gradient of B x the distance with respect to each fake: post-processing of the release."""
        images = fake.detach().requires_grad_(True)
        targets = self._targets[:, :, self._part].flatten(1)
        loss = distance(self.features(images, self._part), labels, targets)
        (gradient,) = torch.autograd.grad(loss, images)
        self._distance = loss.detach()
        return gradient * fake.shape[0]

    def metrics(self) -> dict[str, Any]:
        """The distance of the last batch (up to its constant)."""
        return {"distance": float(self._distance)}

    def state(self) -> dict[str, Tensor]:
        """Nothing private is kept."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""
