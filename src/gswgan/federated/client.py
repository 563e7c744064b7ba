"""What a client does and remembers. Everything that must survive is on its own disk before anything leaves.

    STATE/<name of the client>/client.json                the client's id and its cap
                              /<digest of a plan>/ledger.jsonl, journal.jsonl, key.json, answer.bin

The order is: book, if the client keeps one (all answers that the plan can ask for), ledger (written ahead, within the
cap), answer on the disk, answer sent. A client that is asked again sends the bytes it has kept. One that died before it
had kept them computes them again from the same key and the same data, which gives the same bytes; from other data it is
another answer, and counts again.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.critics.embedding import person_row
from gswgan.critics.kernel import RandomFeatures
from gswgan.data import ImageData, load_data
from gswgan.errors import FederationError, GswganError
from gswgan.evaluation.choice import choose_clients
from gswgan.federated import critic_messages
from gswgan.federated.critic_client import CriticAtClient
from gswgan.federated.critic_messages import Batch
from gswgan.federated.critic_plan import answer_event
from gswgan.federated.messages import Fields, answer, pack, read_question, width
from gswgan.federated.trust import Trust, check_trust, spent, trust_of, weight_of_counts
from gswgan.privacy import GaussianMechanism, Ledger, Streams
from gswgan.privacy.accountant import check_delta
from gswgan.privacy.calibration import check_epsilon
from gswgan.privacy.events import BaseEvent, Event, Neighbours, Repeated, check_neighbours
from gswgan.privacy.ledger import Entry, read_ledger
from gswgan.privacy.mechanism import GRID_BITS, announce, clip_to_grid
from gswgan.privacy.randomness import create_key, load_key
from gswgan.privacy.storage import make_folder, sync_folder, write_durably
from gswgan.training.entering import enter_into
from gswgan.training.plan import Plan
from gswgan.training.run_folder import read_json, write_json

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Cap:
    """The most that a client spends over all its answers, whoever asks."""

    epsilon: float
    delta: float
    neighbours: Neighbours

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_neighbours(self.neighbours)


def home_of(state: Path, client: str) -> Path:
    """Where a client's memory is: its id may hold any character, a folder's name may not."""
    return state / hashlib.blake2b(client.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a client has on its disk about its answers."""

    client: str
    cap: Cap
    events: tuple[BaseEvent, ...]
    """All that was recorded, sent or not: a client counts what it was about to send."""

    @classmethod
    def read(cls, home: Path, *, but: Path | None = None) -> Memory:
        """Of the folder of one client, without the ledger `but`."""
        known = read_json(home / "client.json", "the client.json of a client's state")
        ledgers = sorted(path for path in home.glob("*/ledger.jsonl") if path != but)
        events = tuple(entry.event for path in ledgers for entry in read_ledger(path)[1])
        return cls(client=str(known["client"]), cap=Cap(**known["cap"]), events=events)

    @property
    def spent(self) -> float:
        """Epsilon so far, at the cap's delta and under its relation."""
        return spent(self.events, neighbours=self.cap.neighbours, delta=self.cap.delta)


class _CappedLedger(Ledger):
    """A ledger that takes no line beyond the client's cap."""

    def __init__(
        self, home: Path, path: Path, plan: Plan, journal: Path, before_repeat: Callable[[Entry], None]
    ) -> None:
        assert plan.privacy is not None
        super().__init__(
            path, observer=plan.privacy.observer, context=plan.digest(), journal=journal, before_repeat=before_repeat
        )
        self._home = home

    def record(self, name: str, event: BaseEvent, fingerprint: str) -> int:
        """As ever, if what is new is within the cap."""
        if all(known != fingerprint for _, known in self._fingerprints.get(name, [])):
            memory = Memory.read(self._home, but=self.path)
            events = (*memory.events, *(entry.event for entry in self.entries), event)
            total = spent(events, neighbours=memory.cap.neighbours, delta=memory.cap.delta)
            if total > memory.cap.epsilon * (1 + 1e-9):
                raise FederationError(
                    "epsilon", f"{total:.4g} at delta {memory.cap.delta:g}", f"at most {memory.cap.epsilon:g}, the cap"
                )
        return super().record(name, event, fingerprint)


