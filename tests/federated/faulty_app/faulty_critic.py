"""A client of Algorithm 2 that is watched, and misbehaves in the rounds that its node's configuration names.

`faults="nan@0,late@3"`: in round 0 it sends NaN, in round 3 it answers when the round is over. What it computes and
what it sends is written down in its home, so that both can be counted at the node.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.federated.client import Client
from gswgan.federated.client_answers import Answer, CriticAtClient, Work
from gswgan.federated.messages import Batch
from gswgan.plan.plan import Plan
from gswgan.privacy.mechanism import GRID_BITS

SENDS: dict[str, Callable[[int, bytes], bytes]] = {
    "nan": lambda size, honest: np.full(size, np.nan, np.float32).tobytes(),
    "infinity": lambda size, honest: np.full(size, np.inf, np.float32).tobytes(),
    "shape": lambda size, honest: honest[:-4],
    "long": lambda size, honest: np.full(size, 2**GRID_BITS, "<i4").tobytes(),
    "far": lambda size, honest: np.full(size, 2**62, "<i8").tobytes(),
}


class FaultyCritic:
    def __init__(self, client: Client, faults: str, run: Path) -> None:
        self._client, self._run, self._answer = client, run, client.answer
        self._faults = {
            int(number): fault for fault, _, number in (one.partition("@") for one in faults.split(",") if one)
        }
        home = self.home = client.home

        class Watched(CriticAtClient):
            def make(self, work: Work) -> bytes:
                block = super().make(work)
                note(home / "computed.jsonl", self._batch.number, block)
                return block

        def watched(folder: Path, plan: Plan, batch: Batch | None) -> Answer:
            assert batch is not None
            return Watched(folder, plan, batch)

        client._answer_to = watched  # type: ignore[method-assign]

    def reply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        self._client.answer = self.answer  # type: ignore[method-assign]
        said = dict(self._client.reply(fields))
        if "block" in said:
            number = int(str(said["round"]))
            if self._faults.get(number) == "replay":  # what it sent two rounds ago
                said = {**said, "round": str(number - 2), "block": (self.home / f"{number - 2}.sent").read_bytes()}
            (self.home / f"{number}.sent").write_bytes(said["block"])
            note(self.home / "sent.jsonl", number, said["block"])
        return said

    def answer(self, plan: Plan, batch: Batch | None = None) -> bytes:
        assert batch is not None
        fault, number = self._faults.get(batch.number), batch.number
        if fault == "hang before":
            self._hang(number)
        honest = self._answer(plan, batch)
        if fault == "hang after":
            self._hang(number)
        until = {"late": f"{number}.npy", "wait": "go"}.get(str(fault))  # the round is released; the test says so
        while until is not None and not (self._run / "private/watched" / until).exists():
            time.sleep(0.2)
        assert plan.privacy is not None
        return SENDS[fault](plan.privacy.rows * plan.facts.pixels, honest) if fault in SENDS else honest

    def _hang(self, number: int) -> None:
        """The first time it is asked, until it is killed."""
        marker = self.home / f"{number}.asked"
        if not marker.exists():
            marker.touch()
            threading.Event().wait()


def note(path: Path, number: int, block: bytes) -> None:
    with path.open("a") as log:
        log.write(json.dumps({"round": number, "digest": hashlib.sha256(block).hexdigest()}) + "\n")
