"""The plan of GS-WGAN: from a preset and public facts to settings, what they cost, and what they must fulfil."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.embedding import RARE, count_weight
from gswgan.critics.kernel.features import KernelSettings
from gswgan.critics.kernel_then_ensemble import KernelStart, KernelThenEnsembleSettings
from gswgan.critics.refined.critic import RefinedSettings
from gswgan.errors import PlanError
from gswgan.methods.kernel_then_ensemble import RELEASES, is_started, started
from gswgan.methods.kernel_then_ensemble import check as check_started
from gswgan.methods.kernel_then_ensemble import total as started_total
from gswgan.methods.method import PlanRequest
from gswgan.methods.refined import check as check_refined
from gswgan.methods.refined import refined
from gswgan.methods.refined import words as refined_words
from gswgan.plan.defaults import Defaults, ensemble_defaults, ensemble_release, kernel_defaults
from gswgan.plan.plan import Draft, Facts, LowerBound, Plan, PrivacySettings
from gswgan.plan.settings import from_plain, to_plain
from gswgan.privacy import Contribution, DrawnOne, Event, Gaussian
from gswgan.privacy.accountant import drawn_one_lower_bound
from gswgan.privacy.claims import Claim, claimed_centralized, claimed_federated
from gswgan.privacy.mechanism import MAX_NOISE

PERSON_NORM = 0.7
"""Clip norm of a person times sqrt(classes): the norm of a person with records of all classes alike whose features have
class means of squared length 0.4, and counts of the least weight. A longer vector loses its length and nothing else."""

PRESETS = ("kernel", "refined", "ensemble", "ensemble-alone", "paper", "paper-federated")


def load_preset(name: str) -> dict[str, Any]:
    """A preset as plain data; it is part of the installed package."""
    if name not in PRESETS:
        raise PlanError("preset", name, "one of " + ", ".join(PRESETS), "Leave --preset out for the best critic.")
    return tomllib.loads((resources.files("gswgan.methods.presets") / f"{name}.toml").read_text())


def draft(request: PlanRequest, noise: float) -> Draft:
    """The preset for these facts; `noise` is noise_std over the L2 bound of one contribution."""
    table = load_preset(request.preset)
    if table["critic"] == "kernel":
        if request.shards is not None:
            raise PlanError("shards", request.shards, "no shards with the kernel critic", "Use --preset ensemble.")
        privacy = kernel_privacy(request, noise)
        defaults = kernel_defaults(request.facts, privacy.noise_std, request.device)
        return kernel_draft("gswgan", request, privacy, _with_preset(defaults, table))
    if table["critic"] == "refined":
        return refined(request, noise)
    start = table.get("start", False) and is_started(request.facts)
    if start and request.steps is None:
        request = dataclasses.replace(request, steps=RELEASES)
    privacy = _ensemble_privacy(table, request, noise)
    defaults = _with_preset(ensemble_defaults(request.facts, request.device), table)
    pure = Draft(
        method="gswgan",
        preset=request.preset,
        facts=request.facts,
        privacy=privacy,
        critic=defaults.critic,
        generator=defaults.generator,
        optimizer=defaults.optimizer,
        training=dataclasses.replace(defaults.training, steps=privacy.releases, batch_size=privacy.rows),
    )
    return started(pure, seed=request.seed, device=request.device) if start else pure


def kernel_draft(method: str, request: PlanRequest, privacy: PrivacySettings, defaults: Defaults) -> Draft:
    """A run of the kernel critic with these settings: any number of steps after the one release."""
    assert isinstance(defaults.critic, KernelSettings)
    steps = defaults.training.steps if request.steps is None else request.steps
    return Draft(
        method=method,
        preset=request.preset,
        facts=request.facts,
        privacy=privacy,
        critic=dataclasses.replace(defaults.critic, seed=request.seed),
        generator=defaults.generator,
        optimizer=defaults.optimizer,
        training=dataclasses.replace(defaults.training, steps=steps),
    )


def _with_preset(defaults: Defaults, table: Mapping[str, Any]) -> Defaults:
    """Lay the preset's own values over the defaults."""
    parts: dict[str, Any] = {}
    sections = {"critic": "ensemble" if isinstance(defaults.critic, EnsembleSettings) else "kernel"}
    sections |= {name: name for name in ("generator", "optimizer", "training")}
    for field, section in sections.items():
        current = getattr(defaults, field)
        parts[field] = from_plain(type(current), {**to_plain(current), **table.get(section, {})}, section)
    return dataclasses.replace(defaults, **parts)


