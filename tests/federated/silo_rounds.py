"""Digits at three sites without a network: their parts, a plan, their clients."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch

from gswgan.data import ImageData, load_data, make_image_data
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap
from gswgan.federated.silos import held, silo_facts, site_parts
from gswgan.federated.trust import make_federated_plan, trust_of
from gswgan.plan.plan import Plan

CPU = torch.device("cpu")
SITES = 3


@functools.cache
def digits(protect: str) -> ImageData:
    """Digits; by person three records each, so that persons differ."""
    data = load_data("digits")
    if protect == "record":
        return data
    return make_image_data(
        data.images[:, 0], data.labels, classes=10, persons=[f"p{index // 3:04}" for index in range(data.n)]
    )


def parts_of(protect: str) -> dict[str, ImageData]:
    return dict(site_parts(digits(protect), protect, number=SITES, concentration=2.0, seed=3))  # type: ignore[arg-type]


def plan_for(parts: dict[str, ImageData], protect: str, *, min_sites: int | None = None, **options: Any) -> Plan:
    """By the real planner, made small where no guarantee depends on it."""
    some = next(iter(parts.values()))
    sites = [held(name, part, protect) for name, part in sorted(parts.items())]  # type: ignore[arg-type]
    facts = silo_facts(
        sites, min_sites=min_sites, data="digits", class_names=tuple("0123456789"), image_size=some.image_size,
        channels=1,
    )  # fmt: skip
    return small(make_federated_plan(facts, steps=6, **options))


def small(plan: Plan) -> Plan:
    return dataclasses.replace(
        plan,
        critic=dataclasses.replace(plan.critic, features=64),
        generator=dataclasses.replace(plan.generator, architecture="mlp", width=16),
        training=dataclasses.replace(plan.training, batch_size=20, memory=0.9),
    )


def clients_of(state: Path, parts: dict[str, ImageData], plan: Plan, protect: str, **options: Any) -> dict[str, Client]:
    cost = plan.cost
    options.setdefault("cap", Cap(epsilon=cost.epsilon, delta=cost.delta, neighbours="replace-one"))
    return {
        name: Client(name, part, state, trust=trust_of(plan), protect=protect, insecure=True, **options)  # type: ignore[arg-type]
        for name, part in parts.items()
    }
