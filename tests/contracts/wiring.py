"""Every method and preset with a guarantee, wired as a run wires it, and watched where units become released sums.

`loop.make_critic` makes the critic in a run folder with a key; `loop.train` drives it. What is noted of a
release is what happened: whose rows are in the sum, the noisy minus the exact sum (computed here by other means), and
the event that the plan accounts for. The key and the public seed can be exchanged without changing the plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from conftest import tiny_images
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.data import ImageData, load_data
from gswgan.federated.remote_critics import RemoteCritics
from gswgan.federated.server import create_run
from gswgan.federated.trust import make_federated_plan
from gswgan.methods import kernel_then_ensemble, make_plan
from gswgan.methods.dp_merf_minibatch import MinibatchCritic
from gswgan.methods.fed_avg_gan import FedAvgGAN
from gswgan.plan import make
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import GaussianMechanism, Streams, VoteMechanism
from gswgan.privacy.events import BaseEvent
from gswgan.privacy.mechanism import Answer
from gswgan.privacy.randomness import create_key
from gswgan.run import loop
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")
PERSONS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A method and preset, the data, and a plan that is small in what no guarantee depends on."""

    data: Callable[[], ImageData]
    small: Callable[[Plan], Plan]
    options: Mapping[str, Any]
    releases: int = 12  # that are watched
    noise: float = 20.0  # in place of a calibration, which takes seconds and changes nothing here
    federated: bool = False


@functools.cache
def digits() -> ImageData:
    return load_data("digits")


@functools.cache
def by_person() -> ImageData:
    data = tiny_images(4 * PERSONS)
    ids = tuple(f"client-{k}" for k in range(PERSONS))
    return dataclasses.replace(data, persons=np.arange(data.n) % PERSONS, person_ids=ids)


def _small(*, training: Mapping[str, int] = MappingProxyType({}), **critic: Any) -> Callable[[Plan], Plan]:
    def small(plan: Plan) -> Plan:
        generator = dataclasses.replace(plan.generator, width=4)
        if generator.architecture != "decoded":
            generator = dataclasses.replace(generator, architecture="mlp", spectral_norm=False)
        trained = dataclasses.replace(plan.training, **training)
        changed = dataclasses.replace(plan.critic, **critic)
        return dataclasses.replace(plan, generator=generator, critic=changed, training=trained)

    return small


def _by_coins(plan: Plan) -> Plan:
    """A small set has so few critics that all take part; here they do by coins."""
    privacy = dataclasses.replace(plan.privacy, sampling="poisson", rate=0.2)
    return dataclasses.replace(plan, privacy=privacy, guarantee=dataclasses.replace(plan.guarantee, sampling="poisson"))


def _small_started(plan: Plan) -> Plan:
    plan = _by_coins(_small()(plan))
    kernel, critics = dataclasses.replace(plan.critic.kernel, features=256), EnsembleSettings(**CRITICS)
    critic = dataclasses.replace(plan.critic, steps=2, kernel=kernel, ensemble=critics)
    training = dataclasses.replace(plan.training, steps=2 + plan.privacy.releases)
    return dataclasses.replace(plan, critic=critic, training=training)


def _small_refined(plan: Plan, features: int = 64) -> Plan:
    critic = dataclasses.replace(
        plan.critic, steps=2, pretraining=2, pretraining_batch=16, samples=32, draws=1,
        kernel=dataclasses.replace(plan.critic.kernel, features=features),
        start=dataclasses.replace(plan.critic.start, width=4),
    )  # fmt: skip
    training = dataclasses.replace(plan.training, steps=4 + plan.privacy.releases)
    generator = dataclasses.replace(plan.generator, width=4)
    return dataclasses.replace(plan, critic=critic, training=training, generator=generator)


def _small_codes(plan: Plan) -> Plan:
    return _small(embedding=dataclasses.replace(plan.critic.embedding, features=64))(plan)


