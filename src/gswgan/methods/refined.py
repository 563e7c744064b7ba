"""The plan of preset `refined`: a part of the budget for the kernel's release, the rest for DP-SGD."""

from __future__ import annotations

import dataclasses
import math

from gswgan.critics.kernel.features import KernelSettings
from gswgan.critics.refined.critic import RefinedSettings
from gswgan.errors import PlanError
from gswgan.generators import GeneratorSettings
from gswgan.generators.denoised import latent_size
from gswgan.generators.generator import OptimizerSettings
from gswgan.methods.method import PlanRequest
from gswgan.plan.defaults import TINY, kernel_defaults
from gswgan.plan.plan import Draft, Facts, Plan, PrivacySettings

SHARE = 0.27
"""Of the budget that the kernel's release has, about, counted in mu^2 (see kernel_then_ensemble.py). At epsilon 10 and
60,000 records its release alone is at epsilon 4.2, and costs DP-SGD 5 % more noise than one at 3 would."""

CLIP = 0.003
"""Norm that each record's gradient is clipped to: below what they have, so that every record has the same say. Adam
does not mind the scale."""


LEVEL_MEAN, LEVEL_STD = -0.8, 0.8
"""Of ln(noise level) in DP-SGD: mostly the middle levels, since samples of the kernel's generator teach the others."""

SCALING = 0.5
"""The power of the second moments of public gradients that those of records are scaled by."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What does not follow from the noise."""

    batch: int  # records in a step of DP-SGD, on average
    releases: int
    draws: int
    width: int
    samples: int
    pretraining: int
    pretraining_batch: int
    learning_rate: float
    averaging: float


def recipe(facts: Facts, device: str) -> Recipe:
    """By the number of records, the size of the images and the device."""
    if facts.image_size <= TINY:
        return Recipe(
            batch=max(1, min(256, facts.records // 5)), releases=100, draws=4, width=8, samples=2**14, pretraining=600,
            pretraining_batch=128, learning_rate=2e-3, averaging=10.0,
        )  # fmt: skip
    batch = max(1, min(2048, facts.records // 10))
    if device.startswith("cuda"):
        return Recipe(
            batch=batch, releases=450, draws=8, width=32, samples=2**18, pretraining=6000, pretraining_batch=512,
            learning_rate=4e-4, averaging=10.0,
        )  # fmt: skip
    return Recipe(
        batch=min(batch, 512), releases=200, draws=4, width=16, samples=2**14, pretraining=2000, pretraining_batch=64,
        learning_rate=5e-4, averaging=10.0,
    )  # fmt: skip


def refined(request: PlanRequest, noise: float) -> Draft:
    """All settings; `noise` is noise_std of DP-SGD over its clip norm, the kernel's noise is in proportion."""
    facts, chosen = request.facts, recipe(request.facts, request.device)
    if request.shards is not None:
        raise PlanError("shards", request.shards, "no shards with preset refined", "Use --preset ensemble.")
    _check_records(facts)
    releases = chosen.releases if request.steps is None else request.steps
    rate = chosen.batch / facts.records
    privacy = PrivacySettings(
        delta=request.delta,
        noise_std=noise * CLIP,
        clip_norm=CLIP,
        releases=releases,
        sampling="poisson",
        rate=rate,
        neighbours=request.neighbours,
    )
    odds = SHARE / (1 - SHARE)
    noise_std = noise / (rate * math.sqrt(releases * odds))
    kernel = kernel_defaults(facts, noise_std, request.device)
    assert isinstance(kernel.critic, KernelSettings)
    critic = RefinedSettings(
        kernel=dataclasses.replace(kernel.critic, seed=request.seed),
        noise_std=noise_std,
        steps=kernel.training.steps,
        start=kernel.generator,
        start_optimizer=kernel.optimizer,
        samples=chosen.samples,
        pretraining=chosen.pretraining,
        pretraining_batch=chosen.pretraining_batch,
        pretraining_rate=1e-3,
        draws=chosen.draws,
        level_mean=LEVEL_MEAN,
        level_std=LEVEL_STD,
        scaling=SCALING,
        averaging=chosen.averaging,
    )
    steps = kernel.training.steps + chosen.pretraining + releases
    return Draft(
        method="gswgan",
        preset=request.preset,
        facts=facts,
        privacy=privacy,
        critic=critic,
        generator=GeneratorSettings(architecture="denoiser", width=chosen.width, latent=latent_size(facts.pixels)),
        optimizer=OptimizerSettings(learning_rate=chosen.learning_rate, betas=(0.9, 0.999), decay=True, average=0.98),
        training=dataclasses.replace(kernel.training, steps=steps),
    )


def check(plan: Plan, privacy: PrivacySettings) -> None:
    """What is accounted for is what happens: each record by its own coin, one release in each step of DP-SGD."""
    _check_records(plan.facts)
    settings: RefinedSettings = plan.critic
    steps = settings.steps + settings.pretraining + privacy.releases
    if plan.training.steps != steps:
        raise PlanError("steps", plan.training.steps, f"{steps}, as accounted for")
    found = (privacy.sampling, privacy.rows, privacy.counts, privacy.shards)
    if found != ("poisson", 1, False, None):
        raise PlanError("privacy", found, "records drawn by coins, each with one clipped gradient")
    if plan.generator.architecture != "denoiser":
        raise PlanError("architecture", plan.generator.architecture, "denoiser: that is what is published")


def _check_records(facts: Facts) -> None:
    if facts.persons is not None:
        raise PlanError(
            "persons", facts.persons, "none: this preset protects one record at a time", "Leave --preset out."
        )


def words(draft: Draft) -> str:
    """The stages on one line."""
    settings: RefinedSettings = draft.critic
    assert draft.privacy is not None
    records = round(draft.privacy.rate * draft.facts.records)
    return (
        f"kernel, {settings.kernel.features:,} random features, length scale {settings.kernel.scales}, for "
        f"{settings.steps:,} steps; then a denoiser of width {draft.generator.width}: {settings.pretraining:,} steps "
        f"on samples, {draft.privacy.releases:,} steps of DP-SGD on {records:,} records on average, {settings.draws} "
        f"noise draws for each, gradients clipped to {draft.privacy.clip_norm:g}"
    )
