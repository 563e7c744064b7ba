"""The server's side: the run folder of clients, and the kernel critic's one round, which survives `kill -9`.

    RUN/private/round.json    who may answer, for how long
               /opened.json   when the round began, so that a server that comes back keeps the deadline

The answers are on the disk (answers.py). The release is the centralized one: ledger first, the same mechanism, the
same exact integer sums, with the clients' own rows as its source. Clients that never answer count as zero. The round
always ends in a release, however few have answered: not to release would tell how many did.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.critics.kernel.embedding import Embedding, embed_persons, embed_records
from gswgan.errors import FederationError, PlanError, RunError
from gswgan.federated.answers import Answers, known_nodes
from gswgan.federated.messages import Fields, question
from gswgan.federated.silo_statement import noise_of_sum
from gswgan.federated.silos import first_sums, grid_shape, protect_of
from gswgan.federated.statement import observers
from gswgan.federated.trust import has_rounds, trust_of, weight_of_counts
from gswgan.plan.context import RunContext
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.privacy.mechanism import ClippedSum
from gswgan.privacy.storage import locked
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
    silos = plan.facts.silos
    if silos is not None and sorted(clients) != [site.name for site in silos.sites]:
        raise PlanError("clients", len(clients), f"the {len(silos.sites)} sites of the plan")
    if len(set(clients)) != len(clients) or (silos is None and len(clients) != plan.facts.persons):
        raise PlanError("clients", len(clients), f"{plan.facts.persons} different ids, as planned")
    if not 0 < seconds <= MAX_SECONDS:
        raise PlanError("deadline", seconds, f"seconds from 1 to {MAX_SECONDS}", "Pass --deadline 3600, say.")
    folder = RunFolder.create(root, plan, source=source, budget=budget)
    fixed = not unauthenticated and source is None  # a simulation makes new nodes whenever it goes on
    write_json(folder.rounds, {"clients": sorted(clients), "seconds": seconds, "spread": spread, "fixed_nodes": fixed})
    return folder


def read_settings(folder: RunFolder) -> dict[str, Any]:
    """What `create_run` has written: clients, seconds, spread and fixed_nodes."""
    return read_json(folder.rounds, "the round.json of a federated run")


def check_budget(plan: Plan, path: Path) -> str:
    """What the budget would say with this run; an error where there is no room for it."""
    if trust_of(plan) == "untrusted-server":
        expected = "the release of a trusted aggregator"
        raise PlanError("budget", str(path), expected, "Here each client has its own budget, or a cap.")
    return Budget(path).check(plan)


class Round:
    """The one round of a kernel critic's run."""

    def __init__(self, folder: RunFolder, *, is_timed: bool = True) -> None:
        """Of a folder made by `create_run`; a round that was interrupted goes on where it stopped.

        One that is not timed, because answers come by files, ends when its operator closes it.
        """
        self.folder, self.plan, self._is_timed = folder, folder.plan(), is_timed
        if has_rounds(self.plan):
            raise PlanError("plan", self.plan.preset, "the kernel critic (preset kernel) in one round")
        folder.check_ours()
        if not self.is_released:
            folder.check_made_here(self.plan)  # before anything of the round is read
        self._opened, settings = folder.private / "opened.json", read_settings(folder)
        self.roster, self._seconds = frozenset[str](settings["clients"]), float(settings["seconds"])
        self.must_register = self.plan.facts.silos is not None and bool(settings.get("fixed_nodes", True))
        self.answers = Answers(folder, self.plan, self.roster, known_nodes(folder))

    @property
    def is_released(self) -> bool:
        """Whether the embedding is out: what is left is training."""
        return self.folder.embedding.exists() and self.folder.federation.exists()

    @property
    def is_closed(self) -> bool:
        """Whether all answers from now on are late."""
        return self.answers.is_closed

    @property
    def answered(self) -> frozenset[str]:
        """Who has an answer that counts."""
        return frozenset(self.answers.digests)

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
        """One server at a time. The run is in its budget before anybody is asked."""
        with ExitStack() as lock:
            try:
                lock.enter_context(locked(self.folder.private / "round.lock", wait=False))
            except BlockingIOError as wrong:
                expected = "a round that no other server holds"
                raise RunError("run", str(self.folder.root), expected, "Stop it first.") from wrong
            self.answers = Answers(self.folder, self.plan, self.roster, known_nodes(self.folder))  # another's, too
            if not self.is_released:
                check_stated(self.plan)
                enter(self.folder, self.plan, None, self.folder.secret(self.plan))
            yield

    def question(self) -> dict[str, str | bytes]:
        """What every client is asked."""
        return question(self.plan)

    def take(
        self, fields: Fields, *, node: int, registered: str | None = None, down: int = 0, up: int = 0
    ) -> str | None:
        """Look at one reply; None if it counts, else why it does not. `registered`: as whom the node's key is known."""
        self.answers.deadline = self.open()
        if registered == "" and not self.must_register:
            registered = None
        return self.answers.take(fields, node=node, registered=registered, down=down, up=up)

    def close(self) -> None:
        """Fix what counts. Where fewer sites have answered than the plan needs, the round stays open: an error."""
        silos = self.plan.facts.silos
        if silos is not None and not self.is_closed and len(self.answered) < silos.min_sites:
            self._opened.unlink(missing_ok=True)  # the same command opens it again
            missing = ", ".join(sorted(self.roster - self.answered))
            raise FederationError(
                "answers", f"{len(self.answered)} of {len(self.roster)} sites; none of {missing[:300]}",
                f"at least {silos.min_sites}, as planned",
                "Run it again when they can answer: what has come in is kept, and nothing was released.",
            )  # fmt: skip
        self.answers.close()

    def release(self) -> None:
        """The one release: the ledger's line, then the noise, then the embedding; the answers are removed."""
        self.close()
        if not self.is_released:
            with self.folder.locked():
                context = self._context()
                if not self.folder.embedding.exists():
                    self._embed(context).save(self.folder.embedding)
                events = [entry.event for entry in context.ledger.entries]
                write_json(self.folder.federation, observers(self.plan, events, sorted(self.answered)))
        self.answers.remove()

    def _embed(self, context: RunContext) -> Embedding:
        plan = self.plan
        privacy, classes, weight = plan.sums, plan.facts.classes, weight_of_counts(plan)
        if plan.facts.silos is not None:
            return self._embed_sites(context)
        if trust_of(plan) == "trusted-aggregator":
            only = torch.zeros(1, dtype=torch.int64)
            rows = ((torch.from_numpy(grid)[None], only) for grid in self.answers.counted())
            mechanism = context.mechanism(privacy.contribution, privacy.event)
            return embed_persons(rows, classes, plan.critic.kernel_settings.features, mechanism, weight)
        total = self.answers.noisy_total("embedding", context.ledger, context.secret)
        return Embedding.of_persons(total, classes, noise_of_sum(plan), weight)

    def _embed_sites(self, context: RunContext) -> Embedding:
        """With a trusted aggregator the exact sum of the sites' sums goes the way of the centralized one."""
        plan, facts, shape = self.plan, self.plan.facts, grid_shape(self.plan)
        bound, by_record = first_sums(plan).contribution, protect_of(plan) == "record"
        weight, noise = weight_of_counts(plan), noise_of_sum(plan, len(self.answered))
        if trust_of(plan) == "untrusted-server":
            total = self.answers.noisy_total("embedding", context.ledger, context.secret).reshape(shape)
            if not by_record:
                return Embedding.of_persons(total, facts.classes, noise, weight)
            table = torch.from_numpy(total)
            counts, count_noise = table[:, -1] / bound.clip_norm, noise / bound.clip_norm
            return Embedding(sums=table[:, :-1], counts=counts, noise_std=noise, count_noise_std=count_noise)
        exact = sum((grid.reshape(shape) for grid in self.answers.counted()), start=np.zeros(shape, np.int64))
        summed = ClippedSum(contribution=bound, total=exact)
        mechanism = context.mechanism(bound, plan.sums.event)
        features = plan.critic.kernel_settings.features
        if by_record:
            return embed_records(summed, facts.records, facts.classes, features, mechanism)
        return embed_persons(summed, facts.classes, features, mechanism, weight)

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
