"""The answers to one question on the server's disk, in both modes. Nothing that a client sends can raise.

    RUN/private/answers.jsonl    what came in, with bytes up and down; what was refused and why; who was absent
               /answers/*.bin    kernel critic: answers that count, each on the disk before the next is looked at
               /closed.json      which answers count, fixed before the noise is drawn; from now on all are late
               /rounds/T/*.bin, /rounds/T/closed.json    the same for round T of Algorithm 2

The first valid answer of a client counts, and one client per node. Digests of answers, which stay when the answers are
removed, are keyed with the run's key: once that is erased, nobody can try with them what a client has sent.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gswgan.errors import FederationError, RunError
from gswgan.federated.messages import Fields, raw_of, read_answer, shape_of, unpack
from gswgan.federated.silos import first_sums
from gswgan.plan.plan import Plan
from gswgan.privacy import Ledger, Streams
from gswgan.privacy.mechanism import GRID_BITS, announce
from gswgan.privacy.storage import append_durably, drop_torn_tail, read_file, whole_lines, write_durably
from gswgan.run.folder import RunFolder, read_json, write_json


class Answers:
    """Who has answered one question, and what."""

    def __init__(
        self, folder: RunFolder, plan: Plan, asked: Collection[str], nodes: dict[int, str], number: int | None = None
    ) -> None:
        """`asked`: whose answers count. `nodes`: which client answers from a node; it grows. `number`: of a round."""
        private = folder.private
        self.plan, self.asked, self._nodes, self._number = plan, frozenset(asked), nodes, number
        self.place = private / "answers" if number is None else private / "rounds" / str(number)
        self._closed = private / "closed.json" if number is None else self.place / "closed.json"
        self._log, self.deadline, self._folder = log_of(folder), math.inf, folder
        self._is_closed, self.digests = self._closed.exists(), dict[str, str]()
        self.recall()

    @property
    def is_closed(self) -> bool:
        """Whether all answers from now on are late."""
        return self._is_closed or self._closed.exists()

    def recall(self) -> None:
        """Find what was taken before a stop: an answer counts if it is on the disk and valid."""
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.is_closed:
            self.digests = dict(read_json(self._closed, "closed.json")["answers"])
            return
        for client in sorted(self.asked):
            if self.path_of(client).exists():
                self.digests[client] = self._digest(self._kept(client))

    def check(self, fields: Fields) -> tuple[str, str]:
        """Client and digest of an answer that is valid and in time, whether one was taken or not; keeps nothing."""
        client, grid = read_answer(fields, self.plan, self._number)
        if self.is_closed or time.time() >= self.deadline:
            raise FederationError("answer", "late", "an answer before the round was closed")
        if client not in self.asked:
            raise FederationError("client", client[:60], "one that was asked, of the list of clients")
        return client, self._digest(grid)

    def take(
        self, fields: Fields, *, node: int, registered: str | None = None, down: int = 0, up: int = 0
    ) -> str | None:
        """Look at one reply; None if it counts, else why it does not.

        `registered`: the one name that the node's key stands for, where the SuperLink knows its nodes by their keys.
        """
        client = fields.get("client")
        try:
            client, found = self.check(fields)
            if registered not in (None, client):
                whose = f"key is registered as {registered}" if registered else "key is registered without a name"
                raise FederationError(
                    "client", client[:60], f"an answer in the name of this node, whose {whose[:80]}",
                    "`flwr supernode register KEY LINK --name SITE` says who a key is.",
                )  # fmt: skip
            if self._nodes.get(node, client) != client:
                raise FederationError("client", client[:60], f"{self._nodes[node]}, as whom this node answered before")
            if client in self.digests:
                how = "the same" if self.digests[client] == found else "another one: the first one counts"
                raise FederationError("answer", how, "one answer per client")
            write_durably(self.path_of(client), bytes(raw_of(fields, self._number)), mode=0o600)  # type: ignore[call-overload]
        except FederationError as wrong:
            self._note(client, node, down, up, refused=str(wrong))
            return str(wrong)
        self.digests[client], self._nodes[node] = found, client
        self._note(client, node, down, up, digest=found)
        return None

    def note_absent(self, client: str) -> None:
        """Log that a client was asked and has sent nothing."""
        self._note(client, 0, 0, 0, absent="no answer while the round was open")

    def close(self) -> None:
        """Fix what counts. A server that dies now releases the same sum when it comes back."""
        if not self.is_closed:
            write_json(self._closed, {"answers": dict(sorted(self.digests.items()))})
        self._is_closed = True

    def counted(self) -> Iterator[NDArray[np.int64]]:
        """The answers that count [rows, columns], in the order of the clients' ids; read and checked again."""
        for client, digest in read_json(self._closed, "closed.json")["answers"].items():
            grid = self._kept(client)
            if self._digest(grid) != digest:
                raise RunError("answers", client, "the answer that was taken", f"Restore {self.place}.")
            yield grid

    def noisy_total(self, name: str, ledger: Ledger, secret: Streams) -> NDArray[np.float64]:
        """The sum of answers that have their noise already; the ledger says what each client went through."""
        bound = first_sums(self.plan).contribution
        total = sum(self.counted(), start=np.zeros(shape_of(self.plan), np.int64))
        announce(name, total, bound, first_sums(self.plan).event, ledger, secret)
        return total.astype(np.float64) * (bound.clip_norm * 2.0**-GRID_BITS)

    def remove(self) -> None:
        """Forget the answers: what was released from them is on the disk.

        With a trusted aggregator they are exact sums: where they cannot be removed that is an OSError, not silence.
        """
        if self.place.exists():
            shutil.rmtree(self.place)

    def path_of(self, client: str) -> Path:
        """Where the answer of a client is kept."""
        return self.place / f"{hashlib.blake2b(client.encode(), digest_size=12).hexdigest()}.bin"

    def _kept(self, client: str) -> NDArray[np.int64]:
        return unpack(read_file(self.path_of(client), 8 * math.prod(shape_of(self.plan))), self.plan, client)

    def _digest(self, grid: NDArray[np.int64]) -> str:
        return hashlib.blake2b(grid.tobytes(), key=self._digest_key, digest_size=32).hexdigest()

    @functools.cached_property
    def _digest_key(self) -> bytes:
        return self._folder.secret(self.plan).seed("digests of answers")

    def _note(self, client: object, node: int, down: int, up: int, **more: str) -> None:
        shown = client[:256] if isinstance(client, str) else None
        row = {"time": round(time.time(), 3), "client": shown, "node": str(node), "down": down, "up": up, **more}
        row |= {} if self._number is None else {"round": self._number}
        append_durably(self._log, json.dumps(row) + "\n", mode=0o600)


def log_of(folder: RunFolder) -> Path:
    """The log of all that came in."""
    return folder.private / "answers.jsonl"


def known_nodes(folder: RunFolder) -> dict[int, str]:
    """The client that each node has answered for, as the log of a run has it. For the server, which goes on with it."""
    if log_of(folder).exists():
        drop_torn_tail(log_of(folder))  # before the next line is added
    return {int(row["node"]): row["client"] for row in log_rows(log_of(folder)) if "digest" in row}


def log_rows(log: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, without one that is torn or being written."""
    return [json.loads(line) for line in whole_lines(log.read_bytes()).splitlines()] if log.exists() else []
