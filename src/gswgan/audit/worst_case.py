"""Worst-case neighbours on tiny images, driven through the real code path: features, clip, sum, ledger, noise.

The attacker knows everything but the changed record and the run's key: the other records, the features, the shards.
What they see is what leaves the barrier, projected on the one direction that tells the worlds apart.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.audit.step_law import StepLaw
from gswgan.critics.embedding import embed
from gswgan.critics.ensemble import Ensemble
from gswgan.critics.kernel import KernelSettings, RandomFeatures
from gswgan.critics.learners import EnsembleSettings
from gswgan.critics.network import CriticShape
from gswgan.data import ImageData
from gswgan.errors import AuditError
from gswgan.generators.generator import Generator
from gswgan.privacy import BatchStreams, GaussianMechanism, Ledger, Streams
from gswgan.privacy.participation import expected_participants
from gswgan.training.plan import PrivacySettings

Scores = NDArray[np.float64]
MakeMechanism = Callable[[PrivacySettings, Streams, Path], GaussianMechanism]
Features = Callable[[Tensor], Tensor]

SIDE = 4
CLASSES = 2
CPU = torch.device("cpu")
COPIES = 2000
"""Trials in one release of the kernel audit: copies of the tiny data set, each with classes of its own."""

SHARDS = 4
"""Critics in the real trials of the ensemble: how many others there are changes nothing along the direction."""


def real_mechanism(privacy: PrivacySettings, streams: Streams, folder: Path) -> GaussianMechanism:
    """The barrier as a run builds it: event and contribution of the plan, a ledger on the disk, a key."""
    ledger = Ledger(folder / "ledger.jsonl", observer=privacy.observer, context=streams.context)
    return GaussianMechanism(contribution=privacy.contribution, event=privacy.event, ledger=ledger, streams=streams)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for the trials' ledgers: in memory where there is such a place, since every line is flushed."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="gswgan-audit-", dir=memory if os.access(memory, os.W_OK) else None)


def _key(*name: object) -> Streams:
    """A run's key for each batch of trials; from the audit's seed, since no private data is at stake."""
    return Streams(hashlib.blake2b(repr(name).encode(), digest_size=32).digest(), "audit")


@dataclass(frozen=True, kw_only=True)
class KernelPair:
    """Two tiny data sets that differ in the last record: (image, label) in the first and in the second world."""

    name: str
    first: tuple[NDArray[np.uint8], int]
    second: tuple[NDArray[np.uint8], int]

    def data(self, world: int, copies: int) -> ImageData:
        """Independent copies of the world's data set, copy i with the classes i L .. i L + L - 1."""
        image, label = self.first if world == 1 else self.second
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (3, 1, SIDE, SIDE), dtype=np.uint8)
        images[-1], labels = image, np.array([0, 1, label])
        shift = np.repeat(np.arange(copies) * CLASSES, 3)
        classes = copies * CLASSES
        return ImageData(
            name="audit",
            images=np.tile(images, (copies, 1, 1, 1)),
            labels=np.tile(labels, copies) + shift,
            classes=classes,
            class_names=tuple(map(str, range(classes))),
        )


def public_features() -> RandomFeatures:
    """The product's random features, few of them: the mechanism does not depend on how many there are."""
    return RandomFeatures(KernelSettings(features=32, length_scales=(0.5,)), 1, SIDE, CPU)


