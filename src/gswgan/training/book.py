"""The privacy book: what all runs over one body of data cost together, against one budget.

A run enters all its planned releases before the first of them, under a lock, or is refused; what is entered stays,
whatever becomes of the run. A release that is repeated after a stop is entered before it happens as well. So the book
can say too much, never too little.

Everything in a book counts together. Beside each run stands a mark of its data: a keyed digest of images, labels and
persons as they were read, the very arrays that a run is bound to (`data_digest`); where the data stays with clients, of
the list of their ids. Two marks may be two views of the
same people (scaled, without labels, one record more), which no digest can tell: so other data is marked, and still
counted.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.util
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.data import ImageData, ImageStream
from gswgan.errors import LedgerError, PrivacyError, RunError
from gswgan.privacy import Accountant
from gswgan.privacy.events import Composed, Event, check_neighbours, from_json, to_json
from gswgan.privacy.ledger import Entry, chained_line, read_chain
from gswgan.privacy.storage import append_durably, drop_torn_tail, locked
from gswgan.training.plan import Plan
from gswgan.training.run_folder import RunFolder, data_digest, read_json
from gswgan.training.settings import check_delta, check_epsilon

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Booked:
    """One run in a book."""

    run: str
    where: str
    when: str
    what: str
    data: str
    relation: tuple[str, str, str]  # neighbours, unit, observer
    total: Event
    repeated: int


class Book:
    """A file with a budget and the runs that were entered."""

    def __init__(self, path: Path) -> None:
        """Open a book; `Book.create` makes one."""
        self.path = path.resolve()
        if not self.path.is_file():
            todo = f"Make one with a budget: gswgan book {path} --epsilon 10 --delta 1e-5"
            raise RunError("book", str(path), "a privacy book", todo)
        if importlib.util.find_spec("dp_accounting") is None:
            raise RunError("dp-accounting", None, "an accountant to add up costs with", "pip install dp-accounting")
        with self._locked():
            self._read()

    @classmethod
    def create(cls, path: Path, *, epsilon: float, delta: float) -> Book:
        """A new book with this budget, which cannot be changed later."""
        header = {"format_version": FORMAT_VERSION, "epsilon": check_epsilon(epsilon), "delta": check_delta(delta)}
        text, _ = chained_line({**header, "key": secrets.token_hex(32), "index": 0}, "")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            append_durably(path, text, mode=0o600)
        except FileExistsError as wrong:
            raise RunError("book", str(path), "a new file", "The budget of a book cannot be changed.") from wrong
        except OSError as wrong:
            expected = f"a new file in a folder that is there ({wrong.strerror})"
            raise RunError("book", str(path), expected, "Make the folder, or choose another file.") from wrong
        return cls(path)

    def check(self, plan: Plan) -> float:
        """Epsilon of all runs with this one, or a PrivacyError if there is no room for it. Nothing is entered."""
        with self._locked():
            self._read()
            return self._admit(plan, plan.total())

    def reserve(
        self,
        run: str,
        plan: Plan,
        data: ImageData | ImageStream | Sequence[str],
        *,
        where: str,
        total: Event | None = None,
    ) -> None:
        """Enter a run with all that it will release, or refuse it; a run that is in the book is not entered again.

        `data`: or the ids of the clients who have it. `total`: the most that is released, where it is not the plan's.
        """
        total = plan.total() if total is None else total
        with self._locked():
            self._read()
            if run in {booked.run for booked in self.runs}:
                return
            self._admit(plan, total)
            cost = plan.guarantee
            assert cost is not None
            assert total is not None
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            row: dict[str, Any] = {"run": run, "where": where, "when": now}
            row["what"] = f"{plan.method} {plan.preset}: {plan.facts.data}"
            row |= {"data": _mark(data, self._key), "releases": to_json(total)}
            self._append({**row, "relation": [cost.neighbours, cost.unit, cost.observer]})

    def add_repeat(self, run: str, entry: Entry) -> None:
        """Enter a release that a run has to make again, before it does; refuse it where there is no room."""
        with self._locked():
            self._read()
            row = {"repeat_of": run, "name": entry.name, "attempt": entry.attempt}
            if any(row.items() <= known.items() for known in self._rows):
                return
            totals = [*(booked.total for booked in self.runs), entry.event]
            self._afford(totals, "The run stops before the release. On the machine where it began it repeats exactly.")
            self._append({**row, "releases": to_json(entry.event)})

    def spent(self) -> float:
        """Epsilon of everything in the book, at its delta."""
        return self._together([booked.total for booked in self.runs])

    def alone(self, booked: Booked) -> float:
        """Epsilon of one run, at the book's delta."""
        return self._together([booked.total])

    def _admit(self, plan: Plan, total: Event | None) -> float:
        cost = plan.guarantee
        if cost is None or total is None or plan.void is not None:
            raise PrivacyError("book", str(self.path), "a run with a guarantee", "No budget has room for one without.")
        relation = (cost.neighbours, cost.unit, cost.observer)
        if self.runs and relation != self.runs[0].relation:
            raise PrivacyError(
                "book", str(self.path), f"{self.runs[0].relation}, as the runs in it, not {relation}",
                "Costs of different units or relations do not add up: keep a book for each.",
            )  # fmt: skip
        return self._afford([*(booked.total for booked in self.runs), total], "Nothing was released.", relation[0])

    def _afford(self, totals: Sequence[Event], todo: str, neighbours: str | None = None) -> float:
        epsilon = self._together(totals, neighbours)
        if not epsilon <= self.epsilon:
            found = f"epsilon {epsilon:.4g} at delta {self.delta:g} for {len(self.runs)} run(s) and this one"
            raise PrivacyError("book", found, f"at most the budget of {self.epsilon:.4g} ({self.path})", todo)
        return epsilon

    def _together(self, totals: Sequence[Event], neighbours: str | None = None) -> float:
        """Epsilon of these at the book's delta: composed as one, or where no accountant does that, added up."""
        if not totals:
            return 0.0
        accountant = Accountant(neighbours or self.runs[0].relation[0])
        try:
            return accountant.epsilon(Composed(events=tuple(totals)), self.delta)
        except PrivacyError:  # several kinds of draws: basic composition, an equal part of delta for each
            return sum(accountant.epsilon(total, self.delta / len(totals)) for total in totals)

    def _append(self, content: dict[str, Any]) -> None:
        text, _ = chained_line({**content, "index": len(self._rows)}, self._head)
        append_durably(self.path, text, mode=0o600)
        self._read()

    def _read(self) -> None:
        try:
            drop_torn_tail(self.path)  # it was being written when its run died, before anything was released
            self._rows, self._head = read_chain(self.path)
            header, *rows = self._rows
            if header["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format_version {header['format_version']}")
            self.epsilon, self.delta = check_epsilon(header["epsilon"]), check_delta(header["delta"])
            self._key = bytes.fromhex(header["key"])
            self.runs = [_booked(row, rows) for row in rows if "run" in row]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
            expected = f"a privacy book that is whole ({wrong})"
            raise LedgerError(
                "book", str(self.path), expected, "Restore it: without it nobody knows what is spent."
            ) from wrong

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time, the others wait. The lock is a file beside the book, and stays there."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self.path.with_name(self.path.name + ".lock"), wait=True))
            except OSError as wrong:
                raise RunError("book", str(self.path), f"a folder that can be written ({wrong.strerror})") from wrong
            yield


