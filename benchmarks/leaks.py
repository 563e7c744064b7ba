"""Four leaks, each planted in a training that is right in all else, and what an attacker sees of each.

They test the audit (canary_audit.py): an audit that cannot find them would find nothing. A leak takes the
critic that a run is about to prepare and gives it back with the mistake in it; a view gives each canary a score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from canary_audit import Canaries, Seen, Tamper
from gswgan.critics import Critic
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.partitions import Partitions
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData, partition
from gswgan.generators.generator import Generator
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams

Scores = NDArray[np.float64]
CPU = torch.device("cpu")


def places_of_parts(plan: Plan) -> NDArray[np.int64]:
    """Which records each part has, which is public: [K, size]."""
    assert plan.privacy is not None
    assert plan.privacy.critics is not None
    seed = Streams.public(plan.seed).integer("partition")
    return np.stack(partition(plan.facts.records, plan.privacy.critics, seed=seed).indices)


def shared_part(critic: Critic, generator: Generator, data: ImageData) -> Critic:
    """A leak between parts: every critic reads the first part, so one record moves all of them."""
    assert isinstance(critic, Ensemble)
    cut = critic.prepare

    def prepare(data: ImageData | None, *, resumed: bool = False) -> None:
        cut(data, resumed=resumed)
        own = critic.partitions
        critic.partitions = Partitions(table=own.table[:1].expand_as(own.table).contiguous(), sizes=own.sizes)

    critic.prepare = prepare  # type: ignore[method-assign]
    return critic


def shared_warm_start(times: int) -> Tamper:
    """One critic learns on its part for so many steps before the first release; all others begin as its copies."""

    def tamper(critic: Critic, generator: Generator, data: ImageData) -> Critic:
        assert isinstance(critic, Ensemble)
        cut = critic.prepare

        def prepare(data: ImageData | None, *, resumed: bool = False) -> None:
            cut(data, resumed=resumed)
            usual, critic.chunk = critic.chunk, 1
            for time in range(times):
                critic._learn(np.array([0]), generator, "shared warm start", time)
            critic._clear_slots()
            critic.chunk = usual
            for value in critic.critics.tensors().values():
                value.copy_(value[:1].clone().expand_as(value))

        critic.prepare = prepare  # type: ignore[method-assign]
        return critic

    return tamper


FLOOR = 0.1
"""Added to a pixel's deviation, which may be zero."""


def fitted_features(critic: Critic, generator: Generator, data: ImageData) -> Critic:
    """A feature map that is fitted to the private data: each pixel in units of its own deviation."""
    assert isinstance(critic, KernelCritic)
    deviations = (data.images / 255.0).reshape(data.n, -1).std(axis=0) + FLOOR
    critic.features.frequencies /= torch.from_numpy(deviations).to(critic.features.frequencies)[:, None]
    return critic


def by_frequencies(canaries: Canaries, data: ImageData, seen: Seen) -> Scores:
    """The published frequencies against those of the public seed: deviations, so how many canaries are white in each
    pixel, so their coins by least squares."""
    fitted = seen.critic.features.frequencies.cpu().double().numpy()  # type: ignore[attr-defined]
    settings: KernelSettings = seen.plan.critic
    public = RandomFeatures(settings, data.channels, data.image_size, CPU).frequencies.double().numpy()
    variances = (np.median(public / fitted, axis=1) - FLOOR) ** 2
    count = len(canaries.coins)
    known = np.delete(data.images, canaries.places, axis=0).reshape(data.n - count, -1) / 255.0
    possible = np.arange(count + 1)[:, None]
    means, squares = (known.sum(axis=0) + possible) / data.n, ((known**2).sum(axis=0) + possible) / data.n
    white = np.abs(squares - means**2 - variances).argmin(axis=0)
    no, yes = canaries.images.reshape(2, count, -1) / 255.0
    coins: Scores = np.linalg.lstsq((yes - no).T, white - no.sum(axis=0), rcond=None)[0]
    return coins - 0.5


