"""Small ensembles on made images, and the comparisons that the tests of the ensemble share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from conftest import key_of
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape
from gswgan.data import ImageData
from gswgan.privacy import BatchStreams, Contribution, DrawnOne, Gaussian, Sampled, Streams

CPU = torch.device("cpu")
SETTINGS = EnsembleSettings(width=4, updates=2, learning_batch=4, learning_rate=1e-3)
SHAPE = CriticShape(image_size=8, channels=1, classes=3, width=4)
COUNT, BATCH, CLIP = 12, 5, 1.0


class Fakes:
    """A generator that is public and fixed: its fakes depend on the index alone."""

    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        rng = Streams.public(5).generator("fakes", *index)
        images = torch.from_numpy(rng.random((count, 1, 8, 8), dtype=np.float32))
        return images, torch.from_numpy(rng.permutation(np.resize(np.arange(3), count)))


def make(
    data: ImageData, mechanism_for, *, rate: float = 0.4, count: int = COUNT, secret: int = 3, **changes
) -> Ensemble:
    contribution = Contribution(clip_norm=CLIP, rows=BATCH)
    gaussian = Gaussian(noise_std=changes.pop("noise_std", 1.0), sensitivity=contribution.sensitivity("replace-one"))
    sampling, public = changes.pop("sampling", "poisson"), changes.pop("public", 0)
    events = {
        "all": gaussian,
        "one": DrawnOne(count=count, event=gaussian),
        "poisson": Sampled(rate=rate, event=gaussian),
    }
    mechanism = mechanism_for(contribution, event=events[sampling], key=secret)
    device = changes.pop("device", CPU)
    ensemble = Ensemble(
        dataclasses.replace(SETTINGS, **changes), SHAPE, mechanism, count=count, public=Streams.public(public),
        batches=BatchStreams(key_of(secret)), device=device,
    )  # fmt: skip
    ensemble.prepare(data)
    return ensemble


def play(ensemble: Ensemble, steps: int = 6) -> None:
    for step in range(steps):
        ensemble.learn(step, Fakes())


def critic_state(ensemble: Ensemble, k: int) -> dict[str, torch.Tensor]:
    return {name: value[k].clone() for name, value in ensemble.state().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def changed_in_one_record(data: ImageData, index: int) -> ImageData:
    images, labels = data.images.copy(), data.labels.copy()
    images[index], labels[index] = 255 - images[index], (labels[index] + 1) % 3
    return dataclasses.replace(data, images=images, labels=labels)


def fix_participants(ensemble: Ensemble, members: list[int]) -> None:
    """Let these critics take part in every step."""
    ensemble.draw_participants = lambda step: np.array(members, np.int64)


def rows_of(ensemble: Ensemble) -> torch.Tensor:
    """The participants' gradients on the same fakes, [m, B, pixels], before they are clipped."""
    found = [rows for rows, _ in ensemble._blocks(*Fakes().fakes(BATCH, "scored"))]
    return torch.cat(found) if found else torch.zeros(0, BATCH, 64)


def different(one: Ensemble, other: Ensemble) -> list[int]:
    """The critics whose state differs."""
    return [k for k in range(one.count) if not same(critic_state(one, k), critic_state(other, k))]


class Counting(Fakes):
    """Fakes that keep what they were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int | str, ...]] = []

    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append((count, *index))
        return super().fakes(count, *index)


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread unless a test asks for another number: there is too little here to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(getattr(request, "param", 1))
    yield
    torch.set_num_threads(before)
