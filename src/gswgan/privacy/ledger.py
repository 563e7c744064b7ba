"""The ledger: one line per answer, written ahead, hash-chained, one file per observer.

The format is our own, because a line must be on the disk before its answer exists: a crash can leave a line too many,
never one too few. Beside the public ledger there is a private journal with a keyed fingerprint of each exact
(noiseless) sum, by which a resumed run recognizes an answer that it repeats. The same name with the same fingerprint
gets the same noise, and nothing new is recorded. Anything else is a new answer with other noise and a new line. The
noise is named by the fingerprint itself, so this holds for copies as well.

The journal is written first, the ledger second, and the noise is drawn last. Lines of the journal that the ledger lacks
are added when it is opened again: after a crash between the two, for a ledger that was restored from an earlier copy,
or for a copied run folder that shares its journal with the other copies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.privacy.errors import LedgerError
from gswgan.privacy.events import (
    BaseEvent,
    Composed,
    DrawnOne,
    Event,
    Gaussian,
    Laplace,
    Sampled,
    from_json,
    to_json,
    unsampled,
)
from gswgan.privacy.storage import append_durably, check_size, drop_torn_tail, read_file, whole_lines

FORMAT_VERSION = 1
MAX_LEDGER_BYTES = 2**30
"""A million lines, the largest number of steps of a plan, take less than half of it."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One recorded answer."""

    name: str
    attempt: int
    event: BaseEvent


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def chained_line(content: dict[str, Any], previous: str) -> tuple[str, str]:
    """Return the content as a line with the digest of the line before it and its own, and its own digest."""
    body = {**content, "previous": previous}
    digest = _digest(body)
    return json.dumps({**body, "digest": digest}, sort_keys=True) + "\n", digest


