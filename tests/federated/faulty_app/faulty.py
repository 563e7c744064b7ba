"""A client that misbehaves as its node's configuration says (`fault`), for the first time it is asked or always."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from faulty_critic import FaultyCritic

from gswgan.federated.client import Client
from gswgan.federated.flower import make_client_app
from gswgan.federated.messages import Batch, shape_of
from gswgan.federated.site import client_of
from gswgan.plan.plan import Plan
from gswgan.privacy.mechanism import GRID_BITS

SENDS = {
    "nan": lambda size, honest: np.full(size, np.nan, np.float32).tobytes(),
    "infinity": lambda size, honest: np.full(size, np.inf, np.float32).tobytes(),
    "shape": lambda size, honest: honest[:-4],
    "long": lambda size, honest: np.full(size, 2**GRID_BITS, "<i4").tobytes(),
    "far": lambda size, honest: np.full(size, 2**62, "<i8").tobytes(),
    "twice": lambda size, honest: (-np.frombuffer(honest, "<i4")).tobytes(),
}


class Faulty:
    def __init__(self, client: Client, fault: str, until: Path) -> None:
        self._client, self._fault, self._until, self._answer = client, fault, until, client.answer

    def reply(self, fields: Mapping[str, Any]) -> Any:
        self._client.answer = self.answer  # type: ignore[method-assign]
        return self._client.reply(fields)

    def answer(self, plan: Plan, batch: Batch | None = None) -> bytes:
        marker = Path(self._client.home) / "asked"
        if self._fault == "hang before" and not marker.exists():
            marker.touch()
            threading.Event().wait()
        honest = self._answer(plan)
        if self._fault == "hang after" and not marker.exists():
            marker.touch()
            threading.Event().wait()
        if self._fault == "never":
            threading.Event().wait()
        while self._fault == "late" and not self._until.exists():
            time.sleep(0.2)
        return SENDS[self._fault](shape_of(plan)[1], honest) if self._fault in SENDS else honest


def find(config: Mapping[str, Any]) -> Any:
    client = client_of(config)
    if "faults" in config:
        return FaultyCritic(client, str(config["faults"]), Path(config["until"]))
    return Faulty(client, str(config["fault"]), Path(config["until"])) if "fault" in config else client


app = make_client_app(find)
