"""What a release tells about itself. Nothing here can see the private part of a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.critics.kernel.embedding import Embedding
from gswgan.errors import PrivacyError, RunError, short
from gswgan.generators.sampling import channels_last, draw_images
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, DrawnOne, Event, PrivacyCost, Repeated
from gswgan.privacy.events import BaseEvent, tally
from gswgan.privacy.filter import with_repeats
from gswgan.privacy.ledger import compose, read_ledger
from gswgan.run.folder import RunFolder, find_release, read_json
from gswgan.run.publish import cost_from_statement, cost_of_ledger
from gswgan.run.released import ReleasedModel, load, read_network

MAX_SHOWN_CLASSES = 20
"""Classes with samples on the page."""

STRIP = 8
"""Images side by side."""

_FILES = ("model", "privacy", "generator", "first_generator", "embedding", "ledger", "card", "samples")


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
    left_out: list[str]  # classes that the generator does not make
    samples: dict[int, np.ndarray]
    first_samples: dict[int, np.ndarray]  # of the generator of an earlier stage, where one is published
    stages: tuple[Stage, ...]  # where there are several, in the order of the ledger


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The releases of one kind, as the ledger has them, and what they would cost alone, at the delta of the whole."""

    event: BaseEvent
    releases: int
    epsilon: float | None  # None: no accountant is here


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
    model = load(folder.release, device="cpu")
    plan = model.plan
    stated = read_json(folder.privacy, "the privacy.json of a finished run")
    cost = cost_of_ledger(plan, folder)
    cost = None if cost is None else check_stated_cost(folder, cost, stated)  # None: void, whatever it states
    _, entries, head = read_ledger(folder.ledger) if cost is not None else ({}, [], "none")
    void = plan.void or stated.get("void")
    covered, _ = with_repeats(plan.releases(), tally(compose(entries)))
    return Release(
        plan=plan, cost=cost, void=void, claimed=stated.get("claimed"), lower_bound=stated.get("lower_bound"),
        releases=len(entries), repeated=sum(entry.attempt > 0 for entry in entries), head=head,
        max_detection_rate=None if void or cost is None else max_detection_rate(covered, cost.neighbours),
        embedding=Embedding.load(folder.embedding) if plan.critic.can_stream else None,
        kept=model.kept.tolist(), left_out=model.left_out, samples=_draw(model), first_samples=_draw_first(model),
        stages=_stages(plan, tally(compose(entries)), cost),
    )  # fmt: skip


def _stages(plan: Plan, found: Mapping[BaseEvent, int], cost: PrivacyCost | None) -> tuple[Stage, ...]:
    """By kind of release, for a plan whose stages each publish a generator."""
    if cost is None or plan.critic.first_generator is None:
        return ()
    known, accountant = importlib.util.find_spec("dp_accounting") is not None, Accountant(cost.neighbours)
    stages = []
    for event, times in found.items():
        epsilon = accountant.epsilon(Repeated(event=event, times=times), cost.delta) if known else None
        stages.append(Stage(event=event, releases=times, epsilon=epsilon))
    return tuple(stages)


def _draw_first(model: ReleasedModel) -> dict[int, np.ndarray]:
    """Some images of the generator of an earlier stage."""
    first, path = model.plan.critic.first_generator, model.folder.first_generator
    if first is None or not path.exists():
        return {}
    labels = np.repeat(model.kept[:MAX_SHOWN_CLASSES], STRIP)
    network = read_network(path, first, model.plan.facts)
    images = channels_last(draw_images(network, first, labels, np.random.default_rng(0)))
    return dict(zip(model.kept.tolist(), np.split(images, len(labels) // STRIP)))


def check_stated_cost(folder: RunFolder, cost: PrivacyCost, stated: Mapping[str, Any]) -> PrivacyCost:
    """The guarantee that privacy.json states, where it is not less than what the ledger costs."""
    least, found = cost.epsilon * (1 - 1e-3), (stated.get("epsilon"), stated.get("delta"))
    if type(found[0]) is not float or not found[0] >= least or found[1] != cost.delta:
        raise PrivacyError(
            f"{folder.privacy}: epsilon and delta", tuple(map(short, found)),
            f"({cost.epsilon:.5g}, {cost.delta:g}), which its ledger costs",
            "The file was damaged or edited: copy the release again.",
        )  # fmt: skip
    found_cost = cost_from_statement(stated)
    assert found_cost is not None
    return found_cost


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


def _draw(model: ReleasedModel) -> dict[int, np.ndarray]:
    """Some images of each of the first classes that the generator makes: the same ones every time."""
    facts, kept = model.plan.facts, model.kept[:MAX_SHOWN_CLASSES]
    count = STRIP if facts.pixels > 2000 else 2 * STRIP
    count = 8 * STRIP if facts.classes == 1 else count
    images, _ = model.sample(count * len(kept), np.repeat(kept, count), seed=0)
    return dict(zip(kept.tolist(), np.split(images, len(kept))))
