"""Worst-case neighbours of preset `refined`, driven through the wiring of a real run: see wiring.py.

The changed record's gradient is v or -v, far beyond the clip; that of all others is 0, or as long and at a right angle
to it, both as the mechanism gets them, so that a clip that does not act on each record alone shows. Coins,
preconditioner, chunks, clip, sum, ledger and noise are those of a training; the kernel's release before it is looked at
as with the ensemble's start. With a plan by person the changed person has several records, all white or all black.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gswgan.audit.wiring import (
    CPU,
    Observed,
    ReleaseStatistics,
    alternating,
    made_data,
    made_facts,
    observed,
    open_real_run,
    restated,
    seed_of,
    sign_of_record,
)
from gswgan.audit.worst_case import FEATURES, SIGNAL_TO_NOISE, observe_start
from gswgan.generators import GeneratorSettings
from gswgan.generators.denoised import latent_size
from gswgan.generators.denoiser import Denoiser
from gswgan.generators.preconditioner import Preconditioner
from gswgan.generators.refined import RefinedGenerator
from gswgan.plan.plan import Plan
from gswgan.run.loop import make_generator

UNITS, BATCH, SIDE, EACH = 20, 6, 8, 3
"""Of the tiny runs: records (or persons), how many of them take part in a step on average, the side of the images, and
the records of each person."""


class PlantedGradients:
    """In place of the gradients of the denoiser's loss."""

    def __init__(self, denoiser: Denoiser, preconditioner: Preconditioner) -> None:
        self.denoiser, self._preconditioner, self.draws = denoiser, preconditioner, 1
        self.direction = alternating(sum(value.numel() for value in denoiser.parameters()))

    def directions(self) -> tuple[Tensor, Tensor]:
        """What the mechanism gets of the changed record and of the others: two unit vectors at a right angle."""
        mine = self._preconditioner.forward(self.direction[None])[0]
        mine = mine / mine.norm()
        others = self.direction.abs() - (self.direction.abs() @ mine) * mine
        return mine, others / others.norm()

    def of_records(self, images: Tensor, labels: Tensor, records: Tensor, seed: Tensor) -> Tensor:
        """v for white, -v for black; for grey, by the toss of a coin for all of a step, the others' direction or 0."""
        scales, back = self._preconditioner.scales, self._preconditioner.back
        mine, others = (back(direction / scales**2) for direction in self.directions())  # `forward` undoes it
        said = sign_of_record(images)[:, None]
        return 1e3 * (said * mine + int(seed) % 2 * (1 - said.abs()) * others)

    def of_samples(self, images: Tensor, labels: Tensor, seed: Tensor) -> Tensor:
        """Of public samples, which the axes and scales come from: all alike."""
        return torch.ones_like(self.direction)


def small_plan(plan: Plan, *, steps: int, seed: int) -> Plan:
    """The plan with UNITS made records or persons, tiny networks, so many steps of DP-SGD and little noise."""
    facts = made_facts(UNITS, classes=2, side=SIDE)
    if plan.facts.persons is not None:
        facts = made_facts(UNITS * EACH, classes=2, side=SIDE, persons=UNITS)
    privacy = replace(plan.sums, releases=steps, rate=BATCH / UNITS, noise_std=plan.sums.clip_norm / SIGNAL_TO_NOISE)
    critic: Any = plan.critic
    critic = replace(
        critic, steps=1, pretraining=1, pretraining_batch=16, samples=16, draws=1,
        kernel=replace(FEATURES, features=4000), start=GeneratorSettings(architecture="mlp", width=2),
    )  # fmt: skip
    return restated(
        plan, seed=seed, facts=facts, privacy=privacy, critic=critic,
        generator=replace(plan.generator, width=4, latent=latent_size(facts.pixels)),
        training=replace(plan.training, steps=2 + steps, batch_size=4),
    )  # fmt: skip


def observe_steps(plan: Plan, world: int, steps: int) -> ReleaseStatistics:
    """Real steps of DP-SGD with planted gradients."""
    data, generator = made_data(plan.facts, world), make_generator(plan, CPU)
    with open_real_run(plan, data) as real:
        critic = real.critic
        assert isinstance(generator, RefinedGenerator)
        planted = PlantedGradients(generator.denoised.denoiser, generator.preconditioner)
        answer, critic._gradients = critic.mechanism.answer, planted
        sums: list[np.ndarray] = []

        def watched(*args: Any, **options: Any) -> Any:
            found = answer(*args, **options)
            sums.append(found.sums[0])
            return found

        critic.mechanism.answer = watched
        critic.kernel.prepare = lambda *args, **options: None  # its release: `observe_start`
        critic.prepare(data)
        for step in range(steps):
            critic.learn(2 + step, generator)
        real.check_ledger([plan.sums.event] * steps)
    mine, others = (direction.double().numpy() for direction in planted.directions())
    seen = ReleaseStatistics(mine, plan.sums.event)
    for one in sums:
        seen.add(one - (one @ others) * others)  # of the others it tells how many took part
    return seen


def observe_refined(plan: Plan, *, steps: int, seed: int = 0) -> list[Observed]:
    """Real steps of DP-SGD in both worlds, and the noise of the kernel's release where that is by record."""
    tiny = {world: small_plan(plan, steps=steps, seed=seed_of(seed, "refined", world)) for world in (1, 2)}
    first, second = (observe_steps(tiny[world], world, steps) for world in (1, 2))
    start = [] if plan.facts.persons is not None else [observe_start(tiny[1])]
    return [*observed("steps of DP-SGD", first, second), *start]
