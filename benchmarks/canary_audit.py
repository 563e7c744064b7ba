"""Canaries in a whole training: records that no data set has, and an attacker who looks for them afterwards.

Canary i stands at a fixed place of the data with one of two contents, by a fair coin: a random pattern or its inverse,
in two classes or in one. Flipping a coin replaces one record, so what the training states for replaced records is what
the attack may refute (one_run.py). The attacker knows every other record, both contents and all public seeds, and
sees either all that was released on the way (white box) or the published samples alone (black box).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.kernel.embedding import Embedding
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData
from gswgan.errors import AuditError
from gswgan.generators.generator import Generator
from gswgan.generators.sampling import draw_images
from gswgan.plan.plan import Plan
from gswgan.privacy import PrivacyCost
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic, make_generator, train
from one_run import OneRun, best_bound

ERROR = 0.05
"""All white-box bounds together, and all black-box bounds together, are wrong with at most this probability."""

SAMPLES = 10_000
"""What the black-box attacker draws from the published generator."""

AT_ONCE = 1000
"""Records whose features are computed at a time."""

Scores = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """m pairs of records at m places, and the coins that chose between them."""

    places: NDArray[np.int64]
    images: NDArray[np.uint8]  # [2, m, c, h, w]: where the coin says no, where it says yes
    labels: NDArray[np.int64]  # [2, m]
    coins: NDArray[np.bool_]

    def hide_in(self, data: ImageData) -> ImageData:
        """The data with the contents that the coins chose."""
        assert data.labels is not None
        images, labels = data.images.copy(), data.labels.copy()
        which, own = self.coins.astype(np.int64), np.arange(len(self.coins))
        images[self.places], labels[self.places] = self.images[which, own], self.labels[which, own]
        return replace(data, images=images, labels=labels)

    def pixels(self) -> NDArray[np.float64]:
        """Both contents around 0: [2, m, pixels]."""
        flat: NDArray[np.float64] = self.images.reshape(2, len(self.coins), -1) / 255.0 - 0.5
        return flat


def make_canaries(
    data: ImageData, count: int, *, seed: int, keep_class: bool, among: NDArray[np.int64] | None = None
) -> Canaries:
    """Random black and white patterns; places, patterns, classes and coins come from the audit's own seed.

    A kernel critic shows most of a record that changes its class, an ensemble of one that keeps it (`keep_class`: as
    many canaries in each class). `among`: places that the attacker prefers.
    """
    if data.labels is None or data.classes < 2 or data.persons is not None:
        raise AuditError("data", data.name, "records with labels of two classes or more, each for itself")
    among = np.arange(data.n) if among is None else among
    if not 1 <= count <= len(among):
        raise AuditError("canaries", count, f"a number from 1 to {len(among)}, the number of records")
    rng = np.random.default_rng([seed, count])
    places = np.sort(rng.choice(among, count, replace=False))
    yes = rng.integers(0, 2, (count, *data.images.shape[1:]), dtype=np.uint8) * np.uint8(255)
    first = np.resize(np.arange(data.classes), count)
    second = first if keep_class else (first + rng.integers(1, data.classes, count)) % data.classes
    coins = rng.integers(0, 2, count).astype(bool)
    return Canaries(places=places, images=np.stack([255 - yes, yes]), labels=np.stack([second, first]), coins=coins)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a training let out."""

    plan: Plan
    critic: Critic
    embedding: Embedding | None  # of a kernel critic: its one release
    gradients: Tensor  # [classes, pixels] in float64: what an ensemble released, summed over the fakes of a class
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


View = Callable[[Canaries, ImageData, Seen], Scores]
"""A score for each canary: positive where the attacker thinks that its coin says yes."""

Tamper = Callable[[Critic, Generator, ImageData], Critic]
"""Plants a leak in a critic that is about to be prepared: a test of the audit itself."""


class Watched:
    """The critic, with somebody who writes down what it tells the generator."""

    can_be_captured = False

    def __init__(self, critic: Critic, classes: int, pixels: int) -> None:
        self._critic = critic
        self.gradients = torch.zeros(classes, pixels, dtype=torch.float64)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The critic's answer."""
        answer = self._critic.upstream_gradient(fake, labels)
        self.gradients.index_add_(0, labels.cpu(), answer.flatten(1).to("cpu", torch.float64))
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._critic, name)


def train_with(plan: Plan, data: ImageData, *, device: torch.device, tamper: Tamper | None = None) -> Seen:
    """The plan's training, from the first release to the samples; `tamper` may plant a leak in it."""
    with tempfile.TemporaryDirectory(prefix="gswgan-canaries-") as place:
        folder = RunFolder.create(Path(place) / "run", plan)
        generator = make_generator(plan, device)
        critic = make_critic(plan, folder, data, device)
        if tamper is not None:
            critic = tamper(critic, generator, data)
        critic.prepare(data)
        watched = Watched(critic, plan.facts.classes, plan.facts.pixels)
        is_kernel = isinstance(plan.critic, KernelSettings)  # its gradients tell nothing that its release does not
        train(plan, critic if is_kernel else cast(Critic, watched), generator)
        embedding = Embedding.load(folder.embedding) if folder.embedding.exists() else None
    labels = np.resize(generator.label_set, SAMPLES)
    images = draw_images(generator.released_network(), generator.settings, labels, np.random.default_rng(0))
    return Seen(
        plan=plan, critic=critic, embedding=embedding, gradients=watched.gradients, images=images, labels=labels
    )


