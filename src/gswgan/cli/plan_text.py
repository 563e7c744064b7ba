"""A plan in words, and what more or less data would buy."""

from __future__ import annotations

import dataclasses
import math

from gswgan.critics.kernel import KernelSettings
from gswgan.training.defaults import score_noise
from gswgan.training.plan import Facts, Plan, PrivacySettings
from gswgan.training.planner import load_preset, privacy_settings


def describe(plan: Plan) -> str:
    """The plan on a few lines: everything that matters for the guarantee, then the rest."""
    facts, privacy, training = plan.facts, plan.privacy, plan.training
    persons = f", {facts.persons} persons" if facts.persons else ""
    lines = [
        f"data:      {facts.data}: {facts.records} records{persons}, {facts.classes} classes, "
        f"{facts.image_size}x{facts.image_size}x{facts.channels}",
        f"critic:    {_critic(plan)}",
        f"release:   {privacy.releases} x Gaussian, noise std {privacy.noise_std:.5g}, sensitivity "
        f"{privacy.contribution.sensitivity(privacy.neighbours):.5g}, sampling {privacy.sampling}"
        + (f" at rate {privacy.rate:g}" if privacy.sampling == "poisson" else ""),
        f"guarantee: {plan.guarantee}" + (" -- void: --insecure-reproducible" if plan.insecure_reproducible else ""),
    ]
    if plan.claimed is not None:
        lines.append(f"claimed:   {plan.claimed.epsilon:.4g}, {plan.claimed.accounting}")
    if plan.source is not None:
        lines.append("source:    an embedding that was released before; this run adds nothing to its cost")
    if plan.curve:
        points = ", ".join(f"{done}: {epsilon:.3g}" for done, epsilon in plan.curve)
        lines.append(f"epsilon by step, likewise at delta {privacy.delta:g}: {points}")
    lines.append(
        f"generator: {plan.generator.architecture} of width {plan.generator.width}, {training.steps} steps of "
        f"{training.batch_size} fakes, learning rate {plan.optimizer.learning_rate:g}"
    )
    return "\n".join(lines)


def outlook(plan: Plan) -> str:
    """How much noise the generator would see with a tenth, with all and with ten times the data, at this guarantee."""
    lines = ["what more or less data would buy at the same guarantee:"]
    for factor in (0.1, 1, 10):
        facts = _scaled(plan.facts, factor)
        privacy = plan.privacy if factor == 1 else _privacy_for(plan, facts)
        lines.append(f"  {facts.records:>12,} records: {_noise(plan, facts, privacy)}")
    return "\n".join(lines)


def _critic(plan: Plan) -> str:
    if isinstance(plan.critic, KernelSettings):
        scales = ", ".join(f"{scale:g}" for scale in plan.critic.length_scales)
        return f"kernel, {plan.critic.features} random features, length scale {scales}"
    return f"ensemble of {plan.privacy.shards} critics of width {plan.critic.width}"


def _scaled(facts: Facts, factor: float) -> Facts:
    persons = None if facts.persons is None else max(1, round(facts.persons * factor))
    return dataclasses.replace(facts, records=max(1, round(facts.records * factor)), persons=persons)


def _privacy_for(plan: Plan, facts: Facts) -> PrivacySettings:
    table = load_preset(plan.preset)
    if isinstance(plan.critic, KernelSettings) or table.get("as_published"):
        return plan.privacy
    return privacy_settings(table, facts, epsilon=plan.guarantee.epsilon, delta=plan.privacy.delta)


def _noise(plan: Plan, facts: Facts, privacy: PrivacySettings) -> str:
    if isinstance(plan.critic, KernelSettings):
        noise = score_noise(facts, privacy.noise_std)
        return f"noise {noise:.2g} on a class's score, whose range is 1"
    expected = 1.0 if privacy.sampling == "one" else privacy.rate * (privacy.shards or 1)
    norm = privacy.noise_std / expected * math.sqrt(facts.pixels / privacy.releases) / privacy.clip_norm
    return f"{privacy.shards} critics, noise of norm {norm:.2g} on a fake's gradient (at most 1), averaged over the run"
