"""Real runs on made images: folder, key, ledger, mechanism and critic are those that `gswgan train` makes of a plan.

The audit plants what a worst-case critic or gradient would say, and nothing else: who takes part, the clip, the sum,
the ledger and the noise come from the run's own wiring, so an error there is an error that the audit can see. The key
alone is fixed by the audit's seed (`insecure_reproducible`): nobody's data is at stake, and a result can be repeated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterator
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
from gswgan.privacy.events import BaseEvent
from gswgan.privacy.ledger import read_ledger
from gswgan.training.centralized import make_critic
from gswgan.training.plan import Facts, Plan
from gswgan.training.planner import guarantee
from gswgan.training.run_folder import RunFolder

CPU = torch.device("cpu")
SIDE = 8
GREY = 128

Statistics = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Wired:
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
def wired(plan: Plan, data: ImageData) -> Iterator[Wired]:
    """The critic that a training with this plan and data would use; nothing is released yet."""
    with scratch() as place:
        folder = RunFolder.create(place / "run", plan)
        critic: Critic = make_critic(plan, folder, data, CPU)
        yield Wired(critic=critic, folder=folder)


def restated(plan: Plan, *, seed: int, **changes: Any) -> Plan:
    """The plan with other settings and the guarantee of these, its key fixed by the seed."""
    assert plan.guarantee is not None
    draft = dataclasses.replace(plan, insecure_reproducible=True, seed=seed, curve=(), **changes)
    total = draft.total()
    assert total is not None
    return dataclasses.replace(draft, guarantee=guarantee(total, delta=plan.guarantee.delta))


def seed_of(*name: object) -> int:
    """A seed for each part of an audit: the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=8).digest(), "little") >> 1


def made_facts(records: int, classes: int = 1, side: int = SIDE) -> Facts:
    """Facts of made grey images."""
    names = tuple(map(str, range(classes))) if classes > 1 else ("all",)
    return Facts(
        data="audit",
        records=records,
        persons=None,
        classes=classes,
        class_names=names,
        labelled=classes > 1,
        image_size=side,
        channels=1,
    )


def made_data(facts: Facts, world: int, *, others: int = GREY) -> ImageData:
    """Uniform images; record 0 is the changed one: white in the first world, black in the second."""
    images = np.full((facts.records, 1, facts.image_size, facts.image_size), others, dtype=np.uint8)
    images[0] = 255 if world == 1 else 0
    labels = np.zeros(facts.records, np.int64) if facts.labelled else None
    return ImageData(
        name=facts.data, images=images, labels=labels, classes=facts.classes, class_names=facts.class_names
    )


def opinion(images: torch.Tensor) -> torch.Tensor:
    """What a record of `made_data` says, by its last pixel: 1 (white), -1 (black) or 0 (grey), for 8-bit images."""
    return (images[:, -1, -1, -1].to(torch.float32) - GREY).sign()


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Real releases of one kind along the worst direction, in units of the noise, and the law they should follow."""

    name: str
    law: StepLaw
    first: Statistics
    second: Statistics

    def p_value(self) -> float:
        """That the real releases of both worlds have this law (Kolmogorov-Smirnov)."""
        worst = 1.0
        for world, real in ((1, self.first), (2, self.second)):
            model = self.law.draw((20 * len(real), 1), world, np.random.default_rng([len(real), world]))
            worst = min(worst, float(ks_2samp(real.ravel(), model.ravel()).pvalue))
        return worst
