"""The server's side of Algorithm 2: a critic that asks the clients. The loop is the centralized trainer's.

    RUN/private/round.json        who may answer, for how long in each round
               /answers.jsonl     what came in, with bytes up and down, what was refused and why, who was absent
               /rounds/T/question.bin   the fakes of round T, before anybody is asked
                        /*.bin          answers that count, each on the disk before the next is looked at
                        /closed.json    the answers that count, fixed before the noise is drawn
               /rounds/T.released       the noisy sum of round T, until a checkpoint has what came of it

So a server that dies asks the same question again, counts the same answers, releases the same bytes. In every round
there is one release, however few have answered, divided by a number that does not depend on who did.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.critics import Critic
from gswgan.data import ImageData
from gswgan.errors import FederationError, RunError
from gswgan.federated.critic_messages import Batch, pool_size, question, read_answer, read_batch, unpack_block
from gswgan.federated.critic_plan import statement
from gswgan.federated.messages import Fields
from gswgan.federated.trust import trust_of
from gswgan.generators.generator import Generator
from gswgan.plan.context import RunContext
from gswgan.privacy.mechanism import GRID_BITS, Block, announce
from gswgan.privacy.participation import expected_participants
from gswgan.privacy.storage import append_durably, drop_torn_tail, read_file, write_durably
from gswgan.run.folder import RunFolder, read_json, write_json
from gswgan.run.loop import Note, Progress, run

LOG = "answers.jsonl"

Take = Callable[..., "str | None"]
"""Looks at one reply (fields, and `node`, `down`, `up`); None if it counts, else why it does not."""


class Carrier(Protocol):
    """How questions get to clients: in this process, or through Flower."""

    def ask(self, clients: Sequence[str], fields: Fields, take: Take) -> None:
        """Ask these clients, hand every reply to `take`; return when all have replied or the round's time is over."""


class _Replies(Protocol):
    def reply(self, fields: Fields) -> Mapping[str, str | bytes]: ...


class InProcess:
    """Clients as objects in this process."""

    def __init__(self, clients: Mapping[str, _Replies]) -> None:
        self._clients = clients

    def ask(self, clients: Sequence[str], fields: Fields, take: Take) -> None:
        """One after the other; a client that is not here says nothing."""
        for node, (name, client) in enumerate(self._clients.items()):
            if name in clients:
                take(client.reply(fields), node=node)


def run_rounds(
    folder: RunFolder,
    carrier: Carrier,
    *,
    device: torch.device,
    progress: Progress = lambda done: None,
    note: Note = lambda text: None,
) -> bool:
    """The centralized trainer with the clients as its critics; False if it was interrupted (and can resume)."""
    clients = read_json(folder.rounds, "the round.json of a federated run")["clients"]
    ended = run(
        folder, None, device=device, progress=progress, note=note,
        answerer=lambda context: RemoteCritics(folder, context, clients, carrier),
    )  # fmt: skip
    if ended:
        shutil.rmtree(folder.private / "rounds", ignore_errors=True)
    return ended


def known_nodes(folder: RunFolder) -> dict[str, int]:
    """The node that each client has answered from, as the log of a run has it."""
    log = folder.private / LOG
    if not log.exists():
        return {}
    drop_torn_tail(log)
    rows = map(json.loads, log.read_text().splitlines())
    return {row["client"]: int(row["node"]) for row in rows if "digest" in row}