def kernel_privacy(request: PlanRequest, noise: float) -> PrivacySettings:
    """One release of everybody's features: with counts by record, or by person, clipped."""
    by_person = request.facts.persons is not None
    clip = PERSON_NORM * request.facts.classes**-0.5 if by_person else 1.0
    return PrivacySettings(
        delta=request.delta,
        noise_std=noise * clip,
        clip_norm=clip,
        counts=request.facts.labelled and not by_person,
        unit="person" if by_person else "record",
        neighbours=request.neighbours,
    )


def _ensemble_privacy(table: Mapping[str, Any], request: PlanRequest, noise: float) -> PrivacySettings:
    facts, given, release = request.facts, dict(table["privacy"]), ensemble_release(request.facts)
    given["delta"] = request.delta
    if facts.persons is not None:
        given["unit"] = "person"
    given["shards"] = request.shards if request.shards is not None else given.get("shards", release.shards)
    check_shards(facts, given["shards"])
    given["releases"] = request.steps if request.steps is not None else given.get("releases", release.releases)
    given.setdefault("rows", release.rows)
    if given["sampling"] == "poisson":
        given.setdefault("rate", release.rate)
        if given["rate"] >= 1:
            given["sampling"] = "all"
    bound = Contribution(clip_norm=given["clip_norm"], rows=given["rows"]).sensitivity("zeroed")
    return from_plain(PrivacySettings, {"noise_std": noise * bound, **given}, "privacy")


def check_shards(facts: Facts, shards: int) -> None:
    """Each shard has a record (or person) of its own."""
    units, what = (facts.records, "record") if facts.persons is None else (facts.persons, "person")
    if type(shards) is not int or not 1 <= shards <= units:
        raise PlanError(
            "shards", shards, f"a whole number from 1 to {units}, the number of {what}s",
            f"Each shard needs a {what} of its own: pass fewer --shards.",
        )  # fmt: skip


def own_noise(preset: str) -> float | None:
    """The noise_std of a preset that fixes it."""
    found: float | None = load_preset(preset).get("privacy", {}).get("noise_std")
    return found


def total(draft: Draft, steps: int) -> Event:
    """Kernel: one release, whatever the steps. Ensemble: one release a step (after its start)."""
    assert draft.privacy is not None
    if isinstance(draft.critic, KernelStart):
        return started_total(draft, steps)
    return draft.privacy.total(None if isinstance(draft.critic, KernelSettings) else steps)


def words(draft: Draft) -> str:
    """The critic on one line."""
    if isinstance(draft.critic, KernelSettings):
        return f"kernel, {draft.critic.features:,} random features, length scale {draft.critic.scales}"
    assert draft.privacy is not None
    if isinstance(draft.critic, RefinedSettings):
        return refined_words(draft)
    settings, start = draft.critic, ""
    if isinstance(settings, KernelThenEnsembleSettings):
        start = (
            f"; for the first {settings.steps:,} steps the kernel critic, {settings.kernel.features:,} random features"
        )
        settings = settings.ensemble
    return (
        f"ensemble of {draft.privacy.shards or 1:,} critics of width {settings.width}, each with its own part of "
        f"the data; gradients clipped to {draft.privacy.clip_norm:g}{start}"
    )


def check(plan: Plan) -> None:
    """What is accounted for is what the critic does."""
    if load_preset(plan.preset).get("federated") and (plan.guarantee is None or plan.guarantee.observer != "server"):
        raise PlanError(
            "preset", plan.preset, "a centralized preset",
            f"This one is for clients: `gswgan federate simulate --preset {plan.preset}`.",
        )  # fmt: skip
    if isinstance(plan.critic, KernelSettings):
        check_kernel(plan)
        return
    privacy, start = _check_privacy(plan), 0
    if isinstance(plan.critic, RefinedSettings):
        check_refined(plan, privacy)
        return
    if isinstance(plan.critic, KernelThenEnsembleSettings):
        check_started(plan.facts)
        start = plan.critic.steps
    planned, accounted = (plan.training.steps - start, plan.training.batch_size), (privacy.releases, privacy.rows)
    if planned != accounted:  # each step releases one batch
        raise PlanError("steps and batch_size", planned, f"{accounted}, as accounted for")
    units = plan.facts.persons or plan.facts.records
    if privacy.shards is None or privacy.shards > units:
        raise PlanError("shards", privacy.shards, f"a number from 1 to {units}")


