"""Worst-case neighbours of the baselines, driven through the wiring of a real run: see wiring.py.

DP-SGD: the changed record's gradient is v or -v, far beyond the clip, that of all others 0. Minibatches of features:
the same for its feature vector. Votes: its teacher votes for the first or for the second option in every question,
all others for the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gswgan.audit.step_law import StepLaw
from gswgan.audit.wiring import GREY, Observed, Statistics, Wired, made_data, made_facts, restated, seed_of, wired
from gswgan.baselines import find_method
from gswgan.baselines.dp_merf_ae import DPMerfAESettings
from gswgan.baselines.dp_merf_minibatch import MinibatchSettings
from gswgan.data import ImageData
from gswgan.errors import AuditError
from gswgan.privacy.events import BaseEvent, gaussian_of
from gswgan.training.plan import Facts, Plan
from gswgan.training.planner import make_plan

RECORDS, BATCH = 20, 6
"""Of the tiny runs: records, and how many take part in a release on average, where they are sampled."""

LOUD_EPSILON = 60.0
"""Of the tiny runs: so little noise that a wrong rate of participation shows."""

Attack = Callable[[Plan, int, int], dict[str, tuple[BaseEvent, Statistics]]]
"""Plan, world and number of steps to the statistics of each kind of release."""


def observe_baseline(plan: Plan, *, steps: int, seed: int = 0) -> list[Observed]:
    """Real steps of a tiny run of the plan's method and preset, in both worlds."""
    attack = _attack_on(plan)
    runs = {world: tiny_plan(plan, seed=seed_of(seed, plan.method, plan.preset, world)) for world in (1, 2)}
    first, second = (attack(runs[world], world, steps) for world in (1, 2))
    return [
        Observed(name=name, law=StepLaw.of(event), first=values, second=second[name][1])
        for name, (event, values) in first.items()
    ]


def _attack_on(plan: Plan) -> Attack:
    if isinstance(plan.critic, MinibatchSettings):
        return _attack_minibatches
    if isinstance(plan.critic, DPMerfAESettings):
        return _attack_autoencoder
    attacks: dict[str, Attack] = {"dp-sgd-gan": _attack_updates, "g-pate": _attack_votes}
    if plan.method not in attacks:
        known = ", ".join(("gswgan", "dp-merf", "dp-merf-ae", *attacks))
        raise AuditError("method", plan.method, f"one of {known}", "Pass one of them as --method.")
    return attacks[plan.method]


def tiny_plan(plan: Plan, *, seed: int) -> Plan:
    """A run of the same method and preset with few made records, a part of which takes part in a release."""
    own_noise = find_method(plan.method).own_noise(plan.preset)
    loud = make_plan(
        made_facts(max(RECORDS, _batch(plan.critic)), classes=2),
        method=plan.method,
        preset=plan.preset,
        epsilon=LOUD_EPSILON if own_noise is None else None,
        shards=4 if find_method(plan.method).takes_shards else None,
        steps=4,
    )
    return restated(loud, seed=seed, facts=made_facts(RECORDS, classes=2), critic=_small_batches(loud.critic))


def _batch(settings: Any) -> int:
    """Records of a release, on average, where they are sampled."""
    if isinstance(settings, DPMerfAESettings):
        return _batch(settings.autoencoder)
    return getattr(settings, "learning_batch", 0)


def _small_batches(settings: Any) -> Any:
    """The settings with BATCH records in a release, on average, where they are sampled."""
    if isinstance(settings, DPMerfAESettings):
        return replace(
            settings,
            autoencoder=_small_batches(settings.autoencoder),
            embedding=_small_batches(settings.embedding),
        )
    return replace(settings, learning_batch=BATCH) if _batch(settings) else settings


def _alternating(width: int) -> Tensor:
    """A unit vector whose entries alternate in sign: noise that is shared between coordinates cancels out and shows."""
    return (1.0 - 2.0 * (torch.arange(width) % 2)) / math.sqrt(width)


def _opinion(images: Tensor) -> Tensor:
    """Of records in [0, 1]: white 1, black -1, grey 0."""
    return ((images[:, -1, -1, -1] * 255).round() - GREY).sign()


class _Gradients:
    """Plants gradients of records, and keeps what the barrier lets out along their direction."""

    def __init__(self, gradients: Any, records_loss: Any) -> None:
        self.values: list[float] = []
        direction = _alternating(gradients.width)
        release, noise_std = gradients.release, gradients.mechanism.noise_std

        def rows(loss: Any, images: Tensor, *rest: Tensor) -> Tensor:
            said = _opinion(images) if loss is records_loss else torch.zeros(len(images))
            return 1e3 * said[:, None] * direction

        def watched(*args: Any, **options: Any) -> Tensor:
            found: Tensor = release(*args, **options)
            seen = found.double().numpy() * gradients.expected
            self.values.append(float(seen @ direction.double().numpy()) / noise_std)
            return found

        gradients.rows, gradients.release = rows, watched


def _attack_updates(plan: Plan, world: int, steps: int) -> dict[str, tuple[BaseEvent, Statistics]]:
    from gswgan.baselines import dp_sgd_gan

    data = made_data(plan.facts, world)
    with wired(plan, data) as real:
        critic, generator = real.critic, _BlankFakes(plan.facts)
        event = critic.gradients.mechanism.event
        critic.prepare(data)
        planted = _Gradients(critic.gradients, dp_sgd_gan._loss_of_record)
        step = 0
        while len(planted.values) < steps:
            critic.done = 0  # a tiny run plans few updates
            critic.learn(step, generator)
            step += 1
        real.check_ledger([event] * len(planted.values))
    return {"updates": (event, np.array(planted.values))}