def _booked(row: dict[str, Any], rows: list[dict[str, Any]]) -> Booked:
    neighbours, unit, observer = row["relation"]
    repeats = [from_json(other["releases"]) for other in rows if other.get("repeat_of") == row["run"]]
    return Booked(
        run=row["run"], where=row["where"], when=row["when"], what=row["what"], data=row["data"],
        relation=(check_neighbours(neighbours), unit, observer), repeated=len(repeats),
        total=Composed(events=(from_json(row["releases"]), *repeats)),
    )  # fmt: skip


def new_entry(book: Book) -> dict[str, str]:
    """What a run folder keeps of the book that it will enter."""
    return {"book": str(book.path), "run": secrets.token_hex(16)}


def enter(folder: RunFolder, plan: Plan, data: ImageData | ImageStream | None) -> Callable[[Entry], None] | None:
    """Enter the run into its book, if it has one; returns what to ask before a release is repeated.

    Without data it is a run of clients.
    """
    if not folder.book.exists():
        return None
    whose = data if data is not None else read_json(folder.rounds, "the round.json of a federated run")["clients"]
    return enter_from(folder.book, plan, whose, where=folder.root)


def enter_from(
    note: Path, plan: Plan, data: ImageData | ImageStream | Sequence[str], *, where: Path, total: Event | None = None
) -> Callable[[Entry], None]:
    """Enter into the book that `note` names (`new_entry`); returns what to ask before a release is repeated."""
    told = read_json(note, "the book of the run")
    book, run = Book(Path(told["book"])), str(told["run"])
    book.reserve(run, plan, data, where=str(where.resolve()), total=total)
    return lambda entry: book.add_repeat(run, entry)


def _mark(data: ImageData | ImageStream | Sequence[str], key: bytes) -> str:
    if isinstance(data, ImageData | ImageStream):
        return data_digest(data, key)
    return hashlib.blake2b(json.dumps(["clients", *sorted(data)]).encode(), key=key).hexdigest()