def check_kernel(plan: Plan) -> None:
    """One release of everybody, enough of them to be told from its noise, features that exist."""
    privacy, facts, critic = _check_privacy(plan), plan.facts, plan.critic
    found = (privacy.sampling, privacy.rows, privacy.releases, privacy.counts)
    needed = ("all", 1, 1, facts.labelled and facts.persons is None)
    if found != needed:
        raise PlanError("privacy", found, f"{needed}: the kernel critic makes one release of everybody")
    scales, blocks = len(critic.length_scales), plan.training.feature_blocks
    if not scales or critic.features % 2 or blocks > critic.features // 2:
        features = (critic.features, scales, blocks)
        raise PlanError("features", features, "an even number, a length scale, at most half as many blocks")
    if len(critic.windows) != scales:
        raise PlanError("windows", critic.windows, f"{scales}, one for each length scale")
    units, what = (facts.records, "records") if facts.persons is None else (facts.persons, "persons")
    if units < (least := _enough(facts, privacy)):
        raise PlanError(
            what, units, f"at least {least} at this epsilon, or no class could be told from the noise",
            f"Use more {what} or a larger --epsilon.",
        )  # fmt: skip


def _check_privacy(plan: Plan) -> PrivacySettings:
    privacy, cost = plan.privacy, plan.guarantee
    if privacy is None or cost is None:
        raise PlanError("privacy", privacy, "the settings of a noisy sum")
    if privacy.noise_std > MAX_NOISE * privacy.clip_norm:
        raise PlanError(
            "noise_std", privacy.noise_std, f"at most {MAX_NOISE:.0f} times clip_norm",
            "Ask for a larger epsilon or delta.",
        )  # fmt: skip
    stated = {name: getattr(cost, name) for name in ("delta", "neighbours", "unit", "observer", "sampling")}
    ruled = {name: getattr(privacy, name) for name in stated}
    if stated != ruled:
        raise PlanError("guarantee", stated, f"{ruled}, as in privacy")
    if (privacy.unit == "record") != (plan.facts.persons is None):
        raise PlanError("privacy.unit", privacy.unit, "record exactly where the data has no persons")
    return privacy


def _enough(facts: Facts, privacy: PrivacySettings) -> int:
    """How many records (persons) in one class its noisy count needs to be told from the noise, most probably."""
    if not privacy.counts and facts.persons is None:
        return 2  # without labels the only count is n, which is public
    noise, share = privacy.noise_std / privacy.clip_norm, 1.0
    if facts.persons is not None:  # a person's count is clipped with the features
        weight = count_weight(facts.persons, facts.classes, noise)
        share = weight / math.hypot(1, weight)
    return max(2, math.ceil(RARE * noise / share))


def claimed(draft: Draft, delta: float) -> Claim | None:
    """The figure that the paper's rules give for the run, where the run follows the paper."""
    privacy = draft.privacy
    if privacy is None or privacy.sampling != "one":
        return None
    sample = Gaussian(noise_std=privacy.noise_std, sensitivity=2 * privacy.clip_norm)  # as the paper counts them
    steps, count, rows = privacy.releases, privacy.shards or 1, privacy.rows
    if privacy.observer == "server":
        return claimed_federated(sample, clients=count, rounds=steps, batch_size=rows, delta=delta)
    return claimed_centralized(sample, shards=count, steps=steps, batch_size=rows, delta=delta)


def lower_bound(draft: Draft) -> LowerBound | None:
    """What no analysis of the paper's draw can go below, even if the draw stays hidden from the public."""
    privacy = draft.privacy
    if privacy is None or not isinstance(privacy.event, DrawnOne) or privacy.observer != "public":
        return None
    epsilon = drawn_one_lower_bound(privacy.event, privacy.releases, privacy.delta)
    return LowerBound(epsilon=epsilon, delta=privacy.delta, neighbours=privacy.neighbours, observer=privacy.observer)
