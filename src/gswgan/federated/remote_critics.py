"""The server's side of Algorithm 2: a critic that asks the clients. The loop is the centralized trainer's.

    RUN/private/rounds/T/question.bin   the fakes of round T, before anybody is asked (its answers: answers.py)
                      /T.released       the noisy sum of round T, until a checkpoint has what came of it

So a server that dies asks the same question again, counts the same answers, releases the same bytes. In every round
there is one release, however few have answered, divided by a number that does not depend on who did.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.critics import Critic
from gswgan.data import ImageData
from gswgan.federated.answers import Answers, known_nodes
from gswgan.federated.messages import Batch, Fields, pool_size, question, read_batch, shape_of
from gswgan.federated.server import read_settings
from gswgan.federated.statement import observers
from gswgan.federated.trust import trust_of
from gswgan.generators.generator import Generator
from gswgan.plan.context import RunContext
from gswgan.privacy.mechanism import Block
from gswgan.privacy.participation import expected_participants
from gswgan.privacy.storage import read_file, write_durably
from gswgan.run.folder import RunFolder, write_json
from gswgan.run.loop import Note, Progress, run

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
    clients = read_settings(folder)["clients"]
    ended = run(
        folder, None, device=device, progress=progress, note=note,
        answerer=lambda context: RemoteCritics(folder, context, clients, carrier),
    )  # fmt: skip
    if ended:
        shutil.rmtree(folder.private / "rounds", ignore_errors=True)
    return ended


class RemoteCritics(Critic):
    """A critic (critics/__init__.py) whose answers come from the clients."""

    def __init__(self, folder: RunFolder, context: RunContext, clients: Sequence[str], carrier: Carrier) -> None:
        """`clients`: the public list, in an order that is fixed for the run."""
        plan = self._plan = folder.plan()
        self._folder, self._context, self._carrier, self._clients = folder, context, carrier, tuple(clients)
        self._privacy = plan.sums
        self._mechanism = context.mechanism(plan.sums.contribution, plan.sums.event)
        self._rounds = self._folder.private / "rounds"
        self._step, self._saved, self._participants = 0, 0, np.empty(0, np.int64)
        self._pool: tuple[Tensor, Tensor] | None = None
        self._answers: Answers | None = None
        self._nodes: dict[int, str] = {}

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Nothing to do here: clients warm up when they are first asked."""
        self._rounds.mkdir(mode=0o700, exist_ok=True)
        self._nodes = known_nodes(self._folder)

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
            answers = Answers(
                self._folder, self._plan, [self._clients[index] for index in self._participants], self._nodes,
                self._step,
            )  # fmt: skip
            self._answers = answers
            write_durably(kept, self._release(answers, fake.detach(), labels).tobytes(), mode=0o600)
            answers.remove()
        if self._step + 1 == self._privacy.releases and not self._folder.federation.exists():
            events = [entry.event for entry in self._context.ledger.entries]
            write_json(self._folder.federation, observers(self._plan, events))
        sums = np.frombuffer(read_file(kept, 8 * fake.numel()), np.float64)
        expected = expected_participants(self._mechanism.event, len(self._clients))
        return torch.from_numpy(sums / expected).to(torch.float32).view(shape).to(fake.device)

    def metrics(self) -> dict[str, Any]:
        """The last round: how many were asked, how many answers counted."""
        counted = 0 if self._answers is None else len(self._answers.digests)
        return {"participants": len(self._participants), "answers": counted}

    def state(self) -> dict[str, Tensor]:
        """Nothing: the critics are at the clients. What the checkpoint before this one covers is removed."""
        for step in range(self._saved):
            (self._rounds / f"{step}.released").unlink(missing_ok=True)
        self._saved = self._step + 1
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""

    def _release(self, answers: Answers, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """Ask, close, record, add the noise (with an untrusted server the clients have)."""
        if not answers.is_closed:
            self._ask(answers, self._batch(answers, images, labels))
            answers.close()
        name, (rows, width) = f"step {self._step}", shape_of(self._plan)
        if trust_of(self._plan) == "untrusted-server":
            return answers.noisy_total(name, self._context.ledger, self._context.secret)
        return self._mechanism.answer(name, self._blocks(), slots=rows, width=width).sums

    def _blocks(self) -> Iterator[Block]:
        """The answers that count."""
        assert self._answers is not None
        for grid in self._answers.counted():
            yield torch.from_numpy(grid)[None], None

    def _batch(self, answers: Answers, images: Tensor, labels: Tensor) -> Batch:
        """The round's fakes: those that were asked about before a stop, or new ones, kept before anybody is asked."""
        assert self._pool is not None
        kept, count = answers.place / "question.bin", 2 * (len(self._pool[0]) + len(images))
        if not kept.exists():
            both = [torch.cat(part) for part in zip(self._pool, (images, labels))]
            new = Batch(number=self._step, images=both[0], labels=both[1], pool=len(self._pool[0])).pack()
            write_durably(kept, bytes(new["labels"]) + bytes(new["images"]), mode=0o600)  # type: ignore[arg-type]
        raw = read_file(kept, count + count // 2 * self._plan.facts.pixels)
        batch = read_batch(self._plan, {"round": str(self._step), "labels": raw[:count], "images": raw[count:]})
        assert batch is not None
        return batch

    def _ask(self, answers: Answers, batch: Batch) -> None:
        """Ask whoever has not answered yet. Who sends nothing is logged as absent."""
        heard = set[str]()

        def take(fields: Fields, *, node: int, down: int = 0, up: int = 0) -> str | None:
            heard.add(str(fields.get("client")))
            return answers.take(fields, node=node, down=down, up=up)

        if left := sorted(answers.asked - set(answers.digests)):
            self._carrier.ask(left, question(self._plan, batch), take)
            for client in sorted(set(left) - heard):
                answers.note_absent(client)