def by_embedding(canaries: Canaries, data: ImageData, seen: Seen) -> Scores:
    """The released class sums, less all that is known, as a sum of what the coins move in them: least squares.

    Alone a projection would not do: in the counts of a class all its coins add up.
    """
    assert seen.embedding is not None
    assert data.labels is not None
    kernel: Any = getattr(seen.critic, "kernel", seen.critic)
    features: RandomFeatures = kernel.features
    device = features.frequencies.device

    def rows(images: NDArray[np.uint8]) -> Tensor:
        found = features(torch.from_numpy(images).to(device, torch.float32) / 255).to("cpu", torch.float64)
        return torch.nn.functional.pad(found, (0, 1), value=1.0)

    rest = torch.cat([seen.embedding.sums, seen.embedding.counts[:, None]], dim=1)
    known = np.setdiff1d(np.arange(data.n), canaries.places)
    for start in range(0, len(known), AT_ONCE):
        part = known[start : start + AT_ONCE]
        rest.index_add_(0, torch.from_numpy(data.labels[part]), rows(data.images[part]), alpha=-1.0)
    (no, yes), (no_class, yes_class) = (rows(i) for i in canaries.images), torch.from_numpy(canaries.labels)
    rest.index_add_(0, no_class, no, alpha=-0.5)  # what a canary adds whatever its coin says, on average
    rest.index_add_(0, yes_class, yes, alpha=-0.5)
    projected = (rest[yes_class] * yes).sum(1) - (rest[no_class] * no).sum(1)
    sides = ((yes, yes_class, 1.0), (no, no_class, -1.0))
    products = torch.zeros(len(yes), len(yes), dtype=torch.float64)  # of what one coin moves with what another does
    for one, its_class, sign in sides:
        for other, other_class, opposite in sides:
            products += sign * opposite * (its_class[:, None] == other_class) * (one @ other.T)
    return np.asarray(torch.linalg.lstsq(products, projected[:, None]).solution[:, 0].numpy())


def by_gradients(canaries: Canaries, data: ImageData, seen: Seen) -> Scores:
    """How far the released gradients pull fakes towards the pattern that the coin would have put into their class."""
    return _resemblance(canaries, -seen.gradients.numpy())


def by_samples(canaries: Canaries, data: ImageData, seen: Seen) -> Scores:
    """The black box: how much more the samples of a class resemble the pattern than the known records do."""
    assert data.labels is not None
    known = np.setdiff1d(np.arange(data.n), canaries.places)
    means = _class_means(seen.images, seen.labels, data.classes)
    return _resemblance(canaries, means - _class_means(data.images[known], data.labels[known], data.classes))


def _class_means(images: NDArray[np.uint8], labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    flat = images.reshape(len(images), -1) / 255.0
    return np.stack([flat[labels == label].mean(axis=0) if (labels == label).any() else 0 * flat[0] for label in
                     range(classes)])  # fmt: skip


def _resemblance(canaries: Canaries, table: NDArray[np.float64]) -> Scores:
    (no, yes), (no_class, yes_class) = canaries.pixels(), canaries.labels
    scores: Scores = (table[yes_class] * yes).sum(1) - (table[no_class] * no).sum(1)
    return scores


@dataclass(frozen=True, kw_only=True)
class TrainingAudit:
    """What was shown of one training, by what the attacker looked at, beside what it states."""

    stated: PrivacyCost
    white_box: dict[str, OneRun]
    black_box: dict[str, OneRun]

    @property
    def lower_bound(self) -> float:
        """The white-box attacker's best; it holds with 95 % confidence."""
        return max(bound.epsilon for bound in self.white_box.values())

    @property
    def refuted(self) -> bool:
        """Whether more was shown than is stated."""
        return self.lower_bound > self.stated.epsilon

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"refuted": self.refuted, "lower_bound": self.lower_bound, **asdict(self)}


def audit_training(
    plan: Plan,
    data: ImageData,
    canaries: Canaries,
    *,
    device: torch.device,
    tamper: Tamper | None = None,
    views: Mapping[str, View] | None = None,
) -> TrainingAudit:
    """Train on the data with canaries in it and bound epsilon from below by what the white and the black box show.

    `views`: what the white-box attacker looks at besides the releases, where a leak was planted.
    """
    cost = plan.guarantee
    assert cost is not None, "without a guarantee there is nothing to refute"
    hidden = canaries.hide_in(data)
    seen = train_with(plan, hidden, device=device, tamper=tamper)
    white = dict(views or {})
    if seen.embedding is not None:
        white["embedding"] = by_embedding
    if not isinstance(plan.critic, KernelSettings):
        white["gradients"] = by_gradients

    def bounds(looks: Mapping[str, View]) -> dict[str, OneRun]:
        error = ERROR / len(looks)
        scores = {name: look(canaries, hidden, seen) for name, look in looks.items()}
        return {name: best_bound(s, canaries.coins, delta=cost.delta, error=error) for name, s in scores.items()}

    return TrainingAudit(stated=cost, white_box=bounds(white), black_box=bounds({"samples": by_samples}))
