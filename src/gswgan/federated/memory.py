"""What a client remembers on its own disk about its answers, and the cap that they must stay within.

STATE/<name of the client>/client.json                      the client's id, its cap, and what one unit of it is
                          /log.jsonl                        what was refused and why, for the site alone
                          /<digest of a plan>/ledger.jsonl  one line for each answer, before it is made
                                             /agreed.json   preset refined: all that the first answer agreed to
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gswgan.errors import FederationError, path_problem
from gswgan.federated.trust import is_refined, planned_events, spent_with_repeats
from gswgan.plan.plan import Plan
from gswgan.privacy import Ledger
from gswgan.privacy.accountant import check_delta
from gswgan.privacy.calibration import check_epsilon
from gswgan.privacy.events import BaseEvent, Event, Neighbours, Sampled, check_neighbours, from_json, to_json, unsampled
from gswgan.privacy.ledger import MAX_LEDGER_BYTES, Entry, read_ledger
from gswgan.privacy.storage import append_durably, read_file, whole_lines
from gswgan.run.folder import Entered, read_json, write_json

MAX_LOG_BYTES = 2**20
"""Bytes of a client's log; then it is put aside and a new one begins, so whoever asks often cannot fill the disk."""


AGREED = "agreed.json"


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

    def check(self, total: float) -> None:
        """Raise a FederationError if this epsilon, at the cap's delta and under its relation, is more than the cap."""
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
    repeats: tuple[BaseEvent, ...] = ()
    """Those of them that came again, with another sum."""
    to_come: tuple[BaseEvent, ...] = ()
    """What it has agreed to and not recorded yet."""
    agreed_to: frozenset[str] = frozenset()
    """The folders of plans that it has agreed to as a whole."""

    @classmethod
    def read(cls, home: Path, *, but: Path | None = None) -> Memory:
        """Of the folder of one client, without the ledger `but`."""
        known = read_json(home / "client.json", "the client.json of a client's state")
        ledgers = sorted(path for path in home.glob("*/ledger.jsonl") if path != but)
        entries = {path: recorded(path) for path in ledgers}
        events = tuple(entry.event for found in entries.values() for entry in found)
        repeats = tuple(entry.event for found in entries.values() for entry in found if entry.attempt)
        to_come = tuple(event for path, found in entries.items() for event in _to_come(path.with_name(AGREED), found))
        protect = str(known.get("protect", "client"))
        agreed_to = frozenset(path.parent.name for path in ledgers if path.with_name(AGREED).exists())
        return cls(
            client=str(known["client"]), cap=Cap(**known["cap"]), protect=protect, events=events, repeats=repeats,
            to_come=to_come, agreed_to=agreed_to,
        )  # fmt: skip

    def check_cap(self, *more: BaseEvent, repeats: Iterable[BaseEvent] = ()) -> None:
        """Raise a FederationError if these, with all that was recorded or agreed to, cost more than the cap.

        `repeats`: those that come again, with another sum.
        """
        if self.has_other_coins(more):
            raise FederationError(
                "plan", "one with secret coins and another one", "such a plan alone",
                "What is chosen after seeing answers adds up only where all records enter each answer.",
            )  # fmt: skip
        self.cap.check(self.epsilon(*more, repeats=repeats))

    def has_other_coins(self, more: Iterable[BaseEvent]) -> bool:
        """Whether a plan with secret coins would stand beside another one (docs/proof.md, section 8)."""
        others, more = (*self.events, *self.to_come), tuple(more)
        return bool(more) and bool(others) and any(isinstance(event, Sampled) for event in (*others, *more))

    def epsilon(self, *more: BaseEvent, repeats: Iterable[BaseEvent] = ()) -> float:
        """Of all that was recorded, agreed to, or is asked for; `repeats` as in `check_cap`."""
        first = tuple((Counter(self.events) - Counter(self.repeats)).elements())
        return self._cost((*first, *self.to_come, *more), (*self.repeats, *repeats))

    def _cost(self, events: tuple[BaseEvent, ...], repeats: tuple[BaseEvent, ...]) -> float:
        return spent_with_repeats(events, repeats, neighbours=self.cap.neighbours, delta=self.cap.delta)

    def not_agreed(self, plan: Plan) -> tuple[BaseEvent, ...]:
        """What the next answer to a plan adds: all that the plan asks for, or nothing where it was agreed to."""
        return () if plan.digest()[:32] in self.agreed_to else planned_events(plan)

    @property
    def spent(self) -> float:
        """Epsilon so far, at the cap's delta and under its relation."""
        return self._cost(tuple((Counter(self.events) - Counter(self.repeats)).elements()), self.repeats)


class CappedLedger(Ledger):
    """A ledger that takes no line beyond the client's cap."""

    def __init__(self, home: Path, path: Path, plan: Plan, entered: Entered | None = None) -> None:
        """`entered`: into the client's budget, which may refuse an answer that repeats one."""
        super().__init__(
            path, observer=plan.sums.observer, context=plan.digest(),
            journal=path.with_name("journal.jsonl") if entered is None else entered.journal,
            before_repeat=(lambda entry: None) if entered is None else entered.before_repeat,
        )  # fmt: skip
        self._home, self._agreed = home, planned_events(plan) if is_refined(plan) else ()

    def record(self, name: str, event: BaseEvent, fingerprint: str) -> int:
        """As ever, if what is new is within the cap.

        Where the first answer agreed to all of a plan, all of it is counted from then on, and its lines are not new.
        """
        is_new = all(known != fingerprint for _, known in self._fingerprints.get(name, []))
        if is_new and (name in self._attempts or not self._agreed):
            memory = Memory.read(self._home, but=self.path)
            if self._agreed:
                memory.check_cap(*self._agreed, repeats=(*repeated(self.entries), unsampled(event)))
            else:
                memory.check_cap(*(entry.event for entry in self.entries), event)
        return super().record(name, event, fingerprint)


def keep_agreed(folder: Path, plan: Plan) -> None:
    """Count all that this plan asks for from now on, whether its rounds end or not.

    A server that has seen the first answer could otherwise choose between the rounds to come and another plan, and
    such a choice costs more than either (docs/proof.md, section 8).
    """
    told = [{"event": to_json(event), "times": times} for event, times in Counter(planned_events(plan)).items()]
    write_json(folder / AGREED, {"events": told})


def _to_come(path: Path, entries: Iterable[Entry]) -> Iterable[BaseEvent]:
    """What was agreed to, without what has been recorded of it."""
    if not path.exists():
        return ()
    agreed = Counter[Event]()
    for row in read_json(path, "what a client has agreed to")["events"]:
        agreed[from_json(row["event"])] += int(row["times"])
    agreed.subtract(entry.event for entry in entries if entry.attempt == 0)
    return tuple(event for event in agreed.elements() if isinstance(event, BaseEvent))


def repeated(entries: Iterable[Entry]) -> tuple[BaseEvent, ...]:
    """What had to be answered again."""
    return tuple(entry.event for entry in entries if entry.attempt)


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
