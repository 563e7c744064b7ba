"""Pieces of work that can be killed and go on: a training, packing, a federated round, rounds of Algorithm 2 and at
sites."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.data import ImageData, clients, make_image_data
from gswgan.data.public import PublicImages
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap
from gswgan.federated.remote_critics import InProcess, run_rounds
from gswgan.federated.server import Round, create_run
from gswgan.federated.silos import held as held_by
from gswgan.federated.silos import of_unit, silo_facts, site_parts
from gswgan.federated.site_rounds import RefinedBySites, SiteRounds
from gswgan.federated.site_steps import read_turn
from gswgan.federated.trust import make_federated_plan, most_spent, trust_of
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts, PublicFacts
from gswgan.plan.plan import Plan
from gswgan.release.pack import pack
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from public_shapes import QUICK

CPU = torch.device("cpu")
PERSONS = 8
PUBLISHED = (
    "encoder.safetensors",
    "generator.safetensors",
    "embedding.safetensors",
    "ledger.jsonl",
    "privacy.json",
    "federation.json",
)


def people() -> ImageData:
    """Striped images of three classes, seven for each of a few persons."""
    rng = np.random.default_rng(0)
    persons, labels = np.repeat(np.arange(PERSONS), 7), np.arange(7 * PERSONS) % 3
    images = rng.integers(0, 60, (len(labels), 8, 8))
    for index, label in enumerate(labels):
        images[index, label::4] += 180
    ids = [f"person {person}" for person in persons]
    return make_image_data(images.astype(np.uint8), labels, classes=3, persons=ids, name="people")


def small(plan: Plan) -> Plan:
    """The plan with narrow networks."""
    if plan.preset == "refined":
        return small_refined(plan)
    critic: Any = {"features": 64} if hasattr(plan.critic, "features") else {"width": 2, "updates": 2}
    generator = dataclasses.replace(plan.generator, architecture="mlp", width=16, spectral_norm=False)
    return dataclasses.replace(plan, generator=generator, critic=dataclasses.replace(plan.critic, **critic))


def small_refined(plan: Plan, steps: int = 6) -> Plan:
    """The plan with so many steps in each of the stages before DP-SGD."""
    stages = ("steps", "pretraining") if plan.public is None else ("steps", "public_steps", "pretraining")
    encoder = {} if plan.public is None else QUICK
    critic = dataclasses.replace(
        plan.critic, pretraining_batch=16, samples=32, draws=1, **dict.fromkeys(stages, steps),
        kernel=dataclasses.replace(plan.critic.kernel, features=64, **encoder),
        start=dataclasses.replace(plan.critic.start, architecture="mlp", width=16),
    )  # fmt: skip
    training = dataclasses.replace(plan.training, steps=len(stages) * steps + plan.sums.releases, batch_size=12)
    generator = dataclasses.replace(plan.generator, width=4)
    return dataclasses.replace(plan, critic=critic, training=training, generator=generator, curve=())


class Training:
    """A centralized training."""

    def __init__(self, preset: str, steps: int, *, public: PublicImages | None = None, **options: Any) -> None:
        self.name, self.data = f"training, {preset}", dataclasses.replace(people(), persons=None, person_ids=())
        options |= {"public": None if public is None else PublicFacts.of(public), "insecure_reproducible": True}
        self.plan = small(make_plan(Facts.of(self.data), preset=preset, steps=steps, **options))
        self.public = public

    def live(self, root: Path) -> None:
        folder = RunFolder(root / "run")
        if not folder.model.exists():
            folder = RunFolder.create(root / "run", self.plan, public=self.public)
        if not folder.is_finished or folder.key.exists():
            run(folder, self.data, device=CPU)

    def published(self, root: Path) -> dict[str, bytes]:
        return _files(root / "run/release", PUBLISHED)


class Packing:
    """`pack` of a run that has ended; its noise is secret, or it would not be packed."""

    name = "packing"

    def __init__(self, finished: Path) -> None:
        self._finished = finished

    def live(self, root: Path) -> None:
        if not (root / "release").exists():
            pack(self._finished, root / "release")

    def published(self, root: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (root / "release").iterdir()}


class OneRound:
    """The kernel critic's federated round and the training after it."""

    def __init__(self, trust: str, epsilon: float) -> None:
        self.name, self.data = f"federated round, {trust}", people()
        plan = make_federated_plan(
            Facts.of(self.data), trust=trust, epsilon=epsilon, steps=6, insecure_reproducible=True
        )
        self.plan = small(plan)
        self._cap = Cap(
            epsilon=plan.guarantee.epsilon, delta=plan.guarantee.delta, neighbours=plan.guarantee.neighbours
        )

    def live(self, root: Path) -> None:
        held = Round(_federated(root / "run", self.plan, self.data.person_ids))
        with held.held():
            if not held.is_released:
                held.open()
                for node, client in enumerate(self._clients(root).values()):
                    if not held.is_closed and client.name not in held.answered:
                        assert held.take(client.reply(held.question()), node=node) is None
                held.release()
        if not held.folder.is_finished or held.folder.key.exists():
            run(held.folder, None, device=CPU)

    def _clients(self, root: Path) -> dict[str, Client]:
        return {
            name: Client(name, mine, root / "state", trust=trust_of(self.plan), cap=self._cap, insecure=True)
            for name, mine in clients(self.data)
        }

    def published(self, root: Path) -> dict[str, bytes]:
        ledgers = sorted((root / "state").glob("*/*/ledger.jsonl"))
        assert len(ledgers) == PERSONS
        return _files(root / "run/release", PUBLISHED) | {str(p.relative_to(root)): p.read_bytes() for p in ledgers}


