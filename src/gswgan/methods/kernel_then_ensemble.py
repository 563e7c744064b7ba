"""The plan of an ensemble that the kernel critic starts: a part of the budget goes to the kernel's release."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from gswgan.critics import Critic
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.embedding import PlannedEmbedding
from gswgan.critics.kernel.features import KernelSettings
from gswgan.critics.kernel_then_ensemble import KernelThenEnsemble, KernelThenEnsembleSettings
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.methods.ensemble import check_ensemble, describe_ensemble, hold_critics, make_ensemble
from gswgan.methods.kernel import announce_release, check_kernel, kernel_critic
from gswgan.plan.context import RunContext
from gswgan.plan.defaults import TINY, beyond_pixels, kernel_defaults
from gswgan.plan.facts import Facts
from gswgan.plan.method import PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, PrivacySettings
from gswgan.privacy import Composed, Contribution, Event, Gaussian

SHARE = 0.2
"""Of the budget that the kernel's release has, about, counted in mu^2."""

RELEASES = 500
"""Steps of the ensemble, where nothing else is asked for."""

CATCH_UP = 20
"""Times n_dis updates of every critic, before it is first asked."""


@dataclass(frozen=True, kw_only=True)
class PlannedKernelThenEnsemble(KernelThenEnsembleSettings, CriticSettings):
    """Both critics of a plan; see also the plan's privacy, which is the ensemble's."""

    has_embedding = True
    can_spread = True

    @property
    def kernel_settings(self) -> KernelSettings:
        """The features."""
        return self.kernel

    @property
    def ensemble_settings(self) -> EnsembleSettings:
        """The critics."""
        return self.ensemble

    def released_embedding(self, draft: Draft) -> PlannedEmbedding:
        """The kernel's release, before the first step."""
        return PlannedEmbedding(features=self.kernel.features, noise_std=self.noise_std, all_classes=True)

    def total(self, draft: Draft, steps: int) -> Event:
        """The kernel's release before the first step, and one of the ensemble in each step after the start."""
        return started_total(self.event(draft.facts.labelled), draft.sums, steps - self.steps)

    def describe(self, draft: Draft) -> str:
        """Both on one line."""
        return (
            f"{describe_ensemble(self.ensemble, draft)}; for the first {self.steps:,} steps the kernel critic, "
            f"{self.kernel.features:,} random features"
        )

    def check(self, plan: Plan) -> None:
        """A start by record, then one release of all critics in each step."""
        if plan.facts.persons is not None:
            raise PlanError("persons", plan.facts.persons, "none: the start protects one record at a time")
        check_kernel(self.kernel, plan)
        if self.kernel.has_encoder:
            raise PlanError("public_network", self.kernel.public_network, "none: this preset sees pixels alone")
        check_ensemble(plan, start=self.steps)

    def make(self, plan: Plan, context: RunContext) -> Critic:
        """Both critics, each behind its own mechanism."""
        announce_release(context)
        labelled = plan.facts.labelled
        mechanism = context.mechanism(self.contribution(labelled), self.event(labelled))
        kernel = kernel_critic(self.kernel, plan, context.embedding, context.device, None, mechanism)
        return KernelThenEnsemble(self, kernel, make_ensemble(self.ensemble, plan, context))

    def hold(self, plan: Plan, context: RunContext, data: ImageData) -> None:
        """The critics that this process holds."""
        hold_critics(self.ensemble, plan, context, data)


def started_total(start: Gaussian, privacy: PrivacySettings, releases: int) -> Event:
    """The kernel's release, and so many that follow it."""
    return start if releases <= 0 else Composed(events=(start, privacy.total(releases)))


def is_started(facts: Facts) -> bool:
    """Where pixel features serve, by record, and not for the tiniest images, which critics learn in a hundred steps."""
    return facts.persons is None and facts.image_size > TINY and not beyond_pixels(facts)


def with_rows(facts: Facts, privacy: PrivacySettings) -> PrivacySettings:
    """The same noise relative to the bound, for the batches of a run with a start."""
    rows = rows_of_a_step(facts)
    bound = Contribution(clip_norm=privacy.clip_norm, rows=rows).sensitivity("zeroed")
    return dataclasses.replace(privacy, rows=rows, noise_std=_multiplier(privacy) * bound)


def _multiplier(privacy: PrivacySettings) -> float:
    return privacy.noise_std / privacy.contribution.sensitivity("zeroed")


def start_noise(privacy: PrivacySettings) -> float:
    """Noise of the kernel's release that gives it SHARE of the budget; see `share`."""
    odds = SHARE / (1 - SHARE)
    return _multiplier(privacy) / (privacy.rate * math.sqrt(privacy.releases * odds))


def share(settings: KernelThenEnsembleSettings, privacy: PrivacySettings) -> float:
    """Of the budget that the kernel's release has, in mu^2.

    With much noise, T releases at rate q have together the mu of one with 1 / (q sqrt(T)) of their noise (the central
    limit theorem of Dong et al. 2022). The plan's epsilon does not rest on this: it is that of both, by PLD.
    """
    odds = (_multiplier(privacy) / (privacy.rate * settings.noise_std)) ** 2 / privacy.releases
    return odds / (1 + odds)


def events(request: PlanRequest, privacy: PrivacySettings) -> Event:
    """Both critics' releases."""
    bound = Contribution(clip_norm=1.0, counts=request.facts.labelled).sensitivity("replace-one")
    start = Gaussian(noise_std=start_noise(privacy), sensitivity=bound)
    return started_total(start, with_rows(request.facts, privacy), privacy.releases)


def draft(pure: Draft, request: PlanRequest) -> Draft:
    """The ensemble's draft with a start: the kernel's settings for everything but the critics and their release."""
    privacy, noise_std = with_rows(pure.facts, pure.sums), start_noise(pure.sums)
    kernel = kernel_defaults(pure.facts, noise_std, request.device)
    return dataclasses.replace(
        pure,
        privacy=privacy,
        critic=PlannedKernelThenEnsemble(
            kernel=dataclasses.replace(kernel.critic, seed=request.seed),
            noise_std=noise_std,
            steps=kernel.training.steps,
            catch_up=CATCH_UP,
            ensemble=EnsembleSettings(**vars(pure.critic)),
        ),
        generator=kernel.generator,
        optimizer=kernel.optimizer,
        training=dataclasses.replace(
            kernel.training, steps=kernel.training.steps + privacy.releases, batch_size=privacy.rows
        ),
    )


def rows_of_a_step(facts: Facts) -> int:
    """Fakes that the critics judge: as many as the kernel critic likes, whatever the device. Noise pays none of it."""
    return min(2000, max(200, 20 * facts.classes))
