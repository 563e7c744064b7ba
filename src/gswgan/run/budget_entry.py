"""How a run gets into its budget: known by its key, with the journal that its copies share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gswgan.data import ImageData, ImageStream
from gswgan.plan.plan import Plan
from gswgan.privacy import Event, Streams
from gswgan.run.budget import Budget
from gswgan.run.folder import Entered, RunFolder, read_json


def run_token(secret: Streams) -> str:
    """The id of a run in its budget. It follows from the key: a copy with the key is the same run, and no other is."""
    return secret.seed("budget").hex()


def enter(folder: RunFolder, plan: Plan, data: ImageData | ImageStream | None, secret: Streams) -> Entered | None:
    """Enter the run into its budget, if it has one. Without data it is a run of clients."""
    if not folder.budget.exists():
        return None
    whose = data if data is not None else read_json(folder.rounds, "the round.json of a federated run")["clients"]
    budget = Path(str(read_json(folder.budget, "the budget of the run").get("budget")))
    return enter_into(budget, plan, whose, secret, where=folder.root)


def enter_into(
    path: Path,
    plan: Plan,
    data: ImageData | ImageStream | Sequence[str],
    secret: Streams,
    *,
    where: Path,
    total: Event | None = None,
) -> Entered:
    """Enter the run with this key into the budget at `path`."""
    budget, run = Budget(path), run_token(secret)
    journal = budget.reserve(run, plan, data, where=str(where.resolve()), total=total)
    return Entered(journal=journal, before_repeat=lambda entry: budget.add_repeat(run, entry))
