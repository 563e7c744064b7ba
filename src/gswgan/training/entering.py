"""How a run gets into its book: known by its key, with the journal that its copies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gswgan.data import ImageData, ImageStream
from gswgan.privacy import Event, Streams
from gswgan.privacy.ledger import Entry
from gswgan.training.book import Book
from gswgan.training.plan import Plan
from gswgan.training.run_folder import RunFolder, read_json


@dataclass(frozen=True, kw_only=True)
class Entered:
    """A run that is in its book."""

    journal: Path
    """What it and its copies have released. In place of a journal in the run folder."""

    before_repeat: Callable[[Entry], None]
    """To be asked before a release is repeated."""


def run_token(secret: Streams) -> str:
    """What a book knows a run by: it follows from the key, so a copy with the key is the same run, and no other is."""
    return secret.seed("book").hex()


def enter(folder: RunFolder, plan: Plan, data: ImageData | ImageStream | None, secret: Streams) -> Entered | None:
    """Enter the run into its book, if it has one. Without data it is a run of clients."""
    if not folder.book.exists():
        return None
    whose = data if data is not None else read_json(folder.rounds, "the round.json of a federated run")["clients"]
    book = Path(str(read_json(folder.book, "the book of the run").get("book")))
    return enter_into(book, plan, whose, secret, where=folder.root)


def enter_into(
    path: Path,
    plan: Plan,
    data: ImageData | ImageStream | Sequence[str],
    secret: Streams,
    *,
    where: Path,
    total: Event | None = None,
) -> Entered:
    """Enter the run with this key into the book at `path`."""
    book, run = Book(path), run_token(secret)
    journal = book.reserve(run, plan, data, where=str(where.resolve()), total=total)
    return Entered(journal=journal, before_repeat=lambda entry: book.add_repeat(run, entry))
