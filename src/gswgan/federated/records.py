"""The records that a client answers from: one person's, in the shape of the plan, or none at all."""

from __future__ import annotations

import numpy as np

from gswgan.data import ImageData
from gswgan.errors import FederationError
from gswgan.plan.facts import Facts

SHAPE = ("classes", "labelled", "image_size", "channels")
"""What a client may state of its data: the shape, which is public. Not how much data: there may be none."""


def of_one_person(data: ImageData) -> ImageData:
    """Return the data if it is that of one person."""
    if data.persons is None or data.number_of_persons != 1:
        raise FederationError("data", data.name, "the records of one person")
    return data


def no_records(facts: Facts, name: str) -> ImageData:
    """No records, in the shape that a plan asks for."""
    return ImageData(
        name=name,
        images=np.zeros((0, facts.channels, facts.image_size, facts.image_size), np.uint8),
        labels=np.zeros(0, np.int64) if facts.labelled else None,
        classes=facts.classes,
        class_names=facts.class_names,
        persons=np.zeros(0, np.int64),
        person_ids=(name,),
    )
