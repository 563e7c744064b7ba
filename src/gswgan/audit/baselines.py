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

from gswgan.audit.wiring import (
    GREY,
    Observed,
    ReleaseStatistics,
    alternating,
    made_data,
    made_facts,
    observed,
    open_real_run,
    restated,
    seed_of,
    watch,
)
from gswgan.audit.worst_case import SIGNAL_TO_NOISE
from gswgan.critics import autoencoder, dp_sgd_gan
from gswgan.data import ImageData
from gswgan.errors import AuditError
from gswgan.methods import find_method, make_plan
from gswgan.methods.dp_merf_ae import DPMerfAESettings
from gswgan.methods.dp_merf_minibatch import MinibatchSettings
from gswgan.methods.dp_sgd_gan import DPSGDGANSettings
from gswgan.methods.g_pate import GPateSettings
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan

RECORDS, BATCH = 20, 6
"""Of the tiny runs: records, and how many take part in a release on average, where they are sampled."""

TINY_RUN_EPSILON = 60.0
"""Of the tiny runs that are not sampled."""

Attack = Callable[[Plan, int, int], dict[str, ReleaseStatistics]]
"""Plan, world and number of steps to what is seen of each kind of release."""


def observe_baseline(plan: Plan, *, steps: int, seed: int = 0) -> list[Observed]:
    """Real steps of a tiny run of the plan's method and preset, in both worlds."""
    if type(plan.critic) not in ATTACKS:
        known = "gswgan, dp-merf, dp-merf-ae, dp-sgd-gan, g-pate"
        raise AuditError("method", plan.method, f"one of {known}", "Pass one of them as --method.")
    attack = ATTACKS[type(plan.critic)]
    runs = {world: tiny_plan(plan, seed=seed_of(seed, plan.method, plan.preset, world)) for world in (1, 2)}
    first, second = (attack(runs[world], world, steps) for world in (1, 2))
    return [kind for name in first for kind in observed(name, first[name], second[name])]


def tiny_plan(plan: Plan, *, seed: int) -> Plan:
    """A run of the same method and preset with few made records and little noise."""
    own_noise = find_method(plan.method).own_noise(plan.preset)
    loud = make_plan(
        made_facts(max(RECORDS, _batch(plan.critic)), classes=2), method=plan.method, preset=plan.preset,
        epsilon=TINY_RUN_EPSILON if own_noise is None else None,
        critics=4 if find_method(plan.method).takes_critics else None, steps=4,
    )  # fmt: skip
    return restated(loud, seed=seed, facts=made_facts(RECORDS, classes=2), critic=_quiet(loud.critic))


def _batch(settings: Any) -> int:
    """Records of a release, on average, where they are sampled."""
    if isinstance(settings, DPMerfAESettings):
        return _batch(settings.autoencoder)
    return getattr(settings, "learning_batch", 0)


def _quiet(settings: Any) -> Any:
    """The settings with BATCH records in a release, on average, and little noise, where they are sampled."""
    if isinstance(settings, DPMerfAESettings):
        return replace(settings, autoencoder=_quiet(settings.autoencoder), embedding=_quiet(settings.embedding))
    if not _batch(settings):
        return settings
    noise = {"noise_std" if isinstance(settings, MinibatchSettings) else "noise_multiplier": 1 / SIGNAL_TO_NOISE}
    return replace(settings, learning_batch=BATCH, **noise)


def _sign_of_record(images: Tensor) -> Tensor:
    """Of records in [0, 1]: white 1, black -1, grey 0."""
    return ((images[:, -1, -1, -1] * 255).round() - GREY).sign()


def _plant_gradients(gradients: Any, records_loss: Any) -> ReleaseStatistics:
    """Plant the gradients of records, and watch what the barrier lets out."""
    direction = alternating(gradients.width)

    def rows(loss: Any, images: Tensor, *rest: Tensor) -> Tensor:
        said = _sign_of_record(images) if loss is records_loss else torch.zeros(len(images))
        return 1e3 * said[:, None] * direction

    gradients.rows = rows
    seen = ReleaseStatistics(direction.double().numpy(), gradients.mechanism.event)
    return watch(gradients, seen, lambda found: found.double().numpy() * gradients.expected)


def _attack_updates(plan: Plan, world: int, steps: int) -> dict[str, ReleaseStatistics]:
    data = made_data(plan.facts, world)
    with open_real_run(plan, data) as real:
        critic, step = real.critic, 0
        critic.prepare(data)
        seen = _plant_gradients(critic.gradients, dp_sgd_gan._loss_of_record)
        while len(seen) < steps:
            critic.done = 0  # a tiny run plans few updates
            critic.learn(step, _BlankFakes(plan.facts))
            step += 1
        real.check_ledger([seen.event] * len(seen))
    return {"updates": seen}