class ManyRounds(OneRound):
    """Algorithm 2."""

    def __init__(self, trust: str, epsilon: float) -> None:
        self.name, self.data = f"rounds of Algorithm 2, {trust}", people()
        plan = make_federated_plan(
            Facts.of(self.data), preset="ensemble", trust=trust, epsilon=epsilon, rounds=4, insecure_reproducible=True
        )
        self.plan = small(plan)
        self._cap = Cap(epsilon=most_spent(plan), delta=plan.privacy.delta, neighbours=plan.privacy.neighbours)

    def live(self, root: Path) -> None:
        folder = _federated(root / "run", self.plan, self.data.person_ids)
        if not folder.is_finished or folder.key.exists():
            run_rounds(folder, InProcess(self._clients(root)), device=CPU)


class RoundsAtSites:
    """Preset refined over two sites: the kernel critic's round, then rounds of DP-SGD, by files."""

    name = "refined over sites"

    def __init__(self) -> None:
        self._parts = dict(site_parts(of_unit(people(), "record"), "record", number=2, concentration=None, seed=0))
        sites = [held_by(name, part, "record") for name, part in self._parts.items()]
        some = self._parts[sites[0].name]
        facts = silo_facts(
            sites, min_sites=None, data="people", class_names=some.class_names, image_size=some.image_size, channels=1
        )
        plan = make_federated_plan(
            facts, preset="refined", epsilon=1000, delta=1e-5, steps=4, rounds=2, insecure_reproducible=True
        )
        self.plan = small_refined(plan, steps=2)

    def live(self, root: Path) -> None:
        folder, clients = _federated(root / "run", self.plan, tuple(self._parts)), self._clients(root)
        held = Round(folder, is_timed=False)
        with held.held():
            if not held.is_released:
                for node, client in enumerate(clients):
                    if not held.is_closed and client.name not in held.answered:
                        assert held.take(client.reply(held.question()), node=node) is None
                held.release()
        rounds = SiteRounds(folder)
        while not folder.is_finished or folder.key.exists():
            if (number := rounds.waiting) is not None:
                turn = read_turn(rounds.question(number), self.plan)
                for client in clients:
                    if client.name in rounds.missing(number):
                        told = {"client": client.name, "plan": self.plan.digest(), "round": str(number)}
                        assert rounds.take({**told, "weights": client.answer(self.plan, turn)}) is None
                rounds.close(number)
            run(folder, None, device=CPU, answerer=functools.partial(RefinedBySites, rounds))

    def _clients(self, root: Path) -> list[Client]:
        cap = Cap(epsilon=self.plan.cost.epsilon, delta=1e-5, neighbours="replace-one")  # no line may come twice
        return [
            Client(name, mine, root / "state", trust="untrusted-server", cap=cap, protect="record", insecure=True)
            for name, mine in self._parts.items()
        ]

    def published(self, root: Path) -> dict[str, bytes]:
        ledgers = sorted((root / "state").glob("*/*/ledger.jsonl"))
        assert len(ledgers) == len(self._parts)
        return _files(root / "run/release", PUBLISHED) | {str(p.relative_to(root)): p.read_bytes() for p in ledgers}


def _federated(root: Path, plan: Plan, names: tuple[str, ...]) -> RunFolder:
    folder = RunFolder(root)
    if not folder.rounds.exists():  # nobody was asked yet
        shutil.rmtree(root, ignore_errors=True)
        create_run(root, plan, names, 600)
    return folder


def _files(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
