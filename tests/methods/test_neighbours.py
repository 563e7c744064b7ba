"""What the proofs of docs/proof.md take from the code, for every method and preset, through a run's own wiring.

Two runs have the same key and differ in one unit. The second is handed the releases of the first, so it has the same
history: the conditional law of each release is then a matter of its exact sum. That sum may differ by the accounted
sensitivity at the most, and nothing that is published may differ at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import changed_in_one_record, tiny_baseline, tiny_images, tiny_plan
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.data import ImageData
from gswgan.generators import GeneratorSettings
from gswgan.methods import kernel_then_ensemble, make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import GaussianMechanism, Laplace, VoteMechanism
from gswgan.privacy.events import BaseEvent, unsampled
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS, ClippedSum, clipped_sum
from gswgan.run import loop
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")
UNIT = 17  # the record, or the client, that is replaced
CLIENTS = 24
SMALL, LARGE = tiny_images(), tiny_images(700)
KEY = {"insecure_reproducible": True}  # the same coins in both runs


def by_client(data: ImageData) -> ImageData:
    ids = tuple(f"client-{k}" for k in range(CLIENTS))
    return dataclasses.replace(data, persons=np.arange(data.n) % CLIENTS, person_ids=ids)


def fed_avg_plan(data: ImageData) -> Plan:
    plan = make_plan(Facts.of(data), method="fed-avg-gan", preset="noise-0.5", delta=1e-3, steps=120, **KEY)
    generator, critic = dataclasses.replace(plan.generator, width=16), plan.critic
    return dataclasses.replace(
        plan, generator=generator, critic=dataclasses.replace(critic, width=4, learning_batch=4, updates=2)
    )


def started_plan(data: ImageData) -> Plan:
    """An ensemble with a start on images so tiny that they have no need of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_then_ensemble, "is_started", lambda facts: True)
        patch.setattr(kernel_then_ensemble, "rows_of_a_step", lambda facts: 6)
        patch.setattr(kernel_then_ensemble, "CATCH_UP", 1)
        plan = make_plan(Facts.of(data), preset="ensemble", critics=6, steps=60, **KEY)
    kernel = dataclasses.replace(plan.critic.kernel, features=64)
    critics = EnsembleSettings(width=4, updates=1, learning_batch=4)
    critic = dataclasses.replace(plan.critic, steps=4, kernel=kernel, ensemble=critics)
    generator = dataclasses.replace(plan.generator, width=16)
    training = dataclasses.replace(plan.training, steps=64)
    return dataclasses.replace(plan, critic=critic, generator=generator, training=training, curve=())


def refined_plan(data: ImageData, epsilon: float = 10.0) -> Plan:
    """A few steps of each stage."""
    plan = make_plan(Facts.of(data), preset="refined", steps=30, epsilon=epsilon, **KEY)
    kernel = dataclasses.replace(plan.critic.kernel, features=64)
    start = GeneratorSettings(architecture="mlp", width=16)
    critic = dataclasses.replace(
        plan.critic, steps=4, pretraining=3, pretraining_batch=16, samples=64, draws=2, kernel=kernel, start=start
    )
    training = dataclasses.replace(plan.training, steps=37, batch_size=12)
    generator = dataclasses.replace(plan.generator, width=4)
    return dataclasses.replace(plan, critic=critic, generator=generator, training=training, curve=())


def g_pate_plan(data: ImageData) -> Plan:
    """Teachers that learn quickly, and bins that are fine enough for their gradients: a record can move votes."""
    plan = tiny_baseline(data, "g-pate", **KEY)
    teacher = dataclasses.replace(plan.critic.discriminator, updates=4, learning_rate=0.05)
    return dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, discriminator=teacher, bound=0.02))


CASES: dict[str, tuple[ImageData, Callable[[ImageData], Plan]]] = {
    "kernel": (SMALL, lambda data: tiny_plan(data, **KEY)),
    "refined": (SMALL, refined_plan),
    "refined by person": (by_client(SMALL), lambda data: refined_plan(data, 1000.0)),  # so few that 10 would be noise
    "ensemble": (SMALL, started_plan),
    "ensemble-alone": (SMALL, lambda data: tiny_plan(data, preset="ensemble-alone", steps=60, **KEY)),
    "paper": (SMALL, lambda data: tiny_plan(data, preset="paper", steps=60, **KEY)),
    "dp-merf": (SMALL, lambda data: tiny_baseline(data, "dp-merf", **KEY)),
    "dp-merf paper": (LARGE, lambda data: tiny_baseline(data, "dp-merf", preset="paper", **KEY)),
    "dp-merf-ae": (SMALL, lambda data: tiny_baseline(data, "dp-merf-ae", **KEY)),
    "dp-merf-ae paper": (LARGE, lambda data: tiny_baseline(data, "dp-merf-ae", preset="paper", **KEY)),
    "dp-sgd-gan revisited": (SMALL, lambda data: tiny_baseline(data, "dp-sgd-gan", steps=40, **KEY)),
    "dp-sgd-gan dp-cgan": (LARGE, lambda data: tiny_baseline(data, "dp-sgd-gan", preset="dp-cgan", **KEY)),
    "g-pate": (SMALL, g_pate_plan),
    "pate-gan": (SMALL, lambda data: tiny_baseline(data, "pate-gan", steps=12, **KEY)),
    "fed-avg-gan": (by_client(SMALL), fed_avg_plan),
}


