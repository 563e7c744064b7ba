"""Algorithm 2 without a network: equal to the centralized ensemble on the same parts, for every participation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from critic_rounds import CPU, DATA, cap_of, critic_plan
from torch import Tensor

from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.data import clients
from gswgan.errors import RunError
from gswgan.federated.client import Client
from gswgan.federated.client_answers import CriticAtClient, Work
from gswgan.federated.remote_critics import InProcess, RemoteCritics
from gswgan.federated.server import create_run
from gswgan.generators.generator import Generator
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic, make_generator, run


class _Row:
    """Of the numbers that a generator draws for all critics, those of one."""

    def __init__(self, source: np.random.Generator, member: int, count: int) -> None:
        self._source, self._member, self._count = source, member, count

    def random(self, shape: tuple[int, ...], **options: Any) -> np.ndarray:
        updates, one, size = shape
        assert one == 1
        whole = self._source.random((updates, self._count, size), **options)
        return whole[:, self._member : self._member + 1]


class _Member:
    """The centralized run's secret streams as the one critic `member` of it uses them."""

    def __init__(self, secret: Streams, member: int, count: int) -> None:
        self._secret, self._member, self._count, self.context = secret, member, count, secret.context

    def generator(self, purpose: str, *index: int) -> Any:
        if len(index) == 2:  # a stream for each critic
            return self._secret.generator(purpose, index[0], self._member)
        return _Row(self._secret.generator(purpose, *index), self._member, self._count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._secret, name)


class _Same(Client):
    """A client whose critic starts and draws as one of the centralized ensemble does."""

    start: dict[str, Tensor]
    streams: _Member

    def _answer_to(self, *arguments: Any) -> CriticAtClient:
        made, mine = CriticAtClient(*arguments), self

        def critic(work: Work) -> Ensemble:
            found = CriticAtClient.critic(made, dataclasses.replace(work, secret=mine.streams))
            found.load_state(mine.start)
            return found

        made.critic = critic
        return made


class _Rounded(torch.autograd.Function):
    """To 8 bits, as fakes travel; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        return (images * 255).round() / 255

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:  # type: ignore[override]
        return upstream


class _OnePool(Generator):
    """Fakes as they travel; those to learn from by the step alone."""

    def sample(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        fake, labels = super().sample(count, *index)
        return _Rounded.apply(fake), labels

    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        images, labels = super().fakes(count, *index[:2])
        return (images * 255).round() / 255, labels


def _generator(plan: Plan) -> Generator:
    made = make_generator(plan, CPU)
    made.__class__ = _OnePool
    return made


def _both(root: Path, plan: Plan) -> tuple[Ensemble, RunFolder, RemoteCritics, RunFolder]:
    """The centralized ensemble with a critic per person, and the same critics and streams at their clients."""
    count = plan.privacy.critics
    central_folder = RunFolder.create(root / "central", plan)
    central = make_critic(plan, central_folder, DATA, CPU)
    assert isinstance(central, Ensemble)
    central.prepare(DATA)
    start = {name: value.clone() for name, value in central.state().items()}
    secret, own = central_folder.secret(plan), dict(clients(DATA))
    everybody: dict[str, Client] = {}
    for k in range(count):
        name = DATA.person_ids[int(DATA.persons[central.partitions.table[k, 0]])]
        options: Any = {"trust": "trusted-aggregator", "cap": cap_of(plan), "insecure": True}
        everybody[name] = client = _Same(name, own[name], root / "state", **options)
        client.start = {key: value[k : k + 1] for key, value in start.items()}
        client.streams = _Member(secret, k, count)
    folder = create_run(root / "federated", plan, DATA.person_ids, 600)
    context = folder.context(
        plan, public=Streams.public(plan.seed), secret=folder.secret(plan), device=CPU,
        note=print, stopped=lambda: False,
    )  # fmt: skip
    remote = RemoteCritics(folder, context, list(everybody), InProcess(everybody))
    remote.prepare(None)
    return central, central_folder, remote, folder


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_the_rounds_equal_the_centralized_ensemble_step_by_step(tmp_path: Path, rate: float):
    plan = critic_plan(rate=rate, rounds=2 if rate == 1 else 5, epsilon=10, insecure_reproducible=True)
    central, central_folder, remote, folder = _both(tmp_path, plan)
    central.chunk = 1  # one critic at a time, as at the clients: then not only within 1e-6
    theirs, ours = _generator(plan), _generator(plan)
    took_part = set()
    for step in range(plan.training.steps):
        answers = []
        for critic, generator in ((central, theirs), (remote, ours)):
            critic.learn(step, generator)
            fake, labels = generator.sample(plan.training.batch_size, step)
            answers.append(critic.upstream_gradient(fake, labels))
            generator.descend(fake, answers[-1])
        assert torch.equal(*answers), step
        assert np.array_equal(central.draw_participants(step), remote.draw_participants(step))
        for name, value in theirs.state().items():
            assert torch.equal(value, ours.state()[name]), (step, name)
        took_part.add(len(remote.draw_participants(step)))
    assert took_part == {12} if rate == 1 else len(took_part) > 1
    assert central_folder.ledger.read_bytes() == folder.ledger.read_bytes()


@pytest.mark.usefixtures("known_noise")
def test_critics_in_one_batch_and_at_their_clients_judge_alike(tmp_path: Path):
    plan = critic_plan(rate=0.4, epsilon=10, insecure_reproducible=True)
    central, _, remote, _ = _both(tmp_path, plan)
    assert central.chunk > 1  # other shapes, other rounding: equal within it, on the same fakes
    generator = _generator(plan)
    for step in range(plan.training.steps):
        central.learn(step, generator)
        remote.learn(step, generator)
        fake, labels = generator.sample(plan.training.batch_size, step)
        expected = central.upstream_gradient(fake, labels)
        assert (remote.upstream_gradient(fake, labels) - expected).abs().max() <= 1e-6
        generator.descend(fake, expected)


@pytest.mark.parametrize("rate", [None, 0.5])
def test_data_that_is_here_does_not_answer_for_the_clients(tmp_path: Path, rate: float | None):
    folder = create_run(tmp_path / "run", critic_plan(rate=rate), DATA.person_ids, 600)
    with pytest.raises(RunError, match="clients that answer"):
        run(folder, DATA, device=CPU)
    assert not folder.ledger.exists()
