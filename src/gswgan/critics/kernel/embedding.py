"""The noisy mean embedding of each class: the kernel critic's only query over the data.

It is linear in the records: one sum of their random features, sanitized once (the idea of DP-MERF, Harder et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from gswgan.critics.kernel.features import RandomFeatures, products
from gswgan.data import ImageData
from gswgan.errors import RunError
from gswgan.privacy import GaussianMechanism
from gswgan.privacy.mechanism import Block, ClippedSum
from gswgan.privacy.storage import check_file, write_durably

CHUNK_ELEMENTS = 2**24
"""Features computed together while the data is summed: memory does not depend on the number of records."""

FIXED_ROWS = 256
"""Records are padded with black images to a multiple of so many before their features are computed. A matrix product
may round a row differently in a small batch; so a record has the same features whatever records come with it."""

RARE = 5.0
"""A class whose noisy count is below so many standard deviations of its noise is left out."""

MIN_COUNT_WEIGHT = 0.3
"""A smaller weight of the counts would not help the features."""


def count_weight(persons: int, classes: int, noise: float) -> float:
    """Return the weight of the counts in a person's class sums; `noise` is that of the sum over the clip norm.

    Counts and features are clipped as one vector, so larger counts leave less for the features. With weight 1 they take
    most of it (for an MNIST writer 0.33 of a length of 0.39), more than is needed where there are many persons. So the
    weight is just large enough to tell a class with a third of its share from the noise, for features whose class means
    have a squared length of 0.4. The weight follows from public facts, and any weight has the same guarantee.
    """
    share = min(0.9, 3 * RARE * noise * math.sqrt(classes) / persons)  # of the vector's length
    return min(1.0, max(MIN_COUNT_WEIGHT, math.sqrt(0.4) * share / math.sqrt(1 - share**2)))


@dataclass(frozen=True, kw_only=True)
class PlannedEmbedding:
    """What a plan says of the mean embedding that it releases."""

    features: int
    noise_std: float  # of each number in a class sum
    clip_norm: float = 1.0  # of one contribution
    all_classes: bool = False  # the generator makes those that the counts do not tell from the noise, too


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Noisy class sums of features [L, D], noisy class counts [L], and the standard deviations of their noise."""

    sums: Tensor
    counts: Tensor
    noise_std: float
    count_noise_std: float
    encoder: str = ""
    """SHA-256 of the file of the network that the features saw, where it was trained."""

    @property
    def kept(self) -> np.ndarray:
        """The classes whose counts can be told from noise; the others are left out."""
        return np.flatnonzero(self.counts.numpy() >= RARE * self.count_noise_std)

    def means(self) -> Tensor:
        """Return class means [L, D] in float32; zero for classes that are left out."""
        kept = torch.zeros(len(self.counts), dtype=torch.bool)
        kept[torch.from_numpy(self.kept)] = True
        safe = torch.where(kept, self.counts, torch.ones_like(self.counts))
        return (self.sums / safe[:, None] * kept[:, None]).to(torch.float32)

    @classmethod
    def of_persons(cls, flat: np.ndarray, classes: int, noise_std: float, weight: float) -> Embedding:
        """Return the embedding of persons' sums: each class has its features and then its weighted count."""
        table = torch.from_numpy(flat.reshape(classes, -1))
        counts = table[:, -1] / weight
        return cls(sums=table[:, :-1], counts=counts, noise_std=noise_std, count_noise_std=noise_std / weight)

    def save(self, path: Path) -> None:
        """Save it before training starts, so that one answer serves many generators."""
        noise = torch.tensor([self.noise_std, self.count_noise_std], dtype=torch.float64)
        tensors = {"sums": self.sums.contiguous(), "counts": self.counts.contiguous(), "noise": noise}
        if self.encoder:
            tensors["encoder"] = torch.tensor(list(bytes.fromhex(self.encoder)), dtype=torch.uint8)
        write_durably(path, safetensors.torch.save(tensors, {"format_version": "1"}))

    @classmethod
    def load(cls, path: Path) -> Embedding:
        """Read a saved embedding."""
        try:
            check_file(path)
            tensors = safetensors.torch.load_file(path)
            noise = tensors["noise"].tolist()
            encoder = bytes(tensors["encoder"].tolist()).hex() if "encoder" in tensors else ""
            return cls(
                sums=tensors["sums"], counts=tensors["counts"], noise_std=noise[0], count_noise_std=noise[1],
                encoder=encoder,
            )  # fmt: skip
        except (OSError, KeyError, IndexError, ValueError, TypeError, safetensors.SafetensorError) as wrong:
            raise RunError("embedding", str(path), "a released embedding", "Train anew.") from wrong


