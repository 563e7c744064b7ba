"""The ensemble of critics in a plan: each has its own part of the data, and each step releases one noisy sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gswgan.critics import Critic
from gswgan.critics.ensemble.distributed import AllReduceMechanism, DistributedEnsemble, PartialSum, worker_loop
from gswgan.critics.ensemble.ensemble import Ensemble, Mechanism
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.warm_start import WarmStart
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.methods.kernel import check_sums
from gswgan.plan.context import RunContext
from gswgan.plan.defaults import Defaults, ensemble_release
from gswgan.plan.facts import Facts
from gswgan.plan.method import PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, LowerBound, Plan, PrivacySettings
from gswgan.plan.settings import from_plain, to_plain
from gswgan.privacy import Contribution, DrawnOne, Event, Gaussian, GaussianMechanism
from gswgan.privacy.accountant import drawn_one_lower_bound
from gswgan.privacy.claims import Claim, claimed_centralized, claimed_federated

FOR_CLIENTS = "paper-federated"
"""The preset that only clients can run: the paper's Algorithm 2."""


@dataclass(frozen=True, kw_only=True)
class PlannedEnsemble(EnsembleSettings, CriticSettings):
    """The ensemble of a plan; see also the plan's privacy."""

    can_spread = True

    @property
    def ensemble_settings(self) -> EnsembleSettings:
        """The critics."""
        return self

    def total(self, draft: Draft, steps: int) -> Event:
        """One release in each step."""
        return draft.sums.total(steps)

    def describe(self, draft: Draft) -> str:
        """The critics on one line."""
        return describe_ensemble(self, draft)

    def check(self, plan: Plan) -> None:
        """Each step releases one batch of all critics."""
        check_ensemble(plan, start=0)

    def claimed(self, draft: Draft, delta: float) -> Claim | None:
        """The figure that the paper's rules give for the run, where the run follows the paper."""
        privacy = draft.sums
        if privacy.sampling != "one":
            return None
        sample = Gaussian(noise_std=privacy.noise_std, sensitivity=2 * privacy.clip_norm)  # as the paper counts them
        steps, count, rows = privacy.releases, privacy.critics or 1, privacy.rows
        if privacy.observer == "server":
            return claimed_federated(sample, clients=count, rounds=steps, batch_size=rows, delta=delta)
        return claimed_centralized(sample, critics=count, steps=steps, batch_size=rows, delta=delta)

    def lower_bound(self, draft: Draft) -> LowerBound | None:
        """What no analysis of the paper's draw can go below, even if the draw stays hidden from the public."""
        privacy = draft.sums
        if not isinstance(privacy.event, DrawnOne) or privacy.observer != "public":
            return None
        epsilon = drawn_one_lower_bound(privacy.event, privacy.releases, privacy.delta)
        return LowerBound(
            epsilon=epsilon, delta=privacy.delta, neighbours=privacy.neighbours, observer=privacy.observer
        )

    def make(self, plan: Plan, context: RunContext) -> Critic:
        """The critics, here or spread over the ranks."""
        return make_ensemble(self, plan, context)

    def hold(self, plan: Plan, context: RunContext, data: ImageData) -> None:
        """The critics that this process holds."""
        hold_critics(self, plan, context, data)


def describe_ensemble(settings: EnsembleSettings, draft: Draft) -> str:
    """The critics on one line."""
    return (
        f"ensemble of {draft.sums.critics or 1:,} critics of width {settings.width}, each with its own part of "
        f"the data; gradients clipped to {draft.sums.clip_norm:g}"
    )


def check_ensemble(plan: Plan, *, start: int) -> None:
    """After `start` steps, each step releases one batch of all critics, each of which has a unit of its own."""
    if plan.preset == FOR_CLIENTS and (plan.guarantee is None or plan.guarantee.observer != "server"):
        raise PlanError(
            "preset", plan.preset, "a centralized preset",
            f"This one is for clients: `gswgan federate simulate --preset {plan.preset}`.",
        )  # fmt: skip
    privacy = check_sums(plan)
    planned, accounted = (plan.training.steps - start, plan.training.batch_size), (privacy.releases, privacy.rows)
    if planned != accounted:
        raise PlanError("steps and batch_size", planned, f"{accounted}, as accounted for")
    units = plan.facts.persons or plan.facts.records
    if privacy.critics is None or privacy.critics > units:
        raise PlanError("critics", privacy.critics, f"a number from 1 to {units}")


def check_critics(facts: Facts, critics: int) -> None:
    """Each critic has a record (or person) of its own."""
    units, what = (facts.records, "record") if facts.persons is None else (facts.persons, "person")
    if type(critics) is not int or not 1 <= critics <= units:
        raise PlanError(
            "critics", critics, f"a whole number from 1 to {units}, the number of {what}s",
            f"Each critic needs a {what} of its own: pass fewer --critics.",
        )  # fmt: skip


