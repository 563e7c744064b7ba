"""What many tests need: tiny data, tiny plans, mechanisms on a temporary ledger."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
import torch
from hypothesis import HealthCheck, settings

from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.teachers import Teachers
from gswgan.data import ImageData, make_image_data
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods import dp_merf_ae, make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Contribution, GaussianMechanism, Ledger, Streams
from gswgan.privacy.events import BaseEvent, Gaussian
from gswgan.run import checkpoint
from gswgan.run.budget import Budget

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # how long an example takes says how busy the machine is
checkpoint.EVERY_SECONDS = math.inf  # a run that is slow on a busy machine saves no more than any other
if multiprocessing.parent_process() is None:  # of these tests, and of what they start
    os.environ["GSWGAN_STATE"] = tempfile.mkdtemp(prefix="gswgan-state-")
    atexit.register(shutil.rmtree, os.environ["GSWGAN_STATE"], ignore_errors=True)

torch.set_num_threads(1)  # tiny models: threads would only wait for each other
threadpoolctl.threadpool_limits(1)


MNIST = Facts(
    data="mnist", records=60_000, persons=None, classes=10, class_names=tuple("0123456789"), labelled=True,
    image_size=28, channels=1,
)  # fmt: skip


def tiny_images(n: int = 96, *, side: int = 8, classes: int = 3, seed: int = 0) -> ImageData:
    """Three kinds of stripes with noise: learnable, and quick."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    images = rng.integers(0, 60, (n, side, side))
    for index, label in enumerate(labels):
        images[index, label :: classes + 1] += 180
    return make_image_data(images.astype(np.uint8), labels, classes=classes, name="stripes")


def lines(n: int, *, seed: int) -> ImageData:
    """Thin lines, thick lines or a dot, on 8x8: kinds that small shifts do not change, unlike their negatives."""
    rng, labels = np.random.default_rng(seed), np.arange(n) % 3
    row, column = np.indices((8, 8))
    dot = (abs(row - 3.5) < 1) & (abs(column - 3.5) < 1)
    kinds = np.stack([row % 4 == 1, np.isin(row % 4, (1, 2)), dot])
    images = rng.integers(0, 60, (n, 8, 8)) + 180 * kinds[labels]
    return make_image_data(images.astype(np.uint8), labels, classes=3, name="lines")


def write_persons(path: Path, ids: Iterable[object], key: str = "index") -> Path:
    """A table for `group_by` of records in their order."""
    path.write_text("".join([f"{key},person\n", *(f"{place},{person}\n" for place, person in enumerate(ids))]))
    return path


def changed_in_one_record(data: ImageData, index: int) -> ImageData:
    """A neighbour: another image and another label in one place."""
    assert data.labels is not None
    images, labels = data.images.copy(), data.labels.copy()
    images[index], labels[index] = 255 - images[index], (labels[index] + 1) % data.classes
    return dataclasses.replace(data, images=images, labels=labels)


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n].nan_to_num(-1), other[n].nan_to_num(-1)) for n in one)


def tiny_generator(steps: int = 3, learning_rate: float = 3e-3) -> Generator:
    return Generator(
        GeneratorSettings(architecture="mlp", width=16), OptimizerSettings(learning_rate=learning_rate),
        classes=3, channels=1, image_size=8, updates=steps, streams=Streams.public(0), device=torch.device("cpu"),
    )  # fmt: skip


def different_teachers(one: Teachers, other: Teachers) -> list[int]:
    """Which teachers' states differ."""
    pairs = zip(one.state().values(), other.state().values())
    equal = torch.stack([(a == b).flatten(1).all(dim=1) if a.ndim > 1 else a == b for a, b in pairs])
    return np.flatnonzero(~equal.all(dim=0)).tolist()


@pytest.fixture
def stripes() -> ImageData:
    return tiny_images()


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    return Budget.create(tmp_path / "budget", epsilon=10, delta=1e-5)


def key_of(number: int) -> Streams:
    """The streams of a key that is fixed, so that tests repeat."""
    return Streams(number.to_bytes(32, "little"), "plan")


@contextlib.contextmanager
def noise_by_name() -> Iterator[None]:
    """The noise of a release follows from its name alone: two releases then differ by their exact sums.

    As it must not be in a run, where another sum has other noise.
    """
    drawn = Streams.rounded_gaussian
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Streams, "rounded_gaussian", lambda self, *parts: drawn(self, *parts[:-1]))
        yield


@pytest.fixture
def known_noise() -> Iterator[None]:
    """For tests that tell exact sums by subtracting two releases."""
    with noise_by_name():
        yield


@pytest.fixture
def mechanism_for(tmp_path: Path) -> Callable[..., GaussianMechanism]:
    """A mechanism with its own ledger; the key is fixed, so tests repeat."""

    def make(
        contribution: Contribution, *, noise_std: float = 1.0, event: BaseEvent | None = None, key: int = 0
    ) -> GaussianMechanism:
        folder = tmp_path / f"mechanism-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        streams = key_of(key)
        ledger = Ledger(folder / "ledger", observer="public", context=streams.context, journal=folder / "journal")
        event = event or Gaussian(noise_std=noise_std, sensitivity=contribution.sensitivity("replace-one"))
        return GaussianMechanism(contribution=contribution, event=event, ledger=ledger, streams=streams)

    return make


_make_plan = functools.cache(make_plan)  # calibration takes seconds


def tiny_baseline(data: ImageData, method: str, **options: object) -> Plan:
    """A baseline's plan, made small in what its guarantee does not depend on."""
    options.setdefault("steps", 4)
    if method in ("g-pate", "pate-gan"):
        options.setdefault("critics", 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dp_merf_ae, "TINY_UPDATES", 5)
        plan = _make_plan(Facts.of(data), method=method, **options)
    if method == "dp-merf-ae":
        embedding = dataclasses.replace(plan.critic.embedding, features=64)
        critic, generator = dataclasses.replace(plan.critic, embedding=embedding), plan.generator
        return dataclasses.replace(plan, critic=critic, generator=dataclasses.replace(generator, width=2))
    small = {
        "dp-merf": {"features": 64},
        "dp-sgd-gan": {"width": 4},
        "g-pate": {"discriminator": EnsembleSettings(width=4, updates=1, learning_batch=4)},
        "pate-gan": {"teacher_width": 4, "student_width": 4},
        "gan": {"width": 4},
    }[method]
    generator = dataclasses.replace(plan.generator, architecture="mlp", width=16)
    return dataclasses.replace(plan, generator=generator, critic=dataclasses.replace(plan.critic, **small))


def tiny_plan(data: ImageData, *, preset: str = "kernel", **options: object) -> Plan:
    """A plan of GS-WGAN by the real planner, made small: narrow networks, few steps."""
    options.setdefault("steps", 8)
    if preset != "kernel":
        options.setdefault("critics", 12)
    plan = _make_plan(Facts.of(data), preset=preset, **options)
    generator = dataclasses.replace(plan.generator, architecture="mlp", width=16, spectral_norm=False)
    critic, training = plan.critic, plan.training
    if preset == "kernel":
        critic = dataclasses.replace(critic, features=64)
        training = dataclasses.replace(training, batch_size=12, memory=0.9)
    else:
        critic = dataclasses.replace(critic, width=4, updates=2, learning_batch=4, warm_start=0)
    return dataclasses.replace(plan, generator=generator, critic=critic, training=training)
