"""The ranges of the numbers in a plan, each written at its field: `width: Width`, or `Annotated[int, Range(1, 64)]`.

`gswgan.plan.settings.check_ranges` reads them. Dataclasses of the standard library carry them, and not msgspec or
pydantic, so that a plan loads where nothing can be installed and every message names field, value and range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

MAX_STEPS = 1_000_000

BELOW_ONE = 1 - 1e-9

OMIT_DEFAULT = {"omit_default": True}
"""Metadata of a field that plain data does not have where it is the default: it is younger than some saved plans."""


@dataclass(frozen=True)
class Range:
    """The least and the largest number that a field may have; for a field of several numbers, each of them."""

    least: float
    most: float


Steps = Annotated[int, Range(1, MAX_STEPS)]
Updates = Annotated[int, Range(1, 10_000)]
Batch = Annotated[int, Range(1, 2**20)]
Width = Annotated[int, Range(1, 4096)]
Features = Annotated[int, Range(2, 2**20)]
TeacherCount = Annotated[int, Range(1, 2**20)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
LearningRate = Annotated[float, Range(1e-12, 10.0)]
Betas = Annotated[tuple[float, float], Range(0.0, BELOW_ONE)]
LengthScale = Annotated[float, Range(1e-6, 1e6)]
PenaltyWeight = Annotated[float, Range(0.0, 1e6)]
NoiseMultiplier = Annotated[float, Range(1e-12, 2**20)]
