"""What the owner of records stated of them before a plan came: by this alone, and by no record, a plan is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gswgan.data import ImageData
from gswgan.errors import FederationError, short
from gswgan.federated.silos import Protect, check_listed, held
from gswgan.plan.facts import Facts, Site
from gswgan.plan.plan import Plan

SHAPE = ("labelled", "image_size", "channels")
"""The shape of images with their labels, which is public. Not how many there are: a client may have none."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Public facts of a client's records. Other records that are there when it answers are zeros."""

    shape: Mapping[str, object] = field(default_factory=dict)
    """Some of SHAPE."""

    size: Site | None = None
    """A silo's place on the public list."""

    classes: tuple[str, ...] = ()
    """Class names that the owner gives: those that a plan must have."""

    @classmethod
    def of(cls, name: str, data: ImageData, protect: Protect, classes: tuple[str, ...] = ()) -> Stated:
        """What these records show of themselves when their owner starts the client."""
        shape = {key: getattr(data, key) for key in SHAPE}
        return cls(shape=shape, size=None if protect == "client" else held(name, data, protect), classes=classes)

    def check(self, plan: Plan) -> None:
        """Refuse a plan of another shape or size, or without one of the classes."""
        asked = {key: getattr(plan.facts, key) for key in self.shape}
        if asked != self.shape:
            raise FederationError("plan", asked, f"{self.shape}, as the client's data has")
        if lacks := [name for name in self.classes if name not in plan.facts.class_names]:
            raise FederationError(
                "classes", short(plan.facts.names, 200), f"{short(lacks[0])} among them, which this site states",
                "The operator states the names with `gswgan federate plan --class-names FILE`.",
            )  # fmt: skip
        if self.size is not None:
            check_listed(plan, self.size)


def as_planned(data: ImageData, facts: Facts, *, in_place: bool = False) -> ImageData:
    """The data with the classes of the plan, matched by their names; records of other classes are left out.

    A total function: a plan that lacks a class, or names one that is not here, gets an answer as any other does.
    `in_place`: they stay where they are with the label -1, which adds nothing. Coins go by places, and the kernel's
    round takes as long whatever names a server tries.
    """
    if data.labels is None or data.class_names == facts.class_names:
        return data
    number = {name: label for label, name in enumerate(facts.class_names)}
    labels = np.array([number.get(name, -1) for name in data.class_names])[data.labels]
    named = dataclasses.replace(data, labels=labels, classes=facts.classes, class_names=facts.class_names)
    if (kept := labels >= 0).all() or in_place:
        return named
    return dataclasses.replace(
        named, images=data.images[kept], labels=labels[kept], left_out=data.left_out + int((~kept).sum()),
        persons=None if data.persons is None else data.persons[kept],
    )  # fmt: skip


def class_lines(data: ImageData, facts: Facts) -> list[str]:
    """For the site alone, before it answers: what of its records the plan has no class for, and what is not here."""
    if data.labels is None:
        return []
    planned = as_planned(data, facts)
    here = {data.class_names[label] for label in np.unique(data.labels)}
    other = ", ".join(sorted(here - set(facts.class_names)))
    absent = ", ".join(name for name in facts.class_names if name not in here)
    lines = [f"classes:   {planned.n:,} of {data.n:,} records are of the plan's classes"]
    if other:
        lines[0] += f"; the others add nothing ({short(other, 200)}). Rename them, or ask for a new plan"
    if absent:
        lines.append(f"not here:  {short(absent, 200)}: its sums for these are zeros, before noise")
    return lines
