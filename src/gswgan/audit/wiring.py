"""Real runs on artificial images: folder, key, ledger, mechanism and critic are those of `gswgan train`.

The audit plants what a worst-case critic or gradient would say, and nothing else: who takes part, the clip, the sum,
the ledger and the noise come from the run's own wiring, so an error there is an error that the audit can see. The key
alone is fixed by the audit's seed (`insecure_reproducible`): no real data is used, and a result can be repeated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from gswgan.audit.step_law import StepLaw
from gswgan.critics import Critic
from gswgan.data import ImageData
from gswgan.errors import AuditError
from gswgan.plan.facts import Facts
from gswgan.plan.make import guarantee
from gswgan.plan.plan import Draft, Plan
from gswgan.privacy.events import BaseEvent, gaussian_of
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic

CPU = torch.device("cpu")
SIDE = 8
GREY = 128
ACROSS = 200
"""Coordinates of a release that are looked at across the worst direction."""


Statistics = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RealRun:
    """A critic in its run folder."""

    critic: Any
    folder: RunFolder

    def check_ledger(self, expected: list[BaseEvent]) -> None:
        """The ledger on the disk must have one line, with the plan's event, for each release that was seen."""
        _, entries, _ = read_ledger(self.folder.ledger)
        if [entry.event for entry in entries] != expected:
            raise AuditError("ledger", f"{len(entries)} lines", f"{len(expected)}, one for each release")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the runs: in memory where there is such a place, since every line of a ledger is flushed."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gswgan-audit-", dir=place) as name:
        yield Path(name)


@contextmanager
def open_real_run(plan: Plan, data: ImageData) -> Iterator[RealRun]:
    """The critic that a training with this plan and data would use; nothing is released yet."""
    with scratch() as place:
        folder = RunFolder.create(place / "run", plan)
        critic: Critic = make_critic(plan, folder, data, CPU)
        yield RealRun(critic=critic, folder=folder)


def restated(plan: Plan, *, seed: int, **changes: Any) -> Plan:
    """The plan with other settings and the guarantee of these, its key fixed by the seed."""
    assert plan.guarantee is not None
    parts = {field.name: getattr(plan, field.name) for field in dataclasses.fields(Draft)}
    total = Draft(**(parts | changes)).total()
    assert total is not None
    cost = guarantee(total, delta=plan.guarantee.delta, unit=plan.guarantee.unit)
    return dataclasses.replace(
        plan, **changes, guarantee=cost, curve=(), claimed=None, lower_bound=None, seed=seed, insecure_reproducible=True
    )


def seed_of(*name: object) -> int:
    """A seed for each part of an audit: the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=8).digest(), "little") >> 1


def made_facts(records: int, classes: int = 1, side: int = SIDE, persons: int | None = None) -> Facts:
    """Facts of made grey images; the persons, if there are any, have equally many each."""
    names = tuple(map(str, range(classes))) if classes > 1 else ("all",)
    return Facts(
        data="audit", records=records, persons=persons, classes=classes, class_names=names, labelled=classes > 1,
        image_size=side, channels=1,
    )  # fmt: skip


def made_data(facts: Facts, world: int, *, others: int = GREY) -> ImageData:
    """Uniform images; record (or person) 0 is the changed one: white in the first world, black in the second."""
    images = np.full((facts.records, 1, facts.image_size, facts.image_size), others, dtype=np.uint8)
    whose = np.arange(facts.records) % (facts.persons or facts.records)
    images[whose == 0] = 255 if world == 1 else 0
    labels = np.zeros(facts.records, np.int64) if facts.labelled else None
    return ImageData(
        name=facts.data, images=images, labels=labels, classes=facts.classes, class_names=facts.class_names,
        persons=whose if facts.persons else None, person_ids=tuple(map(str, range(facts.persons or 0))),
    )  # fmt: skip


def sign_of_record(images: torch.Tensor) -> torch.Tensor:
    """What a record of `made_data` says, by its last pixel: 1 (white), -1 (black) or 0 (grey), for 8-bit images."""
    return (images[:, -1, -1, -1].to(torch.float32) - GREY).sign()


class ReleaseStatistics:
    """What releases show along the worst direction and across it, in units of the noise."""

    def __init__(self, direction: Statistics, event: BaseEvent, *, middle: Statistics | float = 0.0) -> None:
        """`middle`: what a release without noise would be, half way between the two worlds."""
        self._direction = direction / np.linalg.norm(direction)
        self._middle, self.event = middle, event
        self._along: list[float] = []
        self._across: list[Statistics] = []

    def add(self, released: Statistics) -> None:
        """One release."""
        seen = (released - self._middle).ravel() / gaussian_of(self.event).noise_std
        along = float(seen @ self._direction)
        step = max(1, len(seen) // ACROSS)
        self._along.append(along)
        self._across.append((seen - along * self._direction)[::step])

    def extend(self, other: ReleaseStatistics) -> None:
        """What another run of the same kind showed."""
        self._along += other._along
        self._across += other._across

    def __len__(self) -> int:
        return len(self._along)

    @property
    def statistics(self) -> tuple[Statistics, Statistics]:
        """Along and across."""
        return np.array(self._along), np.concatenate(self._across)


def watch(mechanism: Any, seen: ReleaseStatistics, shown: Callable[[Any], Statistics]) -> ReleaseStatistics:
    """Add what `shown` makes of every answer of the mechanism to the statistics."""
    answer = mechanism.answer

    def watched(*args: Any, **options: Any) -> Any:
        found = answer(*args, **options)
        seen.add(shown(found))
        return found

    mechanism.answer = watched
    return seen


def alternating(width: int) -> torch.Tensor:
    """A unit vector whose entries alternate in sign: noise that is shared between coordinates cancels out and shows."""
    return (1.0 - 2.0 * (torch.arange(width) % 2)) / math.sqrt(width)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Real releases of one kind in both worlds, in units of the noise, and the law that they should follow."""

    name: str
    law: StepLaw
    first: Statistics
    second: Statistics

    def p_value(self) -> float:
        """That the real releases have this law (Kolmogorov-Smirnov): each world, and both where they are mirrored."""
        pools = [(1, self.first), (2, self.second)]
        if self.law.out == 0:
            pools.append((1, np.concatenate([self.first, -self.second])))
        worst = 1.0
        for world, real in pools:
            model = self.law.draw((max(20_000, 4 * len(real)), 1), world, np.random.default_rng([len(real), world]))
            worst = min(worst, float(ks_2samp(real, model.ravel()).pvalue))
        return worst


NOISE = StepLaw(rate=1.0, out=0.0, size=0.0)
"""Across the worst direction a release is noise alone."""


def observed(name: str, first: ReleaseStatistics, second: ReleaseStatistics) -> list[Observed]:
    """Both worlds of one kind of release: along the direction as its event says, across it noise."""
    (along, across), (other_along, other_across) = first.statistics, second.statistics
    return [
        Observed(name=name, law=StepLaw.of(first.event), first=along, second=other_along),
        Observed(name=f"noise of {name}", law=NOISE, first=across, second=other_across),
    ]