def neighbour(data: ImageData) -> ImageData:
    """With another record, or with a client whose records are all others."""
    if data.persons is None:
        return changed_in_one_record(data, UNIT)
    images, own = data.images.copy(), data.persons == UNIT
    images[own] = 255 - images[own]
    return dataclasses.replace(data, images=images)


@dataclasses.dataclass
class Watched:
    """The exact sums of each run by the release's name, with its event; the releases are those of the first run."""

    released: dict[str, object] = dataclasses.field(default_factory=dict)
    exact: list[dict[str, tuple[BaseEvent, np.ndarray]]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    seen, of_sums, of_votes = Watched(), GaussianMechanism.answer, VoteMechanism.answer

    def sums(self: GaussianMechanism, name: str, blocks: object, *, slots: int, width: int) -> object:
        total = blocks
        if not isinstance(total, ClippedSum):
            total = clipped_sum(blocks, self.contribution, slots=slots, width=width)  # type: ignore[arg-type]
        scale = self.contribution.clip_norm * 2.0**-GRID_BITS
        seen.exact[-1][name] = self.event, total.total * scale
        return seen.released.setdefault(name, of_sums(self, name, total, slots=slots, width=width))

    def votes(self: VoteMechanism, name: str, cast: Tensor) -> object:
        seen.exact[-1][name] = self.event, self.counts(cast).astype(np.float64)
        return seen.released.setdefault(name, of_votes(self, name, cast))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianMechanism, "answer", sums)
        patch.setattr(VoteMechanism, "answer", votes)
        yield seen


def both_runs(name: str, place: Path) -> tuple[Plan, Watched, list[RunFolder]]:
    data, plan_for = CASES[name]
    plan, folders = plan_for(data), []
    with watched() as seen:
        for number, one in enumerate((data, neighbour(data))):
            seen.exact.append({})
            folders.append(RunFolder.create(place / str(number), plan))
            assert loop.run(folders[-1], one, device=CPU)
    return plan, seen, folders


@pytest.mark.parametrize("name", CASES)
def test_one_unit_moves_each_sum_by_at_most_what_is_accounted_for_and_nothing_that_is_published(
    name: str, tmp_path: Path
) -> None:
    plan, seen, folders = both_runs(name, tmp_path)
    first, second = seen.exact
    assert first.keys() == second.keys()
    assert Counter(entry.event for entry in read_ledger(folders[0].ledger)[1]) == Counter(plan.releases())
    moved = 0
    for (event, one), (_, other) in zip(first.values(), second.values(), strict=True):
        change, inner = np.abs(one - other), unsampled(event)
        moved += change.any()
        if isinstance(inner, Laplace):
            assert change.max() <= 1
            assert change.sum() <= inner.values * inner.sensitivity
        else:  # a client that is replaced, not zeroed, moves the sum twice as far
            assert np.linalg.norm(change) <= inner.sensitivity * (2 if inner.neighbours == "zeroed" else 1)
    assert moved, "the unit took part in no release: a test of nothing"
    assert folders[0].generator.read_bytes() == folders[1].generator.read_bytes()


@pytest.mark.parametrize("name", ["kernel", "ensemble", "dp-sgd-gan revisited", "pate-gan", "fed-avg-gan"])
def test_a_generator_that_sees_past_the_releases_is_found(name: str, tmp_path: Path, monkeypatch) -> None:
    """The check above, on a critic whose answers also have the data's mean in them."""
    settings = type(CASES[name][1](CASES[name][0]).critic)
    make = settings.make

    def leaky(self: object, plan: Plan, context: object) -> object:
        critic = make(self, plan, context)
        prepare, answer, mean = critic.prepare, critic.upstream_gradient, []

        def prepare_and_look(data: ImageData, *, resumed: bool = False) -> None:
            mean.append(float(data.images.mean()) * 1e-4)
            prepare(data, resumed=resumed)

        looking = {"prepare": prepare_and_look, "upstream_gradient": lambda f, y: answer(f, y) + mean[0]}
        for attribute, value in looking.items():
            setattr(critic, attribute, value)
        return critic

    monkeypatch.setattr(settings, "make", leaky)
    _, _, folders = both_runs(name, tmp_path)
    assert folders[0].generator.read_bytes() != folders[1].generator.read_bytes()