CRITICS = {"width": 2, "updates": 1, "learning_batch": 2}
DIVIDED = {"critics": 60, "steps": 16}
CASES = {
    "kernel": Case(data=digits, small=_small(features=512), options={"steps": 2}, releases=1),
    "refined": Case(data=digits, small=_small_refined, options={"preset": "refined", "steps": 11}, noise=2.0),
    "refined by person": Case(
        data=by_person, small=lambda plan: _small_refined(plan, 512), releases=30, noise=0.3,
        options={"preset": "refined", "steps": 29},
    ),
    "ensemble": Case(data=digits, small=_small_started, options={**DIVIDED, "preset": "ensemble"}),
    "ensemble-alone": Case(
        data=digits, small=lambda plan: _by_coins(_small(**CRITICS)(plan)), releases=16,
        options={**DIVIDED, "preset": "ensemble-alone"},
    ),
    "paper": Case(data=digits, small=_small(**CRITICS, warm_start=0), options={**DIVIDED, "preset": "paper"}),
    "dp-merf": Case(data=digits, small=_small(features=512), options={"method": "dp-merf", "steps": 2}, releases=1),
    "dp-merf paper": Case(
        data=digits, small=_small(features=64), options={"method": "dp-merf", "preset": "paper", "steps": 12}
    ),
    "dp-merf-ae": Case(
        data=digits, small=_small_codes, options={"method": "dp-merf-ae", "steps": 2}, releases=7, noise=2.0
    ),
    "dp-merf-ae paper": Case(
        data=digits, small=_small_codes, options={"method": "dp-merf-ae", "preset": "paper", "steps": 6}
    ),
    "dp-sgd-gan revisited": Case(
        data=digits, small=_small(width=2), options={"method": "dp-sgd-gan", "preset": "revisited", "steps": 6}
    ),
    "dp-sgd-gan dp-cgan": Case(
        data=digits, small=_small(width=2), options={"method": "dp-sgd-gan", "preset": "dp-cgan", "steps": 12}
    ),
    "g-pate": Case(
        data=digits, small=_small(discriminator=EnsembleSettings(**CRITICS)),
        options={"method": "g-pate", "critics": 6, "steps": 4}, releases=8,
    ),
    "pate-gan": Case(
        data=digits, small=_small(teacher_width=2, student_width=2, teacher_updates=1),
        options={"method": "pate-gan", "critics": 6, "steps": 5}, releases=25,
    ),
    "fed-avg-gan": Case(
        data=by_person, small=_small(width=2, learning_batch=2, updates=1, generator_updates=1, training={"steps": 16}),
        releases=16,
        options={"method": "fed-avg-gan", "preset": "noise-0.5", "delta": 1e-3, "steps": 16 * 6},
    ),
    "federated": Case(
        data=by_person, small=_small(**CRITICS), releases=16, federated=True,
        options={"preset": "ensemble", "rate": 0.2, "epsilon": 10, "rounds": 16},
    ),
}  # fmt: skip


