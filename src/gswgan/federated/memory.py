"""What a client remembers on its own disk about its answers, and the cap that they must stay within.

STATE/<name of the client>/client.json                      the client's id, its cap, and what one unit of it is
                          /log.jsonl                        what was refused and why, for the site alone
                          /<digest of a plan>/ledger.jsonl  one line for each answer, before it is made
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gswgan.errors import FederationError, path_problem
from gswgan.federated.trust import spent
from gswgan.plan.plan import Plan
from gswgan.privacy import Ledger
from gswgan.privacy.accountant import check_delta
from gswgan.privacy.calibration import check_epsilon
from gswgan.privacy.events import BaseEvent, Neighbours, check_neighbours
from gswgan.privacy.ledger import MAX_LEDGER_BYTES, Entry, read_ledger
from gswgan.privacy.storage import append_durably, read_file, whole_lines
from gswgan.run.folder import Entered, read_json

MAX_LOG_BYTES = 2**20
"""Bytes of a client's log; then it is put aside and a new one begins, so whoever asks often cannot fill the disk."""


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

    def check(self, events: Iterable[BaseEvent]) -> None:
        """Raise a FederationError if these releases together cost more than the cap."""
        total = spent(events, neighbours=self.neighbours, delta=self.delta)
        if total > self.epsilon * (1 + 1e-9):
            raise FederationError(
                "epsilon", f"{total:.4g} at delta {self.delta:g}", f"at most {self.epsilon:g}, the cap"
            )


def home_of(state: Path, client: str) -> Path:
    """Where a client's memory is: its id may hold any character, a folder's name may not."""
    return state / hashlib.blake2b(client.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a client has on its disk about its answers."""

    client: str
    cap: Cap
    protect: str
    """What the cap is for: the whole client, or each record or person of a site."""
    events: tuple[BaseEvent, ...]
    """All that was recorded, sent or not: a client counts what it was about to send."""

    @classmethod
    def read(cls, home: Path, *, but: Path | None = None) -> Memory:
        """Of the folder of one client, without the ledger `but`."""
        known = read_json(home / "client.json", "the client.json of a client's state")
        ledgers = sorted(path for path in home.glob("*/ledger.jsonl") if path != but)
        events = tuple(entry.event for path in ledgers for entry in recorded(path))
        protect = str(known.get("protect", "client"))
        return cls(client=str(known["client"]), cap=Cap(**known["cap"]), protect=protect, events=events)

    @property
    def spent(self) -> float:
        """Epsilon so far, at the cap's delta and under its relation."""
        return spent(self.events, neighbours=self.cap.neighbours, delta=self.cap.delta)


class CappedLedger(Ledger):
    """A ledger that takes no line beyond the client's cap."""

    def __init__(self, home: Path, path: Path, plan: Plan, entered: Entered | None = None) -> None:
        """`entered`: into the client's budget, which may refuse an answer that repeats one."""
        super().__init__(
            path, observer=plan.sums.observer, context=plan.digest(),
            journal=path.with_name("journal.jsonl") if entered is None else entered.journal,
            before_repeat=(lambda entry: None) if entered is None else entered.before_repeat,
        )  # fmt: skip
        self._home = home

    def record(self, name: str, event: BaseEvent, fingerprint: str) -> int:
        """As ever, if what is new is within the cap."""
        if all(known != fingerprint for _, known in self._fingerprints.get(name, [])):
            memory = Memory.read(self._home, but=self.path)
            memory.cap.check((*memory.events, *(entry.event for entry in self.entries), event))
        return super().record(name, event, fingerprint)


def recorded(ledger: Path) -> list[Entry]:
    """The answers in a ledger. There are none in one that a client was writing its first line to when it died.

    A line that was torn when it died announces nothing that has happened. It stays: whoever looks does not write.
    """
    whole = ledger.exists() and whole_lines(read_file(ledger, MAX_LEDGER_BYTES))
    return read_ledger(ledger, torn=True)[1] if whole else []


def memories(state: Path) -> list[Memory]:
    """All clients whose memory is under `state`, which may be the folder of a single one."""
    homes = [state] if (state / "client.json").exists() else sorted(path.parent for path in state.glob("*/client.json"))
    if not homes:
        expected = f"the folder where a client keeps its state{path_problem(state)}"
        raise FederationError("state", str(state), expected, "Check the path.")
    return sorted((Memory.read(home) for home in homes), key=lambda memory: memory.client)


def write_log(home: Path, what: str, why: str) -> None:
    """A line in the client's own log. Nobody else is told."""
    path = home / "log.jsonl"
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(home / "log.jsonl.old")
    row = {"time": round(time.time(), 3), "what": what, "why": why[:2000]}
    append_durably(path, json.dumps(row) + "\n", mode=0o600)