class Ledger:
    """The append-only record of all answers that one observer has seen."""

    def __init__(
        self,
        path: Path,
        *,
        observer: str,
        context: str,
        journal: Path | None = None,
        before_repeat: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        """Open or create the ledger of one run (its `context`: the plan's digest) for one observer.

        `before_repeat` is called before an unplanned answer, which repeats one, is recorded; it may refuse by raising.
        """
        self.path, self.observer, self.context = path, observer, context
        self._before_repeat = before_repeat
        self._journal = journal
        self.entries: list[Entry] = []
        self._attempts: dict[str, int] = {}
        if path.exists():
            drop_torn_tail(path)
        if path.exists() and path.stat().st_size > 0:
            header, self.entries, self.head = read_ledger(path)
            self._size = path.stat().st_size
            if (header["observer"], header["context"]) != (observer, context):
                raise LedgerError(
                    "ledger",
                    str(path),
                    f"the ledger of plan {context} for observer {observer!r}",
                    "Start a new run.",
                )
        else:
            self.head, self._size = "", 0
            self._append({"format_version": FORMAT_VERSION, "observer": observer, "context": context, "index": 0})
        for entry in self.entries:
            self._attempts[entry.name] = entry.attempt + 1
        self._fingerprints: dict[str, list[tuple[int, str]]] = {}
        self._journal_size = 0
        if journal is not None and journal.exists():
            self._read_journal(journal)

    def record(self, name: str, event: BaseEvent, fingerprint: str) -> int:
        """Record an answer on the disk before it exists; return its attempt, which numbers the sums under this name.

        For an earlier, identical answer its attempt is returned and no line is added. A second attempt is recorded
        without its sampling: the same coins decided who took part, and the first answer may have shown them.
        """
        attempt = self._attempts.get(name, 0)
        for earlier, known in self._fingerprints.get(name, []):
            if known == fingerprint:
                return earlier
        entry = Entry(name=name, attempt=attempt, event=event if attempt == 0 else unsampled(event))
        if attempt > 0:
            self._before_repeat(entry)
        if self._journal is not None:
            check_size(self.path.stat().st_size, self._size)  # before anything is written
            row = {"name": name, "attempt": attempt, "event": to_json(entry.event), "fingerprint": fingerprint}
            text = json.dumps(row) + "\n"
            append_durably(self._journal, text, mode=0o600, expected_size=self._journal_size)
            self._journal_size += len(text)
        self._append_entry(entry)
        if self._journal is not None:  # known from now on, when it is in the ledger too
            self._fingerprints.setdefault(name, []).append((attempt, fingerprint))
        return attempt

    def total(self) -> Event:
        """Return all answers so far as one event."""
        return compose(self.entries)

    def _read_journal(self, journal: Path) -> None:
        """Read the fingerprints of earlier answers, and add the lines that this ledger lacks."""
        drop_torn_tail(journal)
        rows, self._journal_size = read_journal(journal)
        recorded = {(entry.name, entry.attempt) for entry in self.entries}
        for entry, fingerprint in rows:
            if (entry.name, entry.attempt) not in recorded:
                if entry.attempt != self._attempts.get(entry.name, 0):
                    line = (
                        f"a line for {entry.name!r}, attempt {self._attempts.get(entry.name, 0)}, before the journal's"
                    )
                    raise LedgerError("ledger", str(self.path), f"{line} attempt {entry.attempt}", "Restore it.")
                self._append_entry(entry)
            self._fingerprints.setdefault(entry.name, []).append((entry.attempt, fingerprint))

    def _append_entry(self, entry: Entry) -> None:
        content = {"name": entry.name, "attempt": entry.attempt, "event": to_json(entry.event)}
        self._append({"index": len(self.entries) + 1, **content})
        self.entries.append(entry)
        self._attempts[entry.name] = entry.attempt + 1

    def _append(self, content: dict[str, Any]) -> None:
        text, head = chained_line(content, self.head)
        append_durably(self.path, text, expected_size=self._size)
        self.head, self._size = head, self._size + len(text)


def compose(entries: Iterable[Entry]) -> Event:
    """Return the entries as one event."""
    return Composed(events=tuple(entry.event for entry in entries))


def read_journal(path: Path) -> tuple[list[tuple[Entry, str]], int]:
    """Return each announced answer of a private journal with its fingerprint, and the size of the journal."""
    found: dict[tuple[str, int], tuple[Entry, str]] = {}
    try:
        raw = read_file(path, MAX_LEDGER_BYTES)
        for text in raw.decode().splitlines():
            row = json.loads(text)
            entry = _entry(row)
            pair = (entry, str(row["fingerprint"]))
            if found.setdefault((entry.name, entry.attempt), pair) != pair:
                raise ValueError(f"two sums for {entry.name!r}, attempt {entry.attempt}")
        return list(found.values()), len(raw)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise LedgerError("journal", str(path), f"the journal of this run ({wrong})", "Start a new run.") from wrong


def read_chain(path: Path, *, torn: bool = False) -> tuple[list[dict[str, Any]], str]:
    """Return the lines of a file written by `chained_line` without their digests, and the last digest (the head).

    With `torn` an incomplete last line is left out: nothing that it announces has happened.
    """
    rows: list[dict[str, Any]] = []
    previous, raw = "", read_file(path, MAX_LEDGER_BYTES)
    for index, text in enumerate((whole_lines(raw) if torn else raw).decode().splitlines()):
        row = json.loads(text)
        digest = row.pop("digest")
        if row["index"] != index or row["previous"] != previous or _digest(row) != digest:
            raise ValueError(f"the chain breaks at line {index + 1}")
        rows.append(row)
        previous = digest
    return rows, previous


def read_ledger(path: Path, *, torn: bool = False) -> tuple[dict[str, Any], list[Entry], str]:
    """Return header, entries and head digest of a ledger with an unbroken chain; refuse anything else.

    With `torn` an incomplete last line is left out, and stays in the file.
    """
    try:
        rows, head = read_chain(path, torn=torn)
        if not rows or rows[0]["format_version"] != FORMAT_VERSION:
            raise ValueError(f"no header of format_version {FORMAT_VERSION}")
        rows[0]["observer"], rows[0]["context"]
        entries = [_entry(row) for row in rows[1:]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise LedgerError("ledger", str(path), f"an unbroken ledger ({wrong})") from wrong
    return rows[0], entries, head


def _entry(row: dict[str, Any]) -> Entry:
    name, attempt, event = row["name"], row["attempt"], from_json(row["event"])
    if not isinstance(event, Gaussian | Laplace | Sampled | DrawnOne):
        raise ValueError(f"{type(event).__name__} is not a single release")
    if type(name) is not str or type(attempt) is not int or attempt < 0:
        raise ValueError("a release has a name and the number of its attempt")
    return Entry(name=name, attempt=attempt, event=event)
