"""The kernel critic: the best critic of a kernel's unit ball is known, f(x) ~ <m_data - m_fake, phi(x)>.

It needs one thing of the data, the mean embedding of each class, and that is linear in the records: one sum,
sanitized once (the idea of DP-MERF, Harder et al. 2021). All that follows is post-processing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from gswgan.privacy.mechanism import Block, ClippedSum
from gswgan.privacy.randomness import write_durably

CHUNK_ELEMENTS = 2**24
"""Features held at a time while the data is summed: memory does not depend on the number of records."""

RARE = 5.0
"""A class whose noisy count is below so many standard deviations of its noise is left out."""

LEAST_COUNT_WEIGHT = 0.3
"""Less than this leaves the features no more to gain."""


def count_weight(persons: int, classes: int, noise: float) -> float:
    """Weight of the counts in a person's class sums, from public facts; `noise`: of the sum, over the clip norm.

    Counts and features are clipped as one vector, so what counts take of it the features lack. With weight 1 they take
    most of it (a MNIST writer: 0.33 of a length of 0.39), far more than is needed where there are many persons. So they
    weigh just enough for a class with a third of its share to be told from the noise, for features whose class means
    have a squared length of 0.4. Any weight has the same guarantee, which is that of the clip norm.
    """
    share = min(0.9, 3 * RARE * noise * math.sqrt(classes) / persons)  # of the vector's length
    return min(1.0, max(LEAST_COUNT_WEIGHT, math.sqrt(0.4) * share / math.sqrt(1 - share**2)))


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """The public kernel: how many random features, at which length scales (in units of pixel distance).

    Each length scale has a window, in pixels: 0 looks at the whole image, more at a neighbourhood of about that radius.
    """

    features: int
    length_scales: tuple[float, ...]
    windows: tuple[float, ...] = (0.0,)
    seed: int = 0  # of the random frequencies

    @property
    def scales(self) -> str:
        """The length scales in words."""
        pairs = zip(self.length_scales, self.windows, strict=True)
        return ", ".join(
            f"{scale:.3g} in windows of {window:.3g}" if window else f"{scale:.3g}" for scale, window in pairs
        )


class RandomFeatures:
    """phi(x) = sqrt(2/D) (cos w_j.x, sin w_j.x), j = 1..D/2, w_j ~ N(0, I / length_scale^2): public, |phi(x)| = 1.

    Approximates the Gaussian kernel (Rahimi and Recht 2007); with several length scales, their mean. Where a length
    scale has a window, w_j is faded out around a random place: the kernel then compares neighbourhoods.
    """

    def __init__(self, settings: KernelSettings, channels: int, side: int, device: torch.device) -> None:
        half, streams = settings.features // 2, Streams.public(settings.seed)
        draws = streams.gaussian((channels * side**2, half), "features")
        draws /= np.resize(np.asarray(settings.length_scales), half)
        draws *= np.tile(_windows(np.resize(np.asarray(settings.windows), half), side, streams), (channels, 1))
        self.frequencies = torch.from_numpy(draws.astype(np.float32)).to(device)
        self.width, self.side = 2 * half, side

    def __call__(self, images: Tensor) -> Tensor:
        """Features [n, D] of images [n, c, h, w] in [0, 1]."""
        angles = images.flatten(1).to(self.frequencies.dtype) @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=1) * math.sqrt(2 / self.width)


def _windows(radii: np.ndarray, side: int, streams: Streams) -> np.ndarray:
    """[side^2, n]: a Gaussian of each radius around a random place (the edges are seen as often); 1 for radius 0."""
    centres = streams.generator("windows").random((2, len(radii))) * (side - 1 + 2 * radii) - radii
    apart = (np.arange(side)[None, :, None] - centres[:, None]) ** 2 / np.where(radii > 0, 2 * radii**2, np.inf)
    rows, columns = np.exp(-apart)
    return (rows[:, None] * columns[None]).reshape(side**2, len(radii))


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

    @classmethod
    def of_persons(cls, flat: np.ndarray, classes: int, noise_std: float, weight: float) -> Embedding:
        """From the persons' sums: each class has its weighted count behind its features; all have the same noise."""
        table = torch.from_numpy(flat.reshape(classes, -1))
        counts = table[:, -1] / weight
        return cls(sums=table[:, :-1], counts=counts, noise_std=noise_std, count_noise_std=noise_std / weight)

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


@contextlib.contextmanager
def products(*, tf32: bool) -> Iterator[None]:
    """TF32 for the products of a step, which are post-processing; full float32 for those of the release."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@products(tf32=False)
def embed(data: ImageData, features: RandomFeatures, mechanism: GaussianMechanism) -> Embedding:
    """The one release: class sums of (phi, 1) over all records, or over all persons' averages."""
    classes, width = data.classes, features.width
    if data.persons is not None:
        noise = mechanism.noise_std / mechanism.contribution.clip_norm
        weight = count_weight(data.number_of_persons, classes, noise)
        return embed_persons(_person_blocks(data, features, weight), classes, width, mechanism, weight)
    return embed_records(record_blocks(data, features), data.n, classes, width, mechanism)


def embed_records(
    blocks: Iterable[Block] | ClippedSum, records: int, classes: int, width: int, mechanism: GaussianMechanism
) -> Embedding:
    """The same release from the records' own features, or from their sum, wherever it was computed."""
    released, std = mechanism.release("embedding", blocks, slots=classes, width=width), mechanism.noise_std
    sums = torch.from_numpy(released.sums)
    if released.counts is None:  # without labels the only count is n, which is public
        counts, count_std = torch.tensor([float(records)], dtype=torch.float64), 0.0
    else:
        counts, count_std = torch.from_numpy(released.counts), std / mechanism.contribution.clip_norm
    return Embedding(sums=sums, counts=counts, noise_std=std, count_noise_std=count_std)