def kernel_pairs(features: Features) -> tuple[KernelPair, ...]:
    """A record that changes its class, and the furthest that one can move within its class, of many looked at."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (400, 1, SIDE, SIDE), dtype=np.uint8)
    rows = features(torch.from_numpy(images).to(torch.float32) / 255)
    one, other = np.unravel_index(int(torch.cdist(rows, rows).argmax()), (len(rows), len(rows)))
    return (
        KernelPair(name="the record changes its class", first=(images[0], 0), second=(images[0], 1)),
        KernelPair(name="the record keeps its class", first=(images[one], 0), second=(images[other], 0)),
    )


def kernel_scores(
    privacy: PrivacySettings,
    pair: KernelPair,
    world: int,
    trials: int,
    *,
    seed: int = 0,
    features: Features | None = None,
    make_mechanism: MakeMechanism = real_mechanism,
) -> Scores:
    """Projections of real releases (`embed`) on the difference of the two worlds; a linear likelihood ratio."""
    features = features or public_features()
    directions = [_exact(pair.data(number, 1), features, privacy) for number in (1, 2)]
    direction = directions[0] - directions[1]
    scores = []
    with _scratch() as temporary:
        for number, start in enumerate(range(0, trials, COPIES)):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            copies = min(COPIES, trials - start)
            mechanism = make_mechanism(privacy, _key(seed, pair.name, world, number), folder)
            released = embed(pair.data(world, copies), features, mechanism)  # type: ignore[arg-type]
            counts = released.counts * mechanism.contribution.clip_norm
            seen = torch.cat([released.sums, counts[:, None]], dim=1).view(copies, -1)
            scores.append((seen @ direction.flatten()).numpy())
            _check_ledger(mechanism, 1)
    return np.concatenate(scores)


def _exact(data: ImageData, features: Features, privacy: PrivacySettings) -> Tensor:
    """Class sums of (phi, 1) without noise, as the attacker computes them: [L, D + 1] in float64."""
    assert data.labels is not None
    rows = features(torch.from_numpy(data.images).to(torch.float32) / 255).to(torch.float64)
    rows = torch.cat([rows, torch.full((len(rows), 1), privacy.clip_norm, dtype=torch.float64)], dim=1)
    table = torch.zeros(data.classes, rows.shape[1], dtype=torch.float64)
    return table.index_add(0, torch.from_numpy(data.labels), rows)


class WorstCaseEnsemble(Ensemble):
    """The product's ensemble with planted critics: what a critic may become is up to its shard.

    The last pixel of a shard's first record decides its block: white v, black -v, grey 0, far beyond the clip. v
    alternates over samples and pixels, so that noise which is shared between either cancels out and shows.
    """

    def judge(self, members: np.ndarray, images: Tensor, labels: Tensor) -> Tensor:
        """The planted gradients, [m, B, c, h, w]."""
        first = self.shards.table[torch.from_numpy(members), 0]
        opinion = (self._images[first, -1, -1, -1].to(torch.float32) - 128).sign()
        return 1e3 * opinion.view(-1, 1, 1, 1, 1) * checkerboard(images.shape)


def checkerboard(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """+1 and -1 alternating over samples and pixels: [B, c, h, w]."""
    samples = torch.arange(shape[0]).view(-1, 1)
    pixels = torch.arange(int(np.prod(shape[1:]))).view(1, -1)
    return (1.0 - 2.0 * ((samples + pixels) % 2)).view(shape)


def ensemble_statistics(
    privacy: PrivacySettings,
    world: int,
    trials: int,
    steps: int,
    *,
    seed: int = 0,
    make_mechanism: MakeMechanism = real_mechanism,
) -> NDArray[np.float64]:
    """One number a step, [trials, steps], from real steps: draw, planted gradients, clip, sum, ledger, noise.

    There are SHARDS critics: for the paper's draw the law then has rate 1 / SHARDS (`tied_law`).
    """
    fake = torch.zeros(privacy.rows, 1, SIDE, SIDE)
    labels = torch.zeros(privacy.rows, dtype=torch.int64)
    direction = checkerboard(fake.shape).numpy().ravel()
    direction = direction / np.linalg.norm(direction)
    tied = replace(privacy, shards=SHARDS)
    expected = expected_participants(tied.event, SHARDS)
    key = _key(seed, "ensemble", world)
    values = np.empty(trials * steps)
    with _scratch() as temporary:
        mechanism = make_mechanism(tied, key, Path(temporary))
        ensemble = WorstCaseEnsemble(
            EnsembleSettings(width=2, updates=0), CriticShape(image_size=8, channels=1, classes=1, width=2), mechanism,
            count=SHARDS, public=Streams.public(0), batches=BatchStreams(key), device=CPU,
        )  # fmt: skip
        ensemble.prepare(_one_record_a_shard(privacy, world))
        for step in range(len(values)):
            ensemble.learn(step, _NO_GENERATOR)
            seen = ensemble.upstream_gradient(fake, labels).numpy().astype(np.float64).ravel() * expected
            values[step] = seen @ direction / privacy.noise_std
        _check_ledger(mechanism, len(values))
    return values.reshape(trials, steps)


_NO_GENERATOR: Generator = None  # type: ignore[assignment]  # planted critics make no updates, so none is asked


def _one_record_a_shard(privacy: PrivacySettings, world: int) -> ImageData:
    """SHARDS records; record 0 is the changed one. The others answer 0, or with the paper's draw as in world 2."""
    images = np.full((SHARDS, 1, SIDE, SIDE), 0 if privacy.sampling == "one" else 128, dtype=np.uint8)
    images[0] = 255 if world == 1 else 0
    return ImageData(name="audit", images=images, labels=None, classes=1, class_names=("all",))


def tied_law(privacy: PrivacySettings) -> StepLaw:
    """The law of `ensemble_statistics`: that of the plan, with SHARDS critics to draw one from."""
    return StepLaw.of(replace(privacy, shards=SHARDS) if privacy.sampling == "one" else privacy)


def _check_ledger(mechanism: GaussianMechanism, releases: int) -> None:
    """The ledger on the disk must have one line, with the plan's event, for each release that was seen."""
    events = [entry.event for entry in mechanism.ledger.entries]
    if events != [mechanism.event] * releases:
        raise AuditError("ledger", f"{len(events)} lines", f"{releases}, one {mechanism.event} for each release")
