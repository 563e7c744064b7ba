"""A tiny run of Algorithm 2 without a network: the people of rounds.py, a plan, their clients, the server's run."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch
from rounds import people

from gswgan.data import ImageData, clients
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap
from gswgan.federated.remote_critics import Carrier, InProcess, run_rounds
from gswgan.federated.server import create_run
from gswgan.federated.trust import make_federated_plan, most_spent, trust_of
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.run.folder import RunFolder

DATA = people()
CPU = torch.device("cpu")
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
