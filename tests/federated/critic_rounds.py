"""A tiny run of Algorithm 2 without a network: the people of rounds.py, a plan, their clients, the server's run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import people

from gswgan.data import ImageData, clients
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap
from gswgan.federated.messages import Batch, pool_size, question
from gswgan.federated.remote_critics import Carrier, InProcess, RemoteCritics, Take, run_rounds
from gswgan.federated.server import create_run
from gswgan.federated.trust import make_federated_plan, most_spent, trust_of
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_generator

DATA = people()
CPU = torch.device("cpu")
NAMES = sorted(DATA.person_ids)
_make_plan = functools.cache(make_federated_plan)


def critic_plan(data: ImageData = DATA, **options: Any) -> Plan:
    """By the real planner, made small where no guarantee depends on it."""
    options = {"preset": "ensemble", "rounds": 5, **options}
    warm_start = options.pop("warm_start", 0)
    plan = _make_plan(Facts.of(data), **options)
    return dataclasses.replace(
        plan,
        critic=dataclasses.replace(plan.critic, width=2, updates=2, learning_batch=6, warm_start=warm_start),
        generator=dataclasses.replace(plan.generator, architecture="mlp", width=16, spectral_norm=False),
    )


def cap_of(plan: Plan) -> Cap:
    return Cap(epsilon=most_spent(plan), delta=plan.privacy.delta, neighbours=plan.privacy.neighbours)


def critic_clients(state: Path, plan: Plan, data: ImageData = DATA, **options: Any) -> dict[str, Client]:
    options.setdefault("cap", cap_of(plan))
    options.setdefault("insecure", plan.insecure_reproducible)
    return {name: Client(name, mine, state, trust=trust_of(plan), **options) for name, mine in clients(data)}


def federate(root: Path, plan: Plan, carrier: Carrier | dict[str, Client], *, resume: bool = False) -> RunFolder:
    """Run all rounds to the end, with the clients in the order of their ids."""
    folder = RunFolder(root) if resume else create_run(root, plan, DATA.person_ids, 600)
    through = InProcess(carrier) if isinstance(carrier, dict) else carrier
    assert run_rounds(folder, through, device=CPU)
    return folder


class Replies:
    """A carrier of replies that are there already; it remembers who was asked, and by what."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies, self.asked = replies, list[tuple[list[str], Any]]()
        self.take: Take | None = None

    def ask(self, clients: Sequence[str], fields: Any, take: Take) -> None:
        self.asked.append((list(clients), fields))
        self.take = take
        for node, (name, reply) in enumerate(self.replies.items()):
            if name in clients:
                for one in reply if isinstance(reply, list) else [reply]:
                    take(one, node=node, down=1, up=2)


def server(root: Path, plan: Plan, carrier: Any, *, resume: bool = False) -> RemoteCritics:
    folder = RunFolder(root) if resume else create_run(root, plan, DATA.person_ids, 600)
    context = folder.context(
        plan, public=Streams.public(plan.seed), secret=folder.secret(plan), device=CPU,
        note=print, stopped=lambda: False,
    )  # fmt: skip
    made = RemoteCritics(folder, context, NAMES, carrier)
    made.prepare(None)
    return made


KNOWN = critic_plan(rounds=3, epsilon=10, insecure_reproducible=True)


def released(root: Path, carrier: Any, plan: Plan = KNOWN, step: int = 0) -> np.ndarray:
    """The sum that a round releases, with known noise: what the generator gets times the planned number."""
    critics, generator = server(root, plan, carrier), make_generator(plan, CPU)
    critics.learn(step, generator)
    gradient = critics.upstream_gradient(*generator.sample(plan.training.batch_size, step))
    return gradient.double().numpy().reshape(plan.privacy.rows, -1) * plan.privacy.rate * len(NAMES)


@functools.cache
def asked(plan: Plan = KNOWN, step: int = 0) -> dict[str, Any]:
    """The question of a round, before the generator has learnt anything."""
    generator = make_generator(plan, CPU)
    fakes = (generator.fakes(pool_size(plan), "critics", step), generator.sample(plan.training.batch_size, step))
    images, labels = (torch.cat(part) for part in zip(*fakes))
    return dict(question(plan, Batch(number=step, images=images, labels=labels, pool=pool_size(plan))))