class Client:
    """One person's side: its data, whom it trusts, its cap and its memory."""

    def __init__(
        self,
        name: str,
        data: ImageData,
        state: Path,
        *,
        trust: Trust,
        cap: Cap,
        book: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """`book`: the client's own privacy book, which counts its answers with whatever else is entered there.

        `insecure` lets it take part in a run whose noise is known, which has no guarantee: for tests.
        """
        self.name, self.trust, self._book, self._insecure = name, trust, book, insecure
        if data.persons is None or data.number_of_persons != 1:
            raise FederationError("data", data.name, "the records of one person")
        self._data, self.home = data, home_of(state, name)
        make_folder(self.home, private=True)
        write_json(self.home / "client.json", {"client": name, "cap": vars(cap)})

    def reply(self, fields: Fields) -> dict[str, str | bytes]:
        """The answer to a question, or why there is none. The reason never depends on the client's data."""
        try:
            if "hello" in fields:  # who is there?
                return {"client": self.name}
            if "round" in fields:
                plan, batch = critic_messages.read_question(fields)
                return critic_messages.answer(self.name, plan, batch.number, self.block(plan, batch))
            plan = read_question(fields)
            return answer(self.name, plan, self.sums(plan))
        except GswganError as wrong:
            return {"client": self.name, "refused": str(wrong)}

    def sums(self, plan: Plan) -> bytes:
        """This client's averaged, clipped class sums as they travel: kept, or computed, recorded and kept."""
        self._check(plan)
        with self._locked():
            folder = self._folder(plan)
            kept = folder / "answer.bin"
            if not kept.exists():
                write_durably(kept, self._compute(plan, folder), mode=0o600)
            return kept.read_bytes()

    def block(self, plan: Plan, batch: Batch) -> bytes:
        """This client's sanitized gradients in a round of Algorithm 2 as they travel (critic_client.py)."""
        self._check(plan)
        with self._locked():
            folder = self._folder(plan)
            secret = self._secret(plan, folder)
            return self._critic(folder, plan, self._data, self._ledger(plan, folder, secret), secret).answer(batch)

    _critic = CriticAtClient

    def _folder(self, plan: Plan) -> Path:
        folder = self.home / plan.digest()[:32]
        if not folder.exists():
            folder.mkdir(mode=0o700)
            sync_folder(self.home)
        return folder

    def _ledger(self, plan: Plan, folder: Path, secret: Streams) -> _CappedLedger:
        """The client's ledger for this plan, which is in the client's book by now if it keeps one."""
        if self._book is None:
            return _CappedLedger(
                self.home, folder / "ledger.jsonl", plan, folder / "journal.jsonl", lambda entry: None
            )  # fmt: skip
        with _quietly():
            entered = enter_into(self._book, plan, self._data, secret, where=folder, total=_all_answers(plan))

        def ask(entry: Entry) -> None:
            with _quietly():
                entered.before_repeat(entry)

        return _CappedLedger(self.home, folder / "ledger.jsonl", plan, entered.journal, ask)

    def _secret(self, plan: Plan, folder: Path) -> Streams:
        """The client's key for this plan."""
        key, context, fixed = folder / "key.json", plan.digest(), None
        if plan.insecure_reproducible:
            fixed = hashlib.blake2b(f"insecure {plan.seed} {self.name}".encode(), digest_size=32).digest()
        return load_key(key, context) if key.exists() else create_key(key, context, secret=fixed)

    def _check(self, plan: Plan) -> None:
        """Shape and bound are the client's to refuse; what it costs is checked where it is recorded."""
        if trust_of(plan) != self.trust:
            raise FederationError("trust", trust_of(plan), f"{self.trust}, as this client is set up")
        if plan.insecure_reproducible and not self._insecure:
            raise FederationError("plan", "insecure-reproducible", "a plan with secret noise")
        names, data = ("classes", "labelled", "image_size", "channels"), self._data  # not how much data: may be none
        found = [data.classes, data.labels is not None, data.image_size, data.channels]
        asked = [getattr(plan.facts, name) for name in names]
        if found != asked:
            raise FederationError("plan", dict(zip(names, asked)), f"{found}, as the client's data has")

    def _compute(self, plan: Plan, folder: Path) -> bytes:
        assert plan.privacy is not None
        secret = self._secret(plan, folder)
        ledger = self._ledger(plan, folder, secret)
        features = RandomFeatures(plan.critic, plan.facts.channels, plan.facts.image_size, CPU)
        row = person_row(self._data, features, weight_of_counts(plan))
        bound, event = plan.privacy.contribution, plan.privacy.event
        if trust_of(plan) == "trusted-aggregator":
            grid = clip_to_grid(row, bound.clip_norm).numpy().reshape(1, -1)
            announce("embedding", grid, bound, event, ledger, secret)
            return pack(grid, plan)
        mechanism = GaussianMechanism(contribution=bound, event=event, ledger=ledger, streams=secret)
        noisy = mechanism.release("embedding", [(row, torch.zeros(1, dtype=torch.int64))], slots=1, width=width(plan))
        return pack(np.rint(noisy.sums / (bound.clip_norm * 2.0**-GRID_BITS)).astype(np.int64), plan)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time: Flower may start one for each question."""
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _all_answers(plan: Plan) -> Event:
    """What a plan can ask of one client at the most: an answer in every round, whatever coins the server tosses."""
    assert plan.privacy is not None
    return Repeated(event=answer_event(plan), times=plan.privacy.releases)


@contextmanager
def _quietly() -> Iterator[None]:
    """The server learns that there is no room, and nothing else of a client's book."""
    try:
        yield
    except GswganError as wrong:
        raise FederationError(
            "book", "no room for this plan", "a budget that has it, in a book that is whole"
        ) from wrong


def memories(state: Path) -> list[Memory]:
    """All clients whose memory is under `state`, which may be the folder of a single one."""
    homes = [state] if (state / "client.json").exists() else sorted(path.parent for path in state.glob("*/client.json"))
    if not homes:
        raise FederationError("state", str(state), "the folder where a client keeps its state", "Check the path.")
    return sorted((Memory.read(home) for home in homes), key=lambda memory: memory.client)


def one_person(data: ImageData, name: str) -> ImageData:
    """All of the data as one person's."""
    return dataclasses.replace(data, persons=np.zeros(data.n, np.int64), person_ids=(name,))


def client_of(config: Mapping[str, Any]) -> Client:
    """The client that a SuperNode's configuration describes. If it does not belong it answers all the same: zeros."""
    needed = ("client", "data", "state", "trust", "epsilon", "delta")
    if missing := [name for name in needed if name not in config]:
        raise FederationError("node-config", missing[0], f"{', '.join(needed)} in --node-config")
    name, size = str(config["client"]), config.get("image-size")
    data = one_person(load_data(str(config["data"]), classes=config.get("classes"), image_size=size), name)
    data = choose_clients(
        data, min_records=config.get("min-records"), accuracy=config.get("accuracy"), judge=config.get("judge")
    )
    cap = Cap(
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
        neighbours=config.get("neighbours", "zeroed"),
    )
    trust, book = check_trust(str(config["trust"])), config.get("book")
    return Client(
        name, data, Path(str(config["state"])), trust=trust, cap=cap, book=None if book is None else Path(str(book))
    )
