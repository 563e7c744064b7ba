"""How many teachers G-PATE and PATE-GAN have, by the number of records."""

from __future__ import annotations

from gswgan.methods.ensemble import check_critics
from gswgan.plan.method import PlanRequest

check_teachers = check_critics
"""Each teacher has a part of the data of its own."""


def number_of_teachers(request: PlanRequest, *, most: int) -> int:
    """As asked for, or by the number of records (or persons): 30 each of 60,000, 3 of 1,400, and at the most `most`.

    Fewer records would have too few teachers otherwise for any noise: the rule of `ensemble_release`.
    """
    units = request.facts.persons or request.facts.records
    size = max(2, round(30 * (units / 60_000) ** 0.617))
    return max(1, min(most, units // size)) if request.critics is None else request.critics
