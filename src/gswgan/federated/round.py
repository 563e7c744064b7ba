"""The server's side of the one round: who has answered, what is counted, the release. It survives `kill -9`.

    RUN/private/round.json      who may answer, for how long
               /opened.json     when the round began, so that a server that comes back keeps the deadline
               /answers/*.bin   answers that count, each on the disk before the next is looked at
               /answers.jsonl   what came in, with bytes up and down, and what was refused and why
               /closed.json     the answers that count, fixed before the noise is drawn; from now on all are late

The release is the centralized one: ledger first, the same mechanism, the same exact integer sums, with the clients'
own rows as its source. Clients that never answer count as zero. The round always ends in a release, however few have
answered: not to release would tell how many did.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gswgan.critics.kernel.embedding import Embedding, embed_persons
from gswgan.errors import FederationError, PlanError, RunError
from gswgan.federated.messages import Fields, question, read_answer, unpack, width
from gswgan.federated.trust import check_one_round, observers, sum_noise, trust_of, weight_of_counts
from gswgan.plan.context import RunContext
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.privacy.mechanism import GRID_BITS, Block, announce
from gswgan.privacy.storage import append_durably, drop_torn_tail, locked, read_file, write_durably
from gswgan.run.budget import Budget
from gswgan.run.budget_entry import enter
from gswgan.run.folder import RunFolder, read_json, write_json
from gswgan.run.publish import check_stated

MAX_SECONDS = 30 * 24 * 3600


def create_run(
    root: Path,
    plan: Plan,
    clients: tuple[str, ...],
    seconds: float,
    *,
    source: dict[str, Any] | None = None,
    spread: dict[str, Any] | None = None,
    budget: Path | None = None,
    unauthenticated: bool = False,
) -> RunFolder:
    """A new run folder with its plan, the public list of clients, and how long they have for an answer.

    `source` and `spread`: where a simulation has its clients' data from. `budget`: the budget file that a trusted
    aggregator enters before it asks anybody. `unauthenticated`: nodes have no keys, so that one that restarts has
    another number; a client's id may then move to a new node when its old one has gone. Otherwise it never moves.
    """
    trust_of(plan)
    if budget is not None:
        check_budget(plan, budget)
    if len(set(clients)) != len(clients) or len(clients) != plan.facts.persons:
        raise PlanError("clients", len(clients), f"{plan.facts.persons} different ids, as planned")
    if not 0 < seconds <= MAX_SECONDS:
        raise PlanError("deadline", seconds, f"seconds from 1 to {MAX_SECONDS}", "Pass --deadline 3600, say.")
    folder = RunFolder.create(root, plan, source=source, budget=budget)
    fixed = not unauthenticated and source is None  # a simulation makes new nodes whenever it goes on
    write_json(folder.rounds, {"clients": sorted(clients), "seconds": seconds, "spread": spread, "fixed_nodes": fixed})
    return folder


def check_budget(plan: Plan, path: Path) -> str:
    """What the budget would say with this run; an error where there is no room for it."""
    if trust_of(plan) == "untrusted-server":
        raise PlanError(
            "budget",
            str(path),
            "the release of a trusted aggregator",
            "Here each client has its own budget, or a cap.",
        )
    return Budget(path).check(plan)


class Round:
    """The one round of a federated run."""

    def __init__(self, folder: RunFolder, *, is_timed: bool = True) -> None:
        """Of a folder made by `create_run`; a round that was interrupted goes on where it stopped.

        One that is not timed, because answers come by files, ends when its operator closes it.
        """
        self._is_timed = is_timed
        self.folder, self.plan = folder, check_one_round(folder.plan())
        folder.check_ours()
        if not self.is_released:
            folder.check_made_here(self.plan)  # before anything of the round is read
        private = folder.private
        self._opened, self._closed, self.log = (
            private / "opened.json",
            private / "closed.json",
            private / "answers.jsonl",
        )
        self._answers = private / "answers"
        settings = read_json(folder.rounds, "the round.json of a federated run")
        self.roster: frozenset[str] = frozenset(settings["clients"])
        self._seconds, self.spread = float(settings["seconds"]), settings.get("spread")
        self._answers.mkdir(mode=0o700, exist_ok=True)
        self._digests: dict[str, str] = {}
        self._nodes: dict[int, str] = {}
        self._recall()

    @property
    def is_released(self) -> bool:
        """Whether the embedding is out: what is left is training."""
        return self.folder.embedding.exists() and self.folder.federation.exists()

    @property
    def is_closed(self) -> bool:
        """Whether all answers from now on are late."""
        return self._closed.exists()

    @property
    def answered(self) -> frozenset[str]:
        """Who has an answer that counts."""
        return frozenset(self._digests)

    @property
    def digests(self) -> Mapping[str, str]:
        """The answers that count, by client."""
        return self._digests

    def open(self) -> float:
        """Begin, or go on; the time at which the round closes."""
        if not self._is_timed:
            return math.inf
        if not self._opened.exists():
            write_json(self._opened, {"at": time.time()})
        return float(read_json(self._opened, "opened.json")["at"]) + self._seconds

    def is_over(self) -> bool:
        """Whether everybody has answered, or the deadline has passed."""
        return self.is_closed or self.answered == self.roster or time.time() >= self.open()

    @contextmanager
    def held(self) -> Iterator[None]:
        """One server at a time."""
        with ExitStack() as lock:
            try:
                lock.enter_context(locked(self.folder.private / "round.lock", wait=False))
            except BlockingIOError as wrong:
                raise RunError(
                    "run", str(self.folder.root), "a round that no other server holds", "Stop it first."
                ) from wrong
            self._recall()  # what another server took before
            if not self.is_released:
                check_stated(self.plan)
                enter(self.folder, self.plan, None, self.folder.secret(self.plan))  # before anybody is asked
            yield

    def question(self) -> dict[str, str]:
        """What every client is asked."""
        return question(self.plan)

    def check(self, fields: Fields) -> tuple[str, str]:
        """Client and digest of an answer that is valid in this round, whether one was taken or not; keeps nothing."""
        client, digest, raw = read_answer(fields)
        self._admit(client, digest)
        return client, hashlib.sha256(unpack(raw, self.plan).tobytes()).hexdigest()

    def take(self, fields: Fields, *, node: int, down: int = 0, up: int = 0) -> str | None:
        """Look at one reply; None if it counts, else why it does not. Nothing that a client sends can raise.

        The first valid answer of a client counts, and one client for each node. A second one changes nothing.
        """
        client = fields.get("client")
        try:
            client, found = self.check(fields)
            if self._nodes.get(node, client) != client:
                raise FederationError("client", client[:60], f"{self._nodes[node]}, as whom this node answered before")
            if client in self._digests:
                how = "the same" if self._digests[client] == found else "another one: the first one counts"
                raise FederationError("answer", how, "one answer a client")
            if time.time() >= self.open():
                raise FederationError("answer", "late", "an answer before the deadline")
            write_durably(self.path_of(client), bytes(fields["sums"]), mode=0o600)  # type: ignore[call-overload]
        except FederationError as wrong:
            self._note(client, node, down, up, refused=str(wrong))
            return str(wrong)
        self._digests[client] = found
        self._nodes[node] = client
        self._note(client, node, down, up, digest=found)
        return None

    def close(self) -> None:
        """Fix what counts. A server that dies now releases the same sum when it comes back."""
        if not self.is_closed:
            write_json(self._closed, {"answers": dict(sorted(self._digests.items()))})

    def release(self) -> None:
        """The one release: the ledger's line, then the noise, then the embedding; the answers are removed."""
        self.close()
        if not self.is_released:
            with self.folder.locked():
                context = self._context()
                if not self.folder.embedding.exists():
                    self._embed(context).save(self.folder.embedding)
                write_json(
                    self.folder.federation, observers(self.plan, [entry.event for entry in context.ledger.entries])
                )
        shutil.rmtree(self._answers, ignore_errors=True)

    def _embed(self, context: RunContext) -> Embedding:
        plan = self.plan
        assert plan.privacy is not None
        bound, event, weight = plan.privacy.contribution, plan.privacy.event, weight_of_counts(plan)
        if trust_of(plan) == "trusted-aggregator":
            mechanism = context.mechanism(bound, event)
            return embed_persons(
                self._rows(), plan.facts.classes, plan.critic.kernel_settings.features, mechanism, weight
            )
        total = np.zeros((1, width(plan)), np.int64)  # noisy already: the ledger says what each client went through
        for row, _ in self._rows():
            total += row.numpy()[0]
        announce("embedding", total, bound, event, context.ledger, context.secret)
        flat = total.astype(np.float64) * (bound.clip_norm * 2.0**-GRID_BITS)
        return Embedding.of_persons(flat, plan.facts.classes, sum_noise(plan.facts, plan.privacy), weight)

    def _rows(self) -> Iterator[Block]:
        """The answers that count, in the order of the clients' ids; read and checked again."""
        counted = read_json(self._closed, "closed.json")["answers"]
        for client, digest in counted.items():
            grid = self._kept(self.path_of(client))
            if hashlib.sha256(grid.tobytes()).hexdigest() != digest:
                raise RunError("answers", client, "the answer that was taken", "Restore private/answers.")
            yield torch.from_numpy(grid).view(1, 1, -1), torch.zeros(1, dtype=torch.int64)

    def _admit(self, client: str, digest: str) -> None:
        if self.is_closed:
            raise FederationError("answer", "late", "an answer before the round was closed")
        if client not in self.roster:
            raise FederationError("client", client[:60], "one that is on the list")
        if digest != self.plan.digest():
            raise FederationError("plan", digest[:12], f"{self.plan.digest()[:12]}, what was asked for")

    def _recall(self) -> None:
        """What was taken before a stop: an answer counts if it is on the disk and valid."""
        if self.log.exists():
            drop_torn_tail(self.log)
            for text in self.log.read_text().splitlines():
                row = json.loads(text)
                if "digest" in row:
                    self._nodes[int(row["node"])] = row["client"]
        if self.is_closed:
            self._digests = dict(read_json(self._closed, "closed.json")["answers"])
            return
        for client in self.roster:
            if (path := self.path_of(client)).exists():
                self._digests[client] = hashlib.sha256(self._kept(path).tobytes()).hexdigest()

    def _kept(self, path: Path) -> NDArray[np.int64]:
        """The numbers of an answer on the disk."""
        return unpack(read_file(path, 8 * width(self.plan)), self.plan)

    def path_of(self, client: str) -> Path:
        """Where the answer of a client is kept."""
        return self._answers / f"{hashlib.blake2b(client.encode(), digest_size=12).hexdigest()}.bin"

    def _note(self, client: object, node: int, down: int, up: int, **more: str) -> None:
        shown = client[:256] if isinstance(client, str) else None
        row = {"time": round(time.time(), 3), "client": shown, "node": str(node), "down": down, "up": up, **more}
        append_durably(self.log, json.dumps(row) + "\n", mode=0o600)

    def _context(self) -> RunContext:
        check_stated(self.plan)
        secret = self.folder.secret(self.plan)
        return self.folder.context(
            self.plan,
            public=Streams.public(self.plan.seed),
            secret=secret,
            device=torch.device("cpu"),
            note=lambda text: None,
            stopped=lambda: False,
            entered=enter(self.folder, self.plan, None, secret),
        )
