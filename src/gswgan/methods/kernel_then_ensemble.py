"""The plan of an ensemble that the kernel critic starts: a part of the budget goes to the kernel's release."""

from __future__ import annotations

import dataclasses
import math

from gswgan.critics.kernel.features import KernelSettings
from gswgan.critics.kernel_then_ensemble import KernelStart, KernelThenEnsembleSettings
from gswgan.errors import PlanError
from gswgan.plan.defaults import TINY, beyond_pixels, kernel_defaults
from gswgan.plan.plan import Draft, Facts, PrivacySettings
from gswgan.privacy import Composed, Contribution, Event

SHARE = 0.2
"""Of the budget that the kernel's release has, about, counted in mu^2."""

RELEASES = 500
"""Steps of the ensemble, where nothing else is asked for."""

CATCH_UP = 20
"""Times n_dis updates of every critic, before it is first asked."""


def is_started(facts: Facts) -> bool:
    """Where pixel features serve, by record, and not for the tiniest images, which critics learn in a hundred steps."""
    return facts.persons is None and facts.image_size > TINY and not beyond_pixels(facts)


def started(pure: Draft, *, seed: int, device: str) -> Draft:
    """The ensemble's draft with a start: the kernel's settings for everything but the critics and their release."""
    privacy = pure.privacy
    assert privacy is not None
    multiplier = privacy.noise_std / privacy.contribution.sensitivity("zeroed")
    odds = SHARE / (1 - SHARE)
    noise_std = multiplier / (privacy.rate * math.sqrt(privacy.releases * odds))  # see `share`
    kernel = kernel_defaults(pure.facts, noise_std, device)
    assert isinstance(kernel.critic, KernelSettings)
    rows = rows_of_a_step(pure.facts)
    bound = Contribution(clip_norm=privacy.clip_norm, rows=rows).sensitivity("zeroed")
    return dataclasses.replace(
        pure,
        privacy=dataclasses.replace(privacy, rows=rows, noise_std=multiplier * bound),
        critic=KernelThenEnsembleSettings(
            kernel=dataclasses.replace(kernel.critic, seed=seed),
            noise_std=noise_std,
            steps=kernel.training.steps,
            catch_up=CATCH_UP,
            ensemble=pure.critic,
        ),
        generator=kernel.generator,
        optimizer=kernel.optimizer,
        training=dataclasses.replace(kernel.training, steps=kernel.training.steps + privacy.releases, batch_size=rows),
    )


def rows_of_a_step(facts: Facts) -> int:
    """Fakes that the critics judge: as many as the kernel critic likes, whatever the device. Noise pays none of it."""
    return min(2000, max(200, 20 * facts.classes))


def share(settings: KernelThenEnsembleSettings, privacy: PrivacySettings) -> float:
    """Of the budget that the kernel's release has, in mu^2.

    With much noise, T releases at rate q have together the mu of one with 1 / (q sqrt(T)) of their noise (the central
    limit theorem of Dong et al. 2022). The plan's epsilon does not rest on this: it is that of both, by PLD.
    """
    multiplier = privacy.noise_std / privacy.contribution.sensitivity("zeroed")
    odds = (multiplier / (privacy.rate * settings.noise_std)) ** 2 / privacy.releases
    return odds / (1 + odds)


def total(draft: Draft, steps: int) -> Event:
    """The kernel's release before the first step, and one of the second critic in each step after the start.

    (After the start and, with `refined`, the pre-training.)
    """
    settings: KernelStart = draft.critic
    assert draft.privacy is not None
    start = settings.event(draft.facts.labelled, draft.privacy.neighbours)
    without = settings.steps + getattr(settings, "pretraining", 0)
    if steps <= without:
        return start
    return Composed(events=(start, draft.privacy.total(steps - without)))


def check(facts: Facts) -> None:
    """A start by record."""
    if facts.persons is not None:
        raise PlanError("persons", facts.persons, "none: the start protects one record at a time")