def embed_persons(
    blocks: Iterable[Block], classes: int, width: int, mechanism: GaussianMechanism, weight: float
) -> Embedding:
    """The same release from the persons' own averages, wherever each was computed."""
    flat = mechanism.release("embedding", blocks, slots=1, width=classes * (width + 1)).sums
    return Embedding.of_persons(flat, classes, mechanism.noise_std, weight)


def person_row(data: ImageData, features: RandomFeatures, weight: float) -> Tensor:
    """What one person adds, before it is clipped: the row [1, 1, L (D + 1)] of data with a single person."""
    with products(tf32=False):
        ((row, _),) = _person_blocks(data, features, weight)
    return row


def _pixels(images: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(images).to(device).to(torch.float32) / 255


def record_blocks(data: ImageData, features: RandomFeatures) -> Iterator[Block]:
    """The features of all records, each with its class."""
    device, chunk = features.frequencies.device, max(1, CHUNK_ELEMENTS // features.width)
    for start in range(0, len(data.images), chunk):
        rows = features(_pixels(data.images[start : start + chunk], device))
        labels = np.zeros(len(rows), np.int64) if data.labels is None else data.labels[start : start + chunk]
        yield rows[:, None], torch.from_numpy(labels).to(device)


def _person_blocks(data: ImageData, features: RandomFeatures, weight: float) -> Iterator[Block]:
    """Each person's class sums with weighted counts, divided by the person's own number of records."""
    assert data.persons is not None
    device = features.frequencies.device
    order = np.argsort(data.persons, kind="stable")
    bounds = np.searchsorted(data.persons[order], np.arange(data.number_of_persons + 1))
    for person in range(data.number_of_persons):
        mine = order[bounds[person] : bounds[person + 1]]
        table = torch.zeros(data.classes, features.width + 1, dtype=torch.float64, device=device)
        for part in np.array_split(mine, max(1, len(mine) * features.width // CHUNK_ELEMENTS)):
            rows = features(_pixels(data.images[part], device)).to(torch.float64)
            rows = torch.nn.functional.pad(rows, (0, 1), value=weight)
            labels = np.zeros(len(part), np.int64) if data.labels is None else data.labels[part]
            member = torch.from_numpy(labels[None, :] == np.arange(data.classes)[:, None]).to(device)
            table += member.to(torch.float64) @ rows / max(1, len(mine))
        yield table.view(1, 1, -1), torch.zeros(1, dtype=torch.int64, device=device)


def gaussian_blur(side: int, radius: float) -> Tensor:
    """[side, side]: blurs a row of pixels by a Gaussian of this radius; symmetric, its rows add up to at most 1."""
    place = torch.arange(side)
    blur = torch.exp(-((place[:, None] - place) ** 2) / (2 * radius**2))
    return blur / blur.sum(dim=1).max()


class KernelCritic:
    """Answers every batch of fakes from the released embedding: repeatable, and free of further cost."""

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
        """`path` is where the embedding is kept; it is released only where no embedding is there yet.

        `summed`: gives the sum over the records, and their number, where these are too many to be handed over.
        With several `blocks` each step looks at one block of the features in turn: a block is a smaller
        approximation of the same kernel, and a step costs that much less. The mean embedding of the fakes is a
        moving one that keeps `memory` of itself from step to step: what one batch of fakes says about it is mostly
        noise. The answers are smoothed over `smoothing` pixels: the release's noise is in all pixels alike, what
        tells images apart is not.
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
        """Always the same features, all on the device."""
        return len(self._parts) == 1

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Release the embedding once, or read what was released."""
        if not self._path.exists():
            if (data is None and self._summed is None) or self._mechanism is None:
                raise RunError("embedding", str(self._path), "a released embedding, or data to release one from")
            self._embedded(data, self._mechanism).save(self._path)
        self.embedding = Embedding.load(self._path)
        if len(self.embedding.kept) == 0:
            raise RunError(
                "class counts", "all below their noise", "a class that can be told from noise",
                "The release is spent. Use more records, a larger epsilon or fewer classes.",
            )  # fmt: skip
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
        """Nothing to learn: the critic is known in closed form. Classes left out are not asked for."""
        assert self.embedding is not None, "prepare comes first"
        generator.label_set = self.embedding.kept
        self._part = self._parts[step % len(self._parts)]

    @torch.no_grad()
    @products(tf32=True)
    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Gradient of B x the squared distance to the embedding with respect to each fake: post-processing.

        With m the mean embedding of a class of n fakes, t its target and p_i = W x_i, the gradient of |m - t|^2 is
        (2/n) sqrt(2/D) (cos p_i (m - t)_sin - sin p_i (m - t)_cos) W. The mean of the *other* fakes, n m / (n - 1) up
        to what is orthogonal to the gradient, makes it unbiased: the plain square rewards less variety.
        """
        frequencies = self.features.frequencies[:, self._part]
        angles = fake.flatten(1) @ frequencies
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
        gradient = ((waves[0] * witness[1] - waves[1] * witness[0]) @ frequencies.T).view_as(fake)
        if self._blur is not None:
            gradient = self._blur @ gradient @ self._blur
        return gradient * fake.shape[0]

    def metrics(self) -> dict[str, Any]:
        """Squared distance of the fakes' moving mean to the released embedding, noise included, over all classes."""
        return {"distance": float((self._means - self._targets).square().sum())}

    def state(self) -> dict[str, Tensor]:
        """The fakes' moving mean: made of fakes alone."""
        return {"means": self._means, "steps": self._steps}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self._means.copy_(tensors["means"])
        self._steps.copy_(tensors["steps"])