def ensemble_privacy(table: Mapping[str, Any], request: PlanRequest, noise: float) -> PrivacySettings:
    """The noisy sums of a preset for these facts; `noise` is noise_std over the L2 bound of one contribution."""
    facts, given, release = request.facts, dict(table["privacy"]), ensemble_release(request.facts)
    given["delta"] = request.delta
    if facts.persons is not None:
        given["unit"] = "person"
    given["critics"] = request.critics if request.critics is not None else given.get("critics", release.critics)
    check_critics(facts, given["critics"])
    given["releases"] = request.steps if request.steps is not None else given.get("releases", release.releases)
    given.setdefault("rows", release.rows)
    if request.federation is not None:
        given |= {"neighbours": request.federation.neighbours, "observer": request.federation.observer}
    if given["sampling"] == "poisson":
        given.setdefault("rate", release.rate if request.federation is None else request.federation.rate)
        if given["rate"] >= 1:
            given["sampling"] = "all"
    bound = Contribution(clip_norm=given["clip_norm"], rows=given["rows"]).sensitivity("zeroed")
    return from_plain(PrivacySettings, {"noise_std": noise * bound, **given}, "privacy")


def ensemble_draft(request: PlanRequest, privacy: PrivacySettings, defaults: Defaults[EnsembleSettings]) -> Draft:
    """A run in which every step is one release of the ensemble. Clients get one batch of fakes for all updates."""
    clients = {} if request.federation is None else {"fakes_per_step": "one"}
    return Draft(
        method="gswgan",
        preset=request.preset,
        facts=request.facts,
        privacy=privacy,
        critic=PlannedEnsemble(**{**vars(defaults.critic), **clients}),
        generator=defaults.generator,
        optimizer=defaults.optimizer,
        training=dataclasses.replace(defaults.training, steps=privacy.releases, batch_size=privacy.rows),
    )


def with_preset(defaults: Defaults[EnsembleSettings], table: Mapping[str, Any]) -> Defaults[EnsembleSettings]:
    """Lay the preset's own values over the defaults."""
    parts: dict[str, Any] = {}
    for field, section in {"critic": table["critic"], "generator": "generator", "optimizer": "optimizer"}.items():
        current = getattr(defaults, field)
        parts[field] = from_plain(type(current), {**to_plain(current), **table.get(section, {})}, section)
    return dataclasses.replace(defaults, **parts)


def make_ensemble(settings: EnsembleSettings, plan: Plan, context: RunContext) -> Ensemble | DistributedEnsemble:
    """The critics behind the mechanism; where there are ranks, the part of this one with the orders to the others."""
    privacy, mechanism = plan.sums, sum_mechanism(plan, context)
    units, critics = plan.facts.persons or plan.facts.records, privacy.critics or 1
    context.write_private("partitions", {"critics": critics, "units": units, "unused": units % critics})
    part = ensemble_part(settings, plan, context, mechanism)
    return part if context.ranks is None else DistributedEnsemble(context.ranks, part)


def sum_mechanism(plan: Plan, context: RunContext) -> GaussianMechanism:
    """The mechanism of the plan's sums; where there are ranks, over the sums of all of them."""
    privacy = plan.sums
    if context.ranks is None:
        return context.mechanism(privacy.contribution, privacy.event)
    return AllReduceMechanism(
        context.ranks, context.device, contribution=privacy.contribution, event=privacy.event,
        ledger=context.ledger, streams=context.secret,
    )  # fmt: skip


def partial_sum(plan: Plan, context: RunContext) -> PartialSum:
    """Its stand-in at a rank other than 0."""
    assert context.ranks is not None
    return PartialSum(context.ranks, context.device, plan.sums.contribution, plan.sums.event)


def hold_critics(settings: EnsembleSettings, plan: Plan, context: RunContext, data: ImageData) -> None:
    """Hold some of the critics at a rank other than 0."""
    assert context.ranks is not None
    part = ensemble_part(settings, plan, context, partial_sum(plan, context))
    worker_loop(context.ranks, part, data, context.device)


def ensemble_part(settings: EnsembleSettings, plan: Plan, context: RunContext, mechanism: Mechanism) -> Ensemble:
    """The critics that this process holds: all, where it is the only one."""
    critics = plan.sums.critics or 1
    held = range(critics) if context.ranks is None else context.ranks.held(critics)
    return Ensemble(
        settings,
        CriticShape(**plan.facts.shape, width=settings.width),
        mechanism,
        count=critics,
        held=held,
        public=context.public,
        batches=context.batches,
        device=context.device,
        warm_start=_warm_start(settings, plan, context, held),
        note=context.note,
    )


def _warm_start(settings: EnsembleSettings, plan: Plan, context: RunContext, held: range) -> WarmStart | None:
    if settings.warm_start == 0:
        return None
    ours = "" if context.ranks is None else f"-{held.start}-{held.stop}"  # another number of ranks begins it anew
    return WarmStart(
        iterations=settings.warm_start,
        generator=plan.generator,
        learning_rate=plan.optimizer.learning_rate,
        betas=plan.optimizer.betas,
        store=context.store(f"warm_start{ours}"),
        stopped=context.stopped,
    )