@products(tf32=False)
def embed(data: ImageData, features: RandomFeatures, mechanism: GaussianMechanism) -> Embedding:
    """Ask the mechanism for class sums of (phi, 1) over all records, or over all persons' averages."""
    classes, width = data.classes, features.width
    if data.persons is not None:
        noise = mechanism.noise_std / mechanism.contribution.clip_norm
        weight = count_weight(data.number_of_persons, classes, noise)
        return embed_persons(person_blocks(data, features, weight), classes, width, mechanism, weight)
    return embed_records(record_blocks(data, features), data.n, classes, width, mechanism)


def embed_records(
    blocks: Iterable[Block] | ClippedSum, records: int, classes: int, width: int, mechanism: GaussianMechanism
) -> Embedding:
    """Ask for the embedding of records, given their features or their sum."""
    answer, std = mechanism.answer("embedding", blocks, slots=classes, width=width), mechanism.noise_std
    sums = torch.from_numpy(answer.sums)
    if answer.counts is None:  # without labels the only count is n, which is public
        counts, count_std = torch.tensor([float(records)], dtype=torch.float64), 0.0
    else:
        counts, count_std = torch.from_numpy(answer.counts), std / mechanism.contribution.clip_norm
    return Embedding(sums=sums, counts=counts, noise_std=std, count_noise_std=count_std)


def embed_persons(
    blocks: Iterable[Block] | ClippedSum, classes: int, width: int, mechanism: GaussianMechanism, weight: float
) -> Embedding:
    """Ask for the embedding of persons, given the row of each or their sum."""
    flat = mechanism.answer("embedding", blocks, slots=1, width=classes * (width + 1)).sums
    return Embedding.of_persons(flat, classes, mechanism.noise_std, weight)


def person_row(data: ImageData, features: RandomFeatures, weight: float) -> Tensor:
    """Return one person's contribution before it is clipped: [1, 1, L (D + 1)], for data with a single person."""
    with products(tf32=False):
        ((row, _),) = person_blocks(data, features, weight)
    return row


def _pixels(images: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(images).to(device).to(torch.float32) / 255


def record_blocks(data: ImageData, features: RandomFeatures) -> Iterator[Block]:
    """Yield the features of all records, each with its class."""
    device, chunk = features.frequencies.device, max(1, CHUNK_ELEMENTS // features.width)
    batch = min(FIXED_ROWS, chunk)
    chunk -= chunk % batch
    for start in range(0, len(data.images), chunk):
        pixels = _pixels(data.images[start : start + chunk], device)
        padded = torch.nn.functional.pad(pixels, (0, 0, 0, 0, 0, 0, 0, -len(pixels) % batch))
        rows = features(padded)[: len(pixels)]
        labels = np.zeros(len(rows), np.int64) if data.labels is None else data.labels[start : start + chunk]
        yield rows[:, None], torch.from_numpy(labels).to(device)


def person_blocks(data: ImageData, features: RandomFeatures, weight: float) -> Iterator[Block]:
    """Yield each person's class sums with weighted counts, divided by the person's own number of records.

    A record without a class adds nothing and does not count, but takes as long as the others.
    """
    assert data.persons is not None
    device, labels = features.frequencies.device, np.zeros(data.n, np.int64) if data.labels is None else data.labels
    order = np.argsort(data.persons, kind="stable")
    bounds = np.searchsorted(data.persons[order], np.arange(data.number_of_persons + 1))
    for person in range(data.number_of_persons):
        mine = order[bounds[person] : bounds[person + 1]]
        table = torch.zeros(data.classes, features.width + 1, dtype=torch.float64, device=device)
        known = int(((labels[mine] >= 0) & (labels[mine] < data.classes)).sum())
        for part in np.array_split(mine, max(1, len(mine) * features.width // CHUNK_ELEMENTS)):
            rows = features(_pixels(data.images[part], device)).to(torch.float64)
            rows = torch.nn.functional.pad(rows, (0, 1), value=weight)
            member = torch.from_numpy(labels[part][None, :] == np.arange(data.classes)[:, None]).to(device)
            table += member.to(torch.float64) @ rows / max(1, known)
        yield table.view(1, 1, -1), torch.zeros(1, dtype=torch.int64, device=device)