class RemoteCritics(Critic):
    """A critic (critics/__init__.py) whose answers come from the clients."""

    def __init__(self, folder: RunFolder, context: RunContext, clients: Sequence[str], carrier: Carrier) -> None:
        """`clients`: the public list, in an order that is fixed for the run."""
        plan = self._plan = folder.plan()
        self._folder, self._context, self._carrier, self._clients = folder, context, carrier, tuple(clients)
        self._privacy, self._trust = plan.sums, trust_of(plan)
        self._mechanism = context.mechanism(plan.sums.contribution, plan.sums.event)
        self._rounds, self.log = folder.private / "rounds", folder.private / LOG
        self._step, self._saved, self._participants = 0, 0, np.empty(0, np.int64)
        self._pool: tuple[Tensor, Tensor] | None = None
        self._is_open = False
        self._digests: dict[str, str] = {}
        self._nodes: dict[int, str] = {}

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Nothing to do here: clients warm up when they are first asked."""
        self._rounds.mkdir(mode=0o700, exist_ok=True)
        self._nodes = {node: client for client, node in known_nodes(self._folder).items()}

    def learn(self, step: int, generator: Generator) -> None:
        """Draw who takes part in this round, and the fakes that they learn from. Nobody is asked yet."""
        self._step, self._participants = step, self.draw_participants(step)
        self._pool = generator.fakes(pool_size(self._plan), "critics", step)

    def draw_participants(self, step: int) -> NDArray[np.int64]:
        """Secret coins of the server (Poisson), everyone, or one client by a uniform draw: as in the ensemble."""
        return self._mechanism.participants(f"step {step}", len(self._clients))

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The sum of the participants' sanitized gradients over the planned number: the round's one release."""
        shape, kept = fake.shape, self._rounds / f"{self._step}.released"
        if not kept.exists():
            write_durably(kept, self._release(fake.detach(), labels).tobytes(), mode=0o600)
            shutil.rmtree(self._place, ignore_errors=True)
        if self._step + 1 == self._privacy.releases and not self._folder.federation.exists():
            events = [entry.event for entry in self._context.ledger.entries]
            write_json(self._folder.federation, statement(self._plan, events))
        sums = np.frombuffer(read_file(kept, 8 * fake.numel()), np.float64)
        expected = expected_participants(self._mechanism.event, len(self._clients))
        return torch.from_numpy(sums / expected).to(torch.float32).view(shape).to(fake.device)

    def metrics(self) -> dict[str, Any]:
        """The last round: how many were asked, how many answers counted."""
        return {"participants": len(self._participants), "answers": len(self._digests)}

    def state(self) -> dict[str, Tensor]:
        """Nothing: the critics are at the clients. What the checkpoint before this one covers is removed."""
        for step in range(self._saved):
            (self._rounds / f"{step}.released").unlink(missing_ok=True)
        self._saved = self._step + 1
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""

    @property
    def _place(self) -> Path:
        return self._rounds / str(self._step)

    def _release(self, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """Ask, close, record, add the noise (with an untrusted server the clients have)."""
        self._place.mkdir(mode=0o700, exist_ok=True)
        closed = self._place / "closed.json"
        if not closed.exists():
            self._recall()
            self._ask(self._batch(images, labels))
            self._is_open = False
            write_json(closed, {"answers": dict(sorted(self._digests.items()))})
        self._digests = dict(read_json(closed, "closed.json")["answers"])
        name, bound, event, context = (
            f"step {self._step}",
            self._privacy.contribution,
            self._privacy.event,
            self._context,
        )
        width = self._plan.facts.pixels
        if self._trust == "trusted-aggregator":
            return self._mechanism.answer(name, self._blocks(), slots=bound.rows, width=width).sums
        total = np.zeros((bound.rows, width), np.int64)  # noisy already: the ledger says what each client went through
        for rows, _ in self._blocks():
            total += rows.numpy()[0]
        announce(name, total, bound, event, context.ledger, context.secret)
        return total.astype(np.float64) * (bound.clip_norm * 2.0**-GRID_BITS)

    def _batch(self, images: Tensor, labels: Tensor) -> Batch:
        """The round's fakes: those that were asked about before a stop, or new ones, kept before anybody is asked."""
        assert self._pool is not None
        kept = self._place / "question.bin"
        if not kept.exists():
            both = [torch.cat(part) for part in zip(self._pool, (images, labels))]
            new = Batch(number=self._step, images=both[0], labels=both[1], pool=len(self._pool[0])).pack()
            write_durably(kept, bytes(new["labels"]) + bytes(new["images"]), mode=0o600)  # type: ignore[arg-type]
        count = 2 * (len(self._pool[0]) + len(images))
        raw = read_file(kept, count + count // 2 * self._plan.facts.pixels)
        return read_batch(self._plan, {"round": str(self._step), "labels": raw[:count], "images": raw[count:]})

    def _ask(self, batch: Batch) -> None:
        asked = {self._clients[index] for index in self._participants}
        fields = question(self._plan, batch)
        if left := sorted(asked - set(self._digests)):
            heard = set[str]()
            self._carrier.ask(left, fields, self._take(asked, heard))
            for client in sorted(set(left) - heard):
                self._note(client, self._step, 0, 0, 0, absent="no answer while the round was open")

    def _take(self, asked: set[str], heard: set[str]) -> Take:
        """For one round: once it is over, the function refuses everything. Whoever sends something is `heard`."""
        step, self._is_open = self._step, True

        def take(fields: Fields, *, node: int, down: int = 0, up: int = 0) -> str | None:
            """Nothing that a client sends can raise. Its first valid answer counts, and one client for each node."""
            client = fields.get("client")
            heard.add(str(client))
            try:
                client, grid = read_answer(fields, self._plan, step)
                if self._step != step or not self._is_open:
                    raise FederationError("answer", "late", f"an answer while round {step} is open")
                if client not in asked:
                    raise FederationError("client", client[:60], "one that was asked")
                if self._nodes.get(node, client) != client:
                    raise FederationError(
                        "client", client[:60], f"{self._nodes[node]}, as whom this node answered before"
                    )
                found = hashlib.sha256(grid.tobytes()).hexdigest()
                if client in self._digests:
                    how = "the same" if self._digests[client] == found else "another one: the first one counts"
                    raise FederationError("answer", how, "one answer a client and round")
                write_durably(self._path(client), bytes(fields["block"]), mode=0o600)  # type: ignore[call-overload]
            except FederationError as wrong:
                self._note(client, step, node, down, up, refused=str(wrong))
                return str(wrong)
            self._digests[client], self._nodes[node] = found, client
            self._note(client, step, node, down, up, digest=found)
            return None

        return take

    def _blocks(self) -> Iterator[Block]:
        """The answers that count, in the order of the clients' ids; read and checked again."""
        for client, digest in self._digests.items():
            grid = self._kept(self._path(client))
            if hashlib.sha256(grid.tobytes()).hexdigest() != digest:
                raise RunError("answers", client, "the answer that was taken", "Restore private/rounds.")
            yield torch.from_numpy(grid)[None], None

    def _recall(self) -> None:
        """What was taken in this round before a stop: an answer counts if it is on the disk and valid."""
        self._digests = {}
        for index in self._participants:
            client = self._clients[index]
            if (path := self._path(client)).exists():
                grid = self._kept(path)
                self._digests[client] = hashlib.sha256(grid.tobytes()).hexdigest()

    def _kept(self, path: Path) -> NDArray[np.int64]:
        """The gradients of an answer on the disk."""
        return unpack_block(read_file(path, 8 * self._privacy.rows * self._plan.facts.pixels), self._plan)

    def _path(self, client: str) -> Path:
        return self._place / f"{hashlib.blake2b(client.encode(), digest_size=12).hexdigest()}.bin"

    def _note(self, client: object, step: int, node: int, down: int, up: int, **more: str) -> None:
        shown = client[:256] if isinstance(client, str) else None
        row = {"time": round(time.time(), 3), "round": step, "client": shown, "node": str(node), "down": down, "up": up}
        append_durably(self.log, json.dumps({**row, **more}) + "\n", mode=0o600)
