"""What a release tells about itself. Nothing here can see the private part of a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.api import load
from gswgan.critics.kernel.embedding import Embedding
from gswgan.critics.kernel.features import KernelSettings
from gswgan.errors import PrivacyError, RunError, short
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, DrawnOne, Event, PrivacyCost
from gswgan.privacy.events import tally
from gswgan.privacy.filter import with_repeats
from gswgan.privacy.ledger import compose, read_ledger
from gswgan.run.folder import RunFolder, find_release, read_json
from gswgan.run.publish import cost_from_statement, cost_of_ledger

MAX_SHOWN_CLASSES = 20
"""Classes with samples on the page."""

STRIP = 8
"""Images side by side."""

_FILES = ("model", "privacy", "generator", "embedding", "ledger", "card", "samples")


@dataclass(frozen=True, kw_only=True)
class Release:
    """All that the public page is made of."""

    plan: Plan
    cost: PrivacyCost | None  # None: the method has no guarantee, and so no number; it is void
    void: str | None
    claimed: Mapping[str, Any] | None
    lower_bound: Mapping[str, Any] | None
    releases: int
    repeated: int
    head: str
    max_detection_rate: float | None
    embedding: Embedding | None
    kept: list[int]
    samples: dict[int, np.ndarray]

    @property
    def left_out(self) -> list[str]:
        """Classes that the generator does not make."""
        return [name for label, name in enumerate(self.plan.facts.class_names) if label not in set(self.kept)]


def release_alone(folder: RunFolder) -> RunFolder:
    """The same release in a folder object that has no private part: every private path lies where nothing is."""
    alone = RunFolder(folder.release / "nothing-private")
    for name in ("release", *_FILES):
        setattr(alone, name, getattr(folder, name))
    return alone


def read_release(path: Path) -> Release:
    """Read a finished run, or its release folder alone; the stated guarantee is checked against the ledger."""
    folder = release_alone(find_release(path))
    if not folder.is_finished:
        raise RunError("run", str(path), "a finished run", "Its ledger is still growing: gswgan train --resume first.")
    plan = folder.plan()
    stated = read_json(folder.privacy, "the privacy.json of a finished run")
    cost = _checked_cost(folder, plan, stated)
    _, entries, head = read_ledger(folder.ledger) if cost is not None else ({}, [], "none")
    kept, samples = _draw(folder, plan)
    void = plan.void or stated.get("void")
    covered, _ = with_repeats(plan.releases(), tally(compose(entries)))
    return Release(
        plan=plan,
        cost=cost,
        void=void,
        claimed=stated.get("claimed"),
        lower_bound=stated.get("lower_bound"),
        releases=len(entries),
        repeated=sum(entry.attempt > 0 for entry in entries),
        head=head,
        max_detection_rate=None if void or cost is None else max_detection_rate(covered, cost.neighbours),
        embedding=Embedding.load(folder.embedding) if isinstance(plan.critic, KernelSettings) else None,
        kept=kept,
        samples=samples,
    )


def _checked_cost(folder: RunFolder, plan: Plan, stated: Mapping[str, Any]) -> PrivacyCost | None:
    cost = cost_of_ledger(plan, folder)
    if cost is None:
        return None  # whatever it states: `void` comes from the plan
    least, found = cost.epsilon * (1 - 1e-3), (stated.get("epsilon"), stated.get("delta"))
    if type(found[0]) is not float or not found[0] >= least or found[1] != cost.delta:
        raise PrivacyError(
            f"{folder.privacy}: epsilon and delta", tuple(map(short, found)),
            f"({least:.5g}, {cost.delta:g}), which its ledger costs",
            "The file was damaged or edited: copy the release again.",
        )  # fmt: skip
    return cost_from_statement(stated)


def max_detection_rate(event: Event, neighbours: str, false_alarms: float = 0.01) -> float | None:
    """The most that any attack on one unit is right, if it accuses falsely with this probability.

    H_{e^epsilon}(P || Q) <= delta(epsilon) means P(A) <= e^epsilon Q(A) + delta(epsilon) for every test A and every
    epsilon; the least of these bounds is the trade-off curve. None where we have no privacy curve (the paper's draw).
    """
    drawn = any(isinstance(single, DrawnOne) for single in tally(event))
    if drawn or importlib.util.find_spec("dp_accounting") is None:
        return None
    epsilons = np.linspace(0, -np.log(false_alarms), 60)  # beyond, the bound is above 1
    deltas = Accountant(neighbours).delta(event, epsilons)
    return float(min(1.0, (deltas + np.exp(epsilons) * false_alarms).min()))


def _draw(folder: RunFolder, plan: Plan) -> tuple[list[int], dict[int, np.ndarray]]:
    """Which classes the generator makes, and some images of each of the first: the same ones every time."""
    model = load(folder.release, device="cpu")
    model.sample(1, seed=0)  # says what is wrong with a damaged release
    kept: list[int] = read_json(folder.model, "model.json")["labels"]
    count = STRIP if plan.facts.pixels > 2000 else 2 * STRIP
    count = 8 * STRIP if plan.facts.classes == 1 else count
    labels = np.repeat(np.array(kept[:MAX_SHOWN_CLASSES]), count)
    images, _ = model.sample(len(labels), labels, seed=0)
    return kept, dict(zip(kept[:MAX_SHOWN_CLASSES], np.split(images, len(labels) // count)))
