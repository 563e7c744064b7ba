"""All clients on this machine, behind Flower's simulation: the same apps, with the data of a named data set."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gswgan.data import ImageData, clients, dirichlet_clients, load_data
from gswgan.evaluation.real_data import choose_clients
from gswgan.federated.client import Client
from gswgan.federated.limits import UNLIMITED
from gswgan.federated.memory import Cap
from gswgan.federated.server import read_settings
from gswgan.federated.silos import protect_of, site_parts
from gswgan.federated.trust import most_spent, trust_of
from gswgan.run.folder import RunFolder

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

CHOICE = ("min_records", "accuracy", "reference_classifier")


def split_data(where: Mapping[str, Any], spread: Mapping[str, Any] | None = None) -> ImageData:
    """The data of a simulation: by its own persons, or spread over made-up clients (`dirichlet_clients`)."""
    choice = {name: where[name] for name in CHOICE if where.get(name) is not None}
    data = load_data(**{name: value for name, value in where.items() if name not in CHOICE})
    return choose_clients(data if spread is None else dirichlet_clients(data, **spread), **choice)


def site_data(where: Mapping[str, Any], spread: Mapping[str, Any]) -> list[tuple[str, ImageData]]:
    """The data of a simulation at made-up sites (`site_parts`)."""
    return list(site_parts(split_data(where), **spread))


@functools.lru_cache(maxsize=1)
def _parts(arguments: str) -> list[tuple[str, ImageData]]:
    """Once in each process."""
    where, spread = json.loads(arguments)
    is_silos = spread is not None and "protect" in spread
    return site_data(where, spread) if is_silos else list(clients(split_data(where, spread)))


def simulate(
    folder: RunFolder,
    where: Mapping[str, Any],
    *,
    note: Callable[[str], None] = print,
    progress: Callable[[int], None] = lambda done: None,
    device: torch.device,
) -> None:
    """Hold the round, or all rounds, with one virtual node for each client; when it returns, no process is left."""
    from flwr.simulation import run_simulation

    from gswgan.federated import flower

    settings = read_settings(folder)
    state, plan, text = folder.private / "clients", folder.plan(), json.dumps([where, settings.get("spread")])
    cap = Cap(epsilon=most_spent(plan), delta=plan.cost.delta, neighbours=plan.cost.neighbours)
    trust, insecure, protect = trust_of(plan), plan.insecure_reproducible, protect_of(plan)

    def find(config: Mapping[str, Any]) -> Client:
        name, data = _parts(text)[int(config["partition-id"])]
        return Client(
            name, data, Path(state), trust=trust, cap=cap, limits=UNLIMITED, protect=protect, insecure=insecure
        )

    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=flower.make_server_app(
            lambda context: folder, train=False, device=device, note=note, progress=progress, patience=math.inf
        ),
        client_app=flower.make_client_app(find),
        num_supernodes=len(settings["clients"]),
        backend_config={
            "init_args": {"num_cpus": os.cpu_count() or 1, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