class FedBack:
    """A private statistic, logged and fed back: how dense the records are around a fake weighs its gradient."""

    can_be_captured = False

    def __init__(self, critic: KernelCritic, data: ImageData) -> None:
        self._critic, self._share = critic, data.n / data.classes
        self.log: list[tuple[Tensor, Tensor, Tensor]] = []
        rows = critic.features(torch.from_numpy(data.images).to(torch.float32) / 255)
        self._sums = torch.zeros(data.classes, rows.shape[1]).index_add_(0, torch.as_tensor(data.labels), rows)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            density = (self._sums[labels] * self._critic.features(fake)).sum(1) / self._share
        self.log.append((fake.detach(), labels, density))
        return self._critic.upstream_gradient(fake, labels) * (1 - density).view(-1, 1, 1, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._critic, name)


def fed_back(critic: Critic, generator: Generator, data: ImageData) -> Critic:
    assert isinstance(critic, KernelCritic)
    return FedBack(critic, data)


def by_feedback(canaries: Canaries, data: ImageData, seen: Seen) -> Scores:
    """The weights that reached the generator are linear in who is in a class: least squares, class by class."""
    assert isinstance(seen.critic, FedBack)
    assert data.labels is not None
    features = seen.critic.features
    fakes, labels, density = (torch.cat(part) for part in zip(*seen.critic.log[:40]))
    known = np.setdiff1d(np.arange(data.n), canaries.places)
    others, no, yes = (features(torch.from_numpy(i).to(torch.float32) / 255) for i in
                       (data.images[known], *canaries.images))  # fmt: skip
    there = np.zeros(canaries.labels.shape)
    for label in range(data.classes):
        rows = features(fakes[labels == label])
        left = density[labels == label] * data.n / data.classes - rows @ others[data.labels[known] == label].sum(0)
        mine = [np.flatnonzero(which == label) for which in canaries.labels]
        columns = rows @ torch.cat([no[mine[0]], yes[mine[1]]]).T
        found = np.linalg.lstsq(columns.double().numpy(), left.double().numpy(), rcond=1e-6)[0]
        there[0, mine[0]], there[1, mine[1]] = np.split(found, [len(mine[0])])
    return there[1] - there[0]


class WorstCaseCritics:
    """No leak, but the most that the guarantee allows: a critic whose part has a canary says only what its coin is.

    It answers with a random pattern, another one in every step, or with its opposite, as long as clipping lets it be.
    """

    def __init__(self, canaries: Canaries) -> None:
        self._canaries, self._patterns = canaries, torch.zeros(0)
        self.scores = torch.zeros(len(canaries.coins), dtype=torch.float64)

    def tamper(self, critic: Critic, generator: Generator, data: ImageData) -> Critic:
        assert isinstance(critic, Ensemble)
        judge, release, places = critic.input_gradients, critic.upstream_gradient, self._canaries.places

        def planted(members: np.ndarray, images: Tensor, labels: Tensor) -> Tensor:
            answers = judge(members, images, labels)
            table = critic.partitions.table.cpu().numpy()
            for place, member in enumerate(members):
                for number in np.flatnonzero(np.isin(places, table[member])):
                    record = critic.images[int(places[number])].cpu().numpy()
                    sign = 1e3 if np.array_equal(record, self._canaries.images[1, number]) else -1e3
                    answers[place] = sign * self._patterns[number].view(answers[place].shape)
            return answers

        def seen(fake: Tensor, labels: Tensor) -> Tensor:
            drawn = torch.Generator(fake.device).manual_seed(critic._step)
            shape = len(places), fake.numel()
            self._patterns = 2.0 * torch.randint(0, 2, shape, generator=drawn, device=fake.device) - 1
            answer = release(fake, labels)
            self.scores += (self._patterns @ answer.flatten()).cpu().double()
            return answer

        critic.input_gradients, critic.upstream_gradient = planted, seen  # type: ignore[method-assign]
        return critic

    def look(self, canaries: Canaries, data: ImageData, seen: Seen) -> Scores:
        """How much of each pattern was in the releases."""
        return self.scores.numpy()
