"""Whether there is enough to be seen in the data, against the noise and at all: before anything is released."""

from __future__ import annotations

import math

from gswgan.critics.kernel.embedding import RARE, count_weight
from gswgan.data import ImageData, ImageStream
from gswgan.errors import DataError, PlanError
from gswgan.plan.plan import Plan

MEAN_LENGTH = math.sqrt(0.4)
"""Of a class's features on average over a person's many records (`count_weight`)."""


DARK = 31
"""Images without any brighter pixel, of 255, were hardly meant: values from 0 to 1, 15 or 16 were saved as bytes."""


def least_units(plan: Plan) -> int | None:
    """Records (persons) with which the count of a class of average size would reach the threshold of its noise.

    For persons the best case is taken: many records of each, of all classes alike. None where no counts are released.
    """
    embedding, facts = plan.critic.released_embedding(plan), plan.facts
    if embedding is None or (facts.persons is None and not facts.labelled):
        return None
    noise, clip = embedding.noise_std, embedding.clip_norm
    if facts.persons is None:
        return math.ceil(RARE * noise / clip * facts.classes)
    # Each client adds noise of its own; so do sites, but their number is fixed.
    grows = plan.privacy is not None and plan.privacy.observer == "server" and facts.silos is None
    needed = 0
    for _ in range(100):  # the noise of more clients asks for still more of them
        persons = max(needed, facts.persons)
        here = noise * math.sqrt(persons / facts.persons) if grows else noise
        weight = count_weight(persons, facts.classes, here / clip)
        length = math.hypot(MEAN_LENGTH, weight) / math.sqrt(facts.classes)  # of a person's vector before it is clipped
        needed = math.ceil(RARE * here / weight * facts.classes / min(1.0, clip / length))
        if needed <= persons:
            break
    return needed


def too_few(plan: Plan) -> PlanError | None:
    """What is wrong with a run that would spend its epsilon on noise alone; None where nothing is."""
    units, what = (plan.facts.records, "records") if plan.facts.persons is None else (plan.facts.persons, "persons")
    least = least_units(plan)
    if least is None or units >= least:
        return None
    return PlanError(
        what, units, f"at least {least} for {plan.facts.many_classes} at epsilon {plan.cost.epsilon:.4g}, since with "
        "fewer no class of average size can be told from the noise, and epsilon is spent for nothing",
        f"Use more {what}, fewer classes or a larger --epsilon. If it is meant all the same, --force-spend (Python: "
        "force_spend=True).",
    )  # fmt: skip


def check_enough(plan: Plan, *, forced: bool | None) -> None:
    """Refuse such a run, unless it was asked for. None: the command has no such option."""
    wrong = too_few(plan)
    if wrong is not None and forced is None:
        raise PlanError(wrong.name, wrong.value, wrong.expected, wrong.todo.partition(" If it is meant")[0])
    if wrong is not None and not forced:
        raise wrong


def too_dark(data: ImageData | ImageStream) -> DataError | None:
    """What is wrong with images that are all nearly black, where they are at hand; None where nothing is."""
    if not isinstance(data, ImageData) or not data.n or int(data.images.max()) > DARK:
        return None
    return DataError(
        "images", f"no pixel above {DARK} of 255", "pixels from 0 (black) to 255 (white)",
        "If the values were 0 and 1, or 0 to 15, scale them to 255 first. If the images are meant to be nearly black, "
        "--force-spend (Python: force_spend=True).",
    )  # fmt: skip


def check_visible(data: ImageData | ImageStream, *, forced: bool) -> None:
    """Refuse such data, unless it was asked for."""
    wrong = too_dark(data)
    if wrong is not None and not forced:
        raise wrong