def planned(case: Case) -> Plan:
    """By the real planner, but for the search for the noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "calibrate", lambda *arguments, **options: case.noise)
        patch.setattr(make, "epsilon_curve", lambda draft, delta: ())
        started = case.options.get("preset") == "ensemble" and not case.federated
        patch.setattr(kernel_then_ensemble, "is_started", lambda facts: started)
        patch.setattr(kernel_then_ensemble, "CATCH_UP", 1)
        patch.setattr("gswgan.methods.dp_merf_ae.TINY_UPDATES", 6)
        patch.setattr("gswgan.methods.dp_merf_ae.UPDATES", 6)
        planner = make_federated_plan if case.federated else make_plan
        return case.small(planner(Facts.of(case.data()), **case.options))


@functools.cache
def plan_of(name: str) -> Plan:
    """Of one of the CASES."""
    return planned(CASES[name])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """One release as it happened."""

    name: str
    event: BaseEvent
    members: np.ndarray | None  # whose rows are in the sum; None: nobody was chosen
    rows: int
    noise: np.ndarray  # the noisy minus the exact values


class Enough(Exception):  # noqa: N818
    """As many releases as are watched have been made."""


class _Asked:
    """Carries questions to clients who never answer."""

    def __init__(self) -> None:
        self.clients: Sequence[str] = ()

    def ask(self, clients: Sequence[str], fields: object, take: object) -> None:
        self.clients = clients


@contextlib.contextmanager
def watched(most: int) -> Iterator[list[Seen]]:
    """Note every release, and whose rows went into it."""
    seen: list[Seen] = []
    whose: list[np.ndarray | None] = [None]
    of_sums, of_votes = GaussianMechanism.answer, VoteMechanism.answer

    def note(**parts: Any) -> None:
        seen.append(Seen(**parts))
        whose[0] = None

    def sums(self: GaussianMechanism, name: str, blocks: Any, *, slots: int, width: int) -> Answer:
        if len(seen) == most:
            raise Enough
        blocks = [(rows.clone(), slot) for rows, slot in blocks]
        exact, bound = np.zeros((slots, width + self.contribution.counts)), self.contribution.clip_norm
        for rows, slot in blocks:
            whole = rows.double().numpy() * (bound * 2.0**-26 if rows.dtype == torch.int64 else 1.0)
            whole = whole / np.maximum(1.0, np.linalg.norm(whole, axis=2, keepdims=True) / bound)
            if slot is None:
                exact[: whole.shape[1], :width] += whole.sum(axis=0)
                continue
            np.add.at(exact, (slot.numpy(), slice(0, width)), whole[:, 0])
            if self.contribution.counts:
                np.add.at(exact, (slot.numpy(), width), bound)
        found = of_sums(self, name, blocks, slots=slots, width=width)
        noisy = found.sums if found.counts is None else np.concatenate([found.sums, found.counts[:, None] * bound], 1)
        note(name=name, event=self.event, members=whose[0], rows=sum(len(r) for r, _ in blocks), noise=noisy - exact)
        return found

    def votes(self: VoteMechanism, name: str, cast: torch.Tensor) -> np.ndarray:
        if len(seen) == most:
            raise Enough
        counts = np.stack([(cast == option).sum(dim=0).numpy() for option in range(self.ballot.options)], axis=1)
        found = of_votes(self, name, cast)
        exact = counts.max(axis=1) if self.ballot.largest else counts
        note(name=name, event=self.event, members=None, rows=len(cast), noise=found - exact)
        return found

    def noting(kind: type, method: str, members: Callable[..., np.ndarray]) -> None:
        original = getattr(kind, method)

        def blocks(self: Any, *arguments: Any) -> Iterator[Any]:
            whose[0] = np.array(members(self, *arguments))
            yield from original(self, *arguments)

        patch.setattr(kind, method, blocks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianMechanism, "answer", sums)
        patch.setattr(VoteMechanism, "answer", votes)
        noting(RecordGradients, "blocks", lambda self, members, rows: members)
        noting(MinibatchCritic, "_blocks", lambda self, members: members)
        noting(Ensemble, "_blocks", lambda self, images, labels: self._participants)
        noting(FedAvgGAN, "_blocks", lambda self, number, generator: self._participants)
        noting(RemoteCritics, "_blocks", lambda self: np.array(sorted(map(self._clients.index, self._carrier.clients))))
        yield seen


def play(name: str, root: Path, *, key: int = 1, public: int = 0) -> list[Seen]:
    """The first releases of a run with this key, and with `public` added to the seed of all public streams."""
    case, plan = CASES[name], plan_of(name)
    names = getattr(case.data(), "person_ids", None)
    folder = create_run(root, plan, names, 600) if case.federated else RunFolder.create(root, plan)
    create_key(folder.key, plan.digest(), secret=key.to_bytes(32, "little"))
    data = None if case.federated else case.data()
    with pytest.MonkeyPatch.context() as patch, watched(case.releases) as seen:
        original = Streams.public
        patch.setattr(Streams, "public", classmethod(lambda cls, seed: original(seed + public)))
        answerer = (lambda context: RemoteCritics(folder, context, names, _Asked())) if case.federated else None
        critic = loop.make_critic(plan, folder, data, CPU, answerer=answerer)
        with contextlib.suppress(Enough):
            critic.prepare(data)
            loop.train(plan, critic, loop.make_generator(plan, CPU))
    return seen


def plant(patch: pytest.MonkeyPatch, owner: Any, function: str, old: str, new: str, **names: Any) -> None:
    """Put a fault into the source of a function: `old` becomes `new`, in which `names` are known."""
    original = getattr(owner, function)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(old) == 1, f"{old!r} is not (once) in {function}: plant the fault where it would be today"
    space = {**original.__globals__, **names}
    exec(source.replace(old, new), space)
    patch.setattr(owner, function, space[function])
