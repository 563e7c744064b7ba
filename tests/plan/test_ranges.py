"""Every number of a plan has a range at its field, and a plan with a number outside of it is refused by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from gswgan.errors import PlanError
from gswgan.methods import BY_PERSON, METHODS
from gswgan.plan.plan import CriticSettings, Plan
from gswgan.plan.settings import check_ranges
from gswgan.ranges import Range

CHECKED_ELSEWHERE = {
    "delta": "check_delta",
    "epsilon": "PrivacyCost, Claim",
    "noise_std": "Gaussian",
    "clip_norm": "Contribution",
    "rate": "Sampled",
    "raise_below": "DPSGDSettings",
    "threshold": "GPateSettings",
    "clients": "FedAvgSettings.event",
}


def settings_classes(hint: Any) -> Iterator[type]:
    """All dataclasses that a plan is made of."""
    if dataclasses.is_dataclass(hint):
        yield hint
        for inside in get_type_hints(hint).values():
            if inside is not CriticSettings:
                yield from settings_classes(inside)
    for inside in get_args(hint):
        yield from settings_classes(inside)


CLASSES = {cls for method in (METHODS | BY_PERSON).values() for cls in settings_classes(method.settings | Plan)}


def numbers(cls: type) -> dict[str, tuple[Range, ...]]:
    """The fields of a dataclass that hold numbers, with the ranges that are written there."""
    plain, marked = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    return {
        field.name: tuple(mark for mark in get_args(marked[field.name]) if isinstance(mark, Range))
        for field in dataclasses.fields(cls)
        if {int, float} & {plain[field.name], *get_args(plain[field.name])}
    }


def test_every_number_of_a_plan_has_a_range_or_another_check() -> None:
    assert len(CLASSES) > 20
    without = {(cls.__name__, name) for cls in CLASSES for name, marks in numbers(cls).items() if not marks}
    assert {one for one in without if one[1] not in CHECKED_ELSEWHERE} == set()


@pytest.mark.parametrize(
    ("cls", "name", "limits"),
    [
        pytest.param(cls, name, marks[0], id=f"{cls.__name__}.{name}")
        for cls in sorted(CLASSES, key=lambda cls: cls.__name__)
        for name, marks in numbers(cls).items()
        if marks
    ],
)
def test_a_number_outside_its_range_is_refused_by_name(cls: type, name: str, limits: Range) -> None:
    settings = object.__new__(cls)  # without the checks of the class itself
    for field in dataclasses.fields(cls):
        object.__setattr__(settings, field.name, None)
    is_tuple = tuple in {getattr(get_type_hints(cls)[name], "__origin__", None)}
    for value in (limits.least, limits.most):
        object.__setattr__(settings, name, (value,) if is_tuple else value)
        check_ranges(settings)
    for value in (limits.least - 1, limits.most * 2 + 1):
        object.__setattr__(settings, name, (limits.least, value) if is_tuple else value)
        with pytest.raises(PlanError, match=name):
            check_ranges(settings)
