"""A plan in words, what more or less data would buy, and which critic to use."""

from __future__ import annotations

import dataclasses
import importlib.util
import math

from gswgan.methods import find_method, make_draft
from gswgan.methods.advice import BEARABLE, Comparison, compare_plan, ensemble_noise
from gswgan.plan.defaults import LARGEST_SIDE, beyond_pixels, score_noise
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan, PrivacySettings
from gswgan.plan.wording import public_text
from gswgan.privacy.events import describe_event


def describe(plan: Plan) -> str:
    """The plan on a few lines: everything that matters for the guarantee, then the rest."""
    facts, training = plan.facts, plan.training
    lines = [
        f"data:      {facts.data}: {plan.size}, {facts.many_classes}, "
        f"{facts.image_size}x{facts.image_size}x{facts.channels}",
        f"public:    all of that line, and the class names: {facts.names}",
        *([f"read as:   {facts.reading.text}"] if facts.reading.text else []),
        *([f"with:      {text}"] if (text := public_text(plan)) else []),
        f"method:    {plan.method}, preset {plan.preset}: {find_method(plan.method).about}",
        f"critic:    {plan.describe()}",
    ]
    lines += [f"release:   {times} x {describe_event(event)}" for event, times in plan.releases().items()]
    lines.append(guarantee_line(plan))
    if plan.claimed is not None:
        lines.append(f"claimed:   {plan.claimed.epsilon:.4g}, {plan.claimed.accounting}")
    if plan.source is not None:
        lines.append("source:    an embedding that was released before; this run adds nothing to its cost")
    if plan.curve and plan.guarantee is not None:
        points = ", ".join(f"{done}: {epsilon:.3g}" for done, epsilon in plan.curve)
        lines.append(f"epsilon by step (delta, relation and observer as above): {points}")
    lines.append(
        f"generator: {plan.generator.architecture} of width {plan.generator.width}, {training.steps} steps of "
        f"{training.batch_size} fakes, learning rate {plan.optimizer.learning_rate:g}"
    )
    return "\n".join(lines)


def guarantee_line(plan: Plan) -> str:
    """The guarantee in full: epsilon, delta, relation and observer; or that there is none, and why."""
    if plan.guarantee is None:
        return f"guarantee: NONE, {plan.void}"
    return f"guarantee: {plan.guarantee}{' -- void: --insecure-reproducible' if plan.insecure_reproducible else ''}"


def outlook(plan: Plan) -> str:
    """How much noise the generator would see with a tenth, with all and with ten times the data, at this guarantee."""
    lines = ["what more or less data would buy at the same guarantee:"]
    for factor in (0.1, 1, 10):
        facts = _scaled(plan.facts, factor)
        privacy = _privacy_for(plan, facts)
        lines.append(f"  {facts.size:>20}: {_noise(plan, facts, privacy)}")
    return "\n".join(lines)


def advice(plan: Plan) -> str:
    """Which critic and why, on at most six lines; docs/methods.md explains the figures."""
    if importlib.util.find_spec("dp_accounting") is None:  # a saved plan can be shown without it
        return "which critic: to compare them, install dp-accounting"
    if plan.sums.critics is None and not plan.critic.can_stream:
        return "which critic: the kernel critic first, then a denoiser: docs/methods.md says what that was seen to buy"
    found = compare_plan(plan)
    how = "as planned" if plan.critic.can_stream else "--preset kernel"
    lines = [
        f"which critic: kernel ({how})",
        "  noise in a fake's gradient, over the longest gradient without noise: "
        f"kernel {_figure(found.kernel_noise)}, ensemble {_figure(found.run_noise)}: {_less(found)}",
        f"  (ensemble: K = {found.ensemble.critics}, noise {_figure(found.step_noise)} a step, averaged over "
        f"{found.ensemble.releases} steps: its best case)",
    ]
    if beyond_pixels(plan.facts) and not public_text(plan):
        lines.append(
            f"  colour or above {LARGEST_SIDE}x{LARGEST_SIDE}: expect coarse images; public images or features "
            "help (--public, --public-features)"
        )
    if found.is_loud:
        lines.append("  " + _loud(found))
    return "\n".join([*lines, "  how to read this: docs/methods.md"])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _less(found: Comparison) -> str:
    if found.ratio >= 1:
        return f"the kernel critic has {_figure(found.ratio)} times less"
    known = f"its critics would know {found.class_per_critic:.1g} records of a class"
    return f"the ensemble has {_figure(1 / found.ratio)} times less, but {known}"


def _loud(found: Comparison) -> str:
    """What it would take for the kernel critic's noise to be bearable."""
    unit, epsilon = found.kernel.unit, found.enough_epsilon
    other = f", or epsilon {epsilon:.2g} with these" if epsilon <= 100 else ""
    return (
        f"too few {unit}s for {found.facts.many_classes} at this epsilon: noise above {BEARABLE:g} shows with the "
        f"kernel critic too; enough would be {found.enough_units:,} {unit}s{other}"
    )


def _scaled(facts: Facts, factor: float) -> Facts:
    persons = None if facts.persons is None else max(1, round(facts.persons * factor))
    return dataclasses.replace(facts, records=max(1, round(facts.records * factor)), persons=persons)


def _privacy_for(plan: Plan, facts: Facts) -> PrivacySettings:
    if facts == plan.facts or plan.sums.critics is None or plan.claimed is not None:
        return plan.sums  # without critics noise, rate and steps cost the same whatever the number of records
    return make_draft(facts, preset=plan.preset, epsilon=plan.cost.epsilon, delta=plan.cost.delta).sums


def _noise(plan: Plan, facts: Facts, privacy: PrivacySettings) -> str:
    if plan.critic.can_stream:
        noise = score_noise(facts, privacy.noise_std)
        return f"noise {noise:.2g} on a class's score, whose range is 1"
    if privacy.critics is None:
        units = facts.records if facts.persons is None else facts.persons
        noise = privacy.noise_std / (privacy.clip_norm * privacy.rate * units)
        return f"noise {noise:.2g} on each weight's mean gradient, of which a {privacy.unit} has norm 1"
    norm = ensemble_noise(facts, privacy) / math.sqrt(privacy.releases)
    return f"{privacy.critics} critics, noise of norm {norm:.2g} on a fake's gradient (at most 1), mean over the run"
