"""Worst-case neighbours at one site of several, seen by the server: the bytes of the site's message as they travel.

A real client with its folder, cap, ledger and key answers a real question; the attacker has the reply and knows every
other record, the features and the plan. Only the key is fixed by the audit's seed. One message holds many trials:
copies of a tiny data set, each with classes of its own and so with noise of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gswgan.audit.wiring import Statistics, scratch, seed_of
from gswgan.audit.worst_case import COPIES, FEATURES, Features, KernelPair, exact_sums, kernel_pairs, public_features
from gswgan.data import ImageData
from gswgan.errors import AuditError
from gswgan.federated.client import Client
from gswgan.federated.limits import UNLIMITED
from gswgan.federated.memory import Cap
from gswgan.federated.messages import question, read_answer
from gswgan.federated.silos import grid_shape, held, silo_facts, site_sum
from gswgan.federated.trust import make_federated_plan
from gswgan.methods.kernel import PlannedKernel
from gswgan.plan.facts import Facts, Site
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS

SITE, OTHERS = "the site", ("another", "one more")
"""The site that is attacked, and those beside it, whose noise is not counted on."""

SEEN = 1e6
"""What is added to a score where a class shows no noise at all: then the first world is known."""

Ask = Callable[[Client, Plan], list[NDArray[np.int64]]]
"""How the server asks; the sums [1, columns] that it was sent."""


def site_pairs(features: Features) -> tuple[KernelPair, ...]:
    """The kernel audit's pairs, and a record that is the only one of a class at this site, or is not there."""
    pairs = kernel_pairs(features)
    image = pairs[0].first[0]
    rare = KernelPair(name="the record is the only one of its class here", first=(image, 0), second=(image, 1),
                      others=(0, 0))  # fmt: skip
    return (*pairs, rare)


def site_plan(data: ImageData) -> Plan:
    """A round of three sites by record, with an untrusted server; the attacked one has this data."""
    sites = [held(SITE, data, "record"), *(Site(name=name, records=10) for name in OTHERS)]
    facts = silo_facts(
        sorted(sites, key=lambda site: site.name), min_sites=None, data="audit", class_names=data.class_names,
        image_size=data.image_size, channels=data.channels,
    )  # fmt: skip
    return _planned(facts)


@functools.lru_cache(maxsize=4)
def _planned(facts: Facts) -> Plan:
    plan = make_federated_plan(facts, steps=1)
    return dataclasses.replace(plan, critic=PlannedKernel(**vars(FEATURES)))


def message_scores(pair: KernelPair, world: int, trials: int, *, seed: int = 0, ask: Ask | None = None) -> Statistics:
    """What the server makes of real messages: their projection on the difference of the two worlds.

    A row that is, to the last bit, the sum without noise of the first world gives it away.
    """
    features = public_features()
    direction = (exact_sums(pair.data(1, 1), features) - exact_sums(pair.data(2, 1), features)).numpy().ravel()
    scores = []
    for number, start in enumerate(range(0, trials, COPIES)):
        copies = min(COPIES, trials - start)
        data = pair.data(world, copies)
        plan = dataclasses.replace(
            site_plan(data), seed=seed_of(seed, pair.name, world, number), insecure_reproducible=True
        )
        with scratch() as state:
            sent = answers_of(data, plan, state, ask or ask_twice)
        shape = grid_shape(plan)
        known = site_sum(plan, pair.data(1, copies), 1.0).total
        bare = np.stack([(grid.reshape(shape) == known).all(axis=1) for grid in sent]).any(axis=0)
        mean = np.mean(np.stack(sent), axis=0).reshape(copies, -1) * 2.0**-GRID_BITS
        scores.append(mean @ direction + SEEN * bare.reshape(copies, -1).any(axis=1))
    return np.concatenate(scores)


def answers_of(data: ImageData, plan: Plan, state: Path, ask: Ask) -> list[NDArray[np.int64]]:
    """The messages of a real client, whose ledger must have one line for each that differs."""
    cap = Cap(epsilon=plan.cost.epsilon, delta=plan.cost.delta, neighbours="replace-one")
    client = Client(
        SITE, data, state, trust="untrusted-server", protect="record", cap=cap, limits=UNLIMITED, insecure=True
    )
    sent = ask(client, plan)
    (ledger,) = client.home.glob("*/ledger.jsonl")
    events = [entry.event for entry in read_ledger(ledger)[1]]
    if events != [plan.sums.event]:
        raise AuditError("ledger", f"{len(events)} lines", "one line, with the release that the plan says")
    return sent


def ask_twice(client: Client, plan: Plan) -> list[NDArray[np.int64]]:
    """The same question two times: a server that hopes for fresh noise."""
    replies = [client.reply(question(plan)) for _ in range(2)]
    return [read_answer(fields, plan)[1] for fields in replies]