def _attack_minibatches(plan: Plan, world: int, steps: int) -> dict[str, ReleaseStatistics]:
    data = made_data(plan.facts, world)
    with open_real_run(plan, data) as real:
        return {"minibatches": _watch_minibatches(real.critic, data, plan, steps)}


def _watch_minibatches(critic: Any, data: ImageData, plan: Plan, steps: int) -> ReleaseStatistics:
    direction = alternating(critic.features.width)
    critic.features = _PlantedFeatures(critic.features, direction)
    critic.prepare(data)
    seen = ReleaseStatistics(direction.double().numpy(), critic._batches.event)
    watch(critic._batches, seen, lambda found: found.sums[0])  # all records are of the first class
    for step in range(steps):
        critic.learn(step, _BlankFakes(plan.facts))
    return seen


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
        return 1e3 * _sign_of_record(images)[:, None] * self._direction


def _attack_votes(plan: Plan, world: int, steps: int) -> dict[str, ReleaseStatistics]:
    settings: Any = plan.critic
    rows = plan.training.batch_size
    data = made_data(plan.facts, world)
    fake = torch.zeros(rows, 1, plan.facts.image_size, plan.facts.image_size)
    labels = torch.zeros(rows, dtype=torch.int64)
    votes = torch.zeros(settings.teachers, rows * settings.projection, dtype=torch.int64)
    with open_real_run(plan, data) as real:
        critic = real.critic
        critic.prepare(data)
        changed = next(k for k in range(settings.teachers) if _sign_of_part(critic.teachers, k))
        votes[changed] = 0 if _sign_of_part(critic.teachers, changed) > 0 else 1
        critic.votes = lambda *args: votes
        critic.teachers.learn = lambda *args: None
        seen = {"check": _watch_votes(critic._check, settings), "votes": _watch_votes(critic._vote, settings)}
        for step in range(steps):
            critic.learn(step, _BlankFakes(plan.facts))
            critic.upstream_gradient(fake, labels)
        real.check_ledger([kind.event for kind in seen.values()] * steps)
    return seen


def _sign_of_part(teachers: Any, number: int) -> float:
    """The strongest sign_of_record among the records of a teacher."""
    own = teachers.partitions.table[number, : int(teachers.partitions.sizes[number])]
    said = _sign_of_record(teachers.images[own].to(torch.float32) / 255)
    return float(said[said.abs().argmax()])


def _watch_votes(mechanism: Any, settings: GPateSettings) -> ReleaseStatistics:
    """The changed teacher moves one vote from the second option to the first, in every question."""
    ballot = mechanism.ballot
    shape = (ballot.questions,) if ballot.largest else (ballot.questions, ballot.options)
    middle, towards = np.zeros(shape), np.zeros(shape)
    if ballot.largest:
        middle[:], towards[:] = settings.teachers - 0.5, 1.0
    else:
        middle[:, 0], middle[:, 1], towards[:, 0], towards[:, 1] = settings.teachers - 0.5, 0.5, 1.0, -1.0
    return watch(mechanism, ReleaseStatistics(towards.ravel(), mechanism.event, middle=middle), lambda found: found)


def _attack_autoencoder(plan: Plan, world: int, steps: int) -> dict[str, ReleaseStatistics]:
    """Short runs, one after the other, each with a key of its own; then the embedding's releases, where it has many."""
    settings: Any = plan.critic
    data = made_data(plan.facts, world)
    found: dict[str, ReleaseStatistics] = {}
    for number in range(math.ceil(steps / settings.autoencoder.releases)):
        run = restated(plan, seed=seed_of(plan.seed, number))
        with open_real_run(run, data) as real:
            seen = _plant_gradients(real.critic.gradients, autoencoder.reconstruction_loss)
            real.critic._train(data)
            real.check_ledger([seen.event] * len(seen))
        if number:
            found["auto-encoder"].extend(seen)
        else:
            found["auto-encoder"] = seen
    if isinstance(settings.embedding, MinibatchSettings):
        with open_real_run(plan, data) as real:
            found["minibatches"] = _watch_minibatches(real.critic.kernel, data, plan, steps)
    return found


ATTACKS: dict[type, Attack] = {
    DPMerfAESettings: _attack_autoencoder,
    DPSGDGANSettings: _attack_updates,
    GPateSettings: _attack_votes,
    MinibatchSettings: _attack_minibatches,
}
"""By the settings of the critic."""