def _attack_minibatches(plan: Plan, world: int, steps: int) -> dict[str, tuple[BaseEvent, Statistics]]:
    data = made_data(plan.facts, world)
    with wired(plan, data) as real:
        return {"minibatches": _minibatches(real, real.critic, data, plan, steps)}


def _minibatches(real: Wired, critic: Any, data: ImageData, plan: Plan, steps: int) -> tuple[BaseEvent, Statistics]:
    width, generator = critic.features.width, _BlankFakes(plan.facts)
    direction = _alternating(width)
    critic.features = _PlantedFeatures(critic.features, direction)
    critic.prepare(data)
    mechanism, values = critic.mechanism, np.empty(steps)
    release = mechanism.release

    def watched(*args: Any, **options: Any) -> Any:
        found = release(*args, **options)
        values[step] = found.sums[0] @ direction.double().numpy() / mechanism.noise_std
        return found

    mechanism.release = watched
    for step in range(steps):
        critic.learn(step, generator)
    return mechanism.event, values


class _BlankFakes:
    """A generator of black images: planted gradients do not depend on fakes."""

    def __init__(self, facts: Facts) -> None:
        self._facts, self.label_set = facts, np.arange(facts.classes)

    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        """Images and labels."""
        side = self._facts.image_size
        return torch.zeros(count, self._facts.channels, side, side), torch.zeros(count, dtype=torch.int64)


class _PlantedFeatures:
    """Random features in all but what they say of a record: v, -v or 0, far beyond the clip."""

    def __init__(self, real: Any, direction: Tensor) -> None:
        self.width, self.side, self.frequencies = real.width, real.side, real.frequencies
        self._direction = direction

    def __call__(self, images: Tensor) -> Tensor:
        return 1e3 * _opinion(images)[:, None] * self._direction


def _attack_votes(plan: Plan, world: int, steps: int) -> dict[str, tuple[BaseEvent, Statistics]]:
    settings, rows = plan.critic, plan.training.batch_size
    data = made_data(plan.facts, world)
    fake = torch.zeros(rows, 1, plan.facts.image_size, plan.facts.image_size)
    labels = torch.zeros(rows, dtype=torch.int64)
    votes = torch.zeros(settings.teachers, rows * settings.projection, dtype=torch.int64)
    values: dict[str, list[float]] = {"check": [], "vote": []}
    with wired(plan, data) as real:
        critic = real.critic
        critic.prepare(data)
        changed = next(k for k in range(settings.teachers) if _opinion_of_shard(critic.teachers, k))
        votes[changed] = 0 if _opinion_of_shard(critic.teachers, changed) > 0 else 1
        critic.votes = lambda *args: votes
        critic.teachers.learn = lambda *args: None
        watched = {"check": critic._check, "vote": critic._vote}
        for name, mechanism in watched.items():
            mechanism.release = _watched_votes(mechanism, settings.teachers, values[name])
        for step in range(steps):
            critic.learn(step, _BlankFakes(plan.facts))
            critic.upstream_gradient(fake, labels)
        real.check_ledger([mechanism.event for mechanism in watched.values()] * steps)
    return {name: (watched[name].event, np.array(values[name])) for name in watched}


def _opinion_of_shard(teachers: Any, number: int) -> float:
    """The strongest opinion among the records of a teacher."""
    own = teachers.shards.table[number, : int(teachers.shards.sizes[number])]
    said = _opinion(teachers._images[own].to(torch.float32) / 255)
    return float(said[said.abs().argmax()])


def _watched_votes(mechanism: Any, teachers: int, values: list[float]) -> Callable[..., Any]:
    release, event = mechanism.release, gaussian_of(mechanism.event)

    def watched(name: str, votes: Tensor) -> Any:
        found = release(name, votes)
        middle = np.zeros_like(found)  # between the two worlds; and from the second to the first, in all questions
        towards = np.zeros_like(found)
        if mechanism.ballot.largest:
            middle[:], towards[:] = teachers - 0.5, 1.0
        else:
            middle[:, 0], middle[:, 1], towards[:, 0], towards[:, 1] = teachers - 0.5, 0.5, 1.0, -1.0
        values.append(float(((found - middle) * towards).sum() / np.linalg.norm(towards) / event.noise_std))
        return found

    return watched


def _attack_autoencoder(plan: Plan, world: int, steps: int) -> dict[str, tuple[BaseEvent, Statistics]]:
    from gswgan.baselines import autoencoder

    data = made_data(plan.facts, world)
    values: list[float] = []
    event: BaseEvent | None = None
    runs = math.ceil(steps / plan.critic.autoencoder.releases)
    for number in range(runs):
        run = restated(plan, seed=seed_of(plan.seed, number))
        with wired(run, data) as real:
            planted = _Gradients(real.critic.gradients, autoencoder.reconstruction_loss)
            real.critic._train(data)
            event = real.critic.gradients.mechanism.event
            assert event is not None
            real.check_ledger([event] * len(planted.values))
            values += planted.values
    assert event is not None
    found: dict[str, tuple[BaseEvent, Statistics]] = {"auto-encoder": (event, np.array(values))}
    if isinstance(plan.critic.embedding, MinibatchSettings):
        with wired(plan, data) as real:
            found["minibatches"] = _minibatches(real, real.critic.kernel, data, plan, steps)
    return found
