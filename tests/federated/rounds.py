"""A tiny federated run without a network: people with a few images each, a plan, a round, their clients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gswgan.data import ImageData, clients, make_image_data
from gswgan.federated.client import REFUSED, Client
from gswgan.federated.memory import Cap
from gswgan.federated.server import Round, create_run
from gswgan.federated.trust import make_federated_plan, trust_of
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from loopback import wait

PEOPLE = 12
_make_plan = functools.cache(make_federated_plan)


def people(number: int = PEOPLE, seed: int = 0) -> ImageData:
    """Images with stripes by class; each person has a few, of some of the classes."""
    rng = np.random.default_rng(seed)
    persons = rng.permutation(np.repeat(np.arange(number), 7))
    labels = rng.integers(0, 3, len(persons))
    images = rng.integers(0, 60, (len(persons), 8, 8))
    for index, label in enumerate(labels):
        images[index, label::4] += 180
    ids = [f"person {person:02}" for person in persons]
    return make_image_data(images.astype(np.uint8), labels, classes=3, persons=ids, name="people")


def small_plan(data: ImageData, *, trust: str = "trusted-aggregator", **options: Any) -> Plan:
    """By the real planner, made small where no guarantee depends on it."""
    options.setdefault("steps", 6)
    plan = _make_plan(Facts.of(data), trust=trust, **options)
    return dataclasses.replace(
        plan,
        critic=dataclasses.replace(plan.critic, features=32),
        generator=dataclasses.replace(plan.generator, architecture="mlp", width=16),
        training=dataclasses.replace(plan.training, batch_size=12, memory=0.9),
    )


def make_round(root: Path, data: ImageData, plan: Plan, seconds: float = 600) -> Round:
    return Round(create_run(root, plan, data.person_ids, seconds))


def make_clients(state: Path, data: ImageData, plan: Plan, **options: Any) -> dict[str, Client]:
    """One client for each person, with the plan's own cost as its cap."""
    cost = plan.guarantee
    options.setdefault("cap", Cap(epsilon=cost.epsilon, delta=cost.delta, neighbours=cost.neighbours))
    options.setdefault("trust", trust_of(plan))
    return {name: Client(name, mine, state, **options) for name, mine in clients(data)}


def answer_all(held: Round, those: dict[str, Client]) -> None:
    for node, client in enumerate(those.values()):
        assert held.take(client.reply(held.question()), node=node) is None


def read_log(home: Path) -> list[dict[str, Any]]:
    """The lines of a client's log since it was last put aside."""
    path = home / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def why_refused(client: Client, reply: Any) -> str:
    """The reason in the client's own log; what left is the fixed sentence and nothing else."""
    assert reply == {"client": client.name, "refused": REFUSED}
    return str(read_log(client.home)[-1]["why"])


flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs the extra federated")
RAY_WAITS = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "900", "RAY_gcs_server_request_timeout_seconds": "900",
    "RAY_worker_register_timeout_seconds": "900", "RAY_health_check_failure_threshold": "1000",
}  # fmt: skip
"""A busy machine is not a broken one."""


def simulate(root: Path, *arguments: str) -> None:
    """`gswgan federate simulate` as a process of its own, which leaves none behind."""
    command = [sys.executable, "-m", "gswgan", "federate", "simulate", *arguments]
    mark = {**os.environ, **RAY_WAITS, "GSWGAN_TEST_MARK": str(root), "OMP_NUM_THREADS": "1"}
    while True:
        done = subprocess.run(command, capture_output=True, text=True, env=mark, check=False)
        if "timed out during startup" not in done.stderr:
            break
        if "--out" in arguments:  # Ray gives its own processes 30 seconds, however busy the machine is: once more
            shutil.rmtree(arguments[arguments.index("--out") + 1])
    assert done.returncode == 0, done.stderr
    wait(lambda: not _marked(root), "the end of all that was started, Ray's workers too")


def _marked(mark: Path) -> list[str]:
    """The commands of processes that were started with this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"GSWGAN_TEST_MARK={mark}".encode() in path.read_bytes():
                found.append(path.with_name("cmdline").read_text()[:200])
    return found
