"""The planner: from a method, public facts and a target epsilon to a plan and its noise, centralized or of clients."""

from __future__ import annotations

import bisect
import math
from typing import Any, get_args

from gswgan.critics.kernel.features import PublicNetwork
from gswgan.data import ImageData, ImageStream
from gswgan.errors import PlanError, short
from gswgan.plan.enough import too_dark, too_few
from gswgan.plan.facts import Facts
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import Draft, Plan
from gswgan.plan.settings import check_delta, check_epsilon, check_whole, default_delta
from gswgan.privacy import Accountant, Event, PrivacyCost, calibrate
from gswgan.privacy.events import check_neighbours, sampling_of, tally, unsampled
from gswgan.ranges import MAX_STEPS

EPSILON = 10.0
"""Where nothing else is asked for."""

CURVE_POINTS = 8

LARGE_EPSILON, LARGE_DELTA = 20.0, 1e-3
"""Above them a guarantee is warned about before the run."""


def make_request(
    method: Method, facts: Facts, *, preset: str | None = None, delta: float | None = None, **options: Any
) -> PlanRequest:
    """What is asked of the method, checked, with the preset and the delta that are taken when nothing is said."""
    preset = method.presets[0] if preset is None else preset
    if preset not in method.presets:
        known = "one of " + ", ".join(method.presets)
        todo = "Leave --preset out for the usual one."
        raise PlanError("preset", preset, f"{known} for method {method.name}", todo)
    if options.get("critics") is not None and not method.takes_critics:
        raise PlanError("critics", options["critics"], f"no number with method {method.name}", "Leave --critics out.")
    for name, least, most in (("seed", 0, 2**63 - 1), ("steps", 1, MAX_STEPS)):
        if options.get(name) is not None:
            options[name] = check_whole(name, options[name], least, most)
    if check_neighbours(options.get("neighbours", "replace-one")) != "replace-one" and (
        facts.persons is not None or preset not in method.zeroed_presets
    ):
        raise PlanError(
            "neighbours", options["neighbours"], "replace-one with this method, preset and data",
            "One record zeroed is there for --preset kernel and --preset refined, without persons.",
        )  # fmt: skip
    if options.get("public") is not None and preset not in method.public_presets:
        raise PlanError(
            "public", f"{options['public'].images:,} images",
            f"none: preset {preset} of {method.name} has no use for them",
            "Leave --public out, or use --preset kernel or --preset refined.",
        )  # fmt: skip
    if (asked := options.get("public_features") or "") not in get_args(PublicNetwork):
        raise PlanError("public_features", asked, "vgg19", "Leave --public-features out for none.")
    if asked and (preset not in method.public_presets or facts.silos is not None):
        raise PlanError(
            "public_features", asked, f"none with preset {preset} of {method.name}, or where sites hold the records",
            "Leave --public-features out, or use --preset kernel or --preset refined.",
        )  # fmt: skip
    options["public_features"] = asked
    delta = check_delta(default_delta(facts.persons or facts.records) if delta is None else delta)
    return PlanRequest(facts=facts, preset=preset, delta=delta, **options)


def plan_run(method: Method, request: PlanRequest) -> Plan:
    """Resolve everything, calibrate the noise, state the guarantee. Looks at facts only, never at data."""
    facts = request.facts
    units, what = (facts.records, "records") if facts.persons is None else (facts.persons, "persons")
    if units < 2:
        raise PlanError(what, units, "at least 2", f"A guarantee hides one among others: add {what}.")
    draft = draft_run(method, request)
    total, observer = draft.total(), "public" if request.federation is None else request.federation.observer
    unit = what.removesuffix("s")
    return Plan(
        **vars(draft),
        guarantee=None if total is None else guarantee(total, delta=request.delta, unit=unit, observer=observer),
        claimed=draft.critic.claimed(draft, request.delta),
        lower_bound=draft.critic.lower_bound(draft),
        curve=epsilon_curve(draft, request.delta),
        seed=request.seed,
        insecure_reproducible=request.insecure_reproducible,
    )


def draft_run(method: Method, request: PlanRequest) -> Draft:
    """All settings of a run, with the noise calibrated where the preset leaves it open."""
    if not method.has_guarantee:
        if request.epsilon is not None:
            expected = "no epsilon: this method has no guarantee"
            raise PlanError("epsilon", request.epsilon, expected, "Leave --epsilon out.")
        return method.draft(request, 0.0)
    noise = method.own_noise(request.preset)
    if noise is not None and request.epsilon is not None:
        sampling = sampling_of(method.events(request, noise))
        raise PlanError(
            "epsilon", request.epsilon, "no epsilon with a preset whose noise is fixed",
            f"To see the noise that a target needs: `gswgan privacy calibrate --sampling {sampling} ...`.",
        )  # fmt: skip
    if noise is None:
        neighbours = request.neighbours if request.federation is None else request.federation.neighbours
        noise = calibrate(
            lambda noise: method.events(request, noise),
            epsilon=check_epsilon(EPSILON if request.epsilon is None else request.epsilon),
            delta=request.delta,
            accountant=Accountant(neighbours),
        )
    return method.draft(request, noise)


def check_large_delta(plan: Plan, *, allowed: bool) -> None:
    """Refuse a delta of 1 / n or more (n: records, persons or clients) unless it was asked for."""
    units, cost = plan.facts.persons or plan.facts.records, plan.guarantee
    if cost is not None and cost.delta >= 1 / units and not allowed:
        raise PlanError(
            "delta", cost.delta, f"less than 1/{units}, since it allows one {cost.unit} to be published in the clear",
            "Pass a smaller --delta. If it is meant, --allow-large-delta (Python: allow_large_delta=True).",
        )  # fmt: skip


def plan_warnings(plan: Plan, data: ImageData | ImageStream) -> list[str]:
    """What is allowed but hardly meant, in sentences for the holder of the data, before the run. Not for release."""
    facts, found = plan.facts, []
    units = facts.records if facts.persons is None else facts.persons
    cost = plan.guarantee
    if cost is not None and cost.delta >= 1 / units:
        found.append(
            f"delta = {cost.delta:g}: expected less than 1/{units}: it allows one {cost.unit} to be "
            "published in the clear. Pass a smaller --delta."
        )
    elif cost is not None and cost.delta > LARGE_DELTA:
        found.append(
            f"delta = {cost.delta:g}: expected at most {LARGE_DELTA:g}: it is the probability with which the guarantee "
            f"may fail altogether. Pass a smaller --delta."
        )
    if cost is not None and cost.epsilon > LARGE_EPSILON:
        found.append(
            f"epsilon = {cost.epsilon:.4g}: expected at most {LARGE_EPSILON:g}: above it the guarantee says next to "
            f"nothing about what an attacker can learn of one {cost.unit}. Pass a smaller --epsilon."
        )
    if (wrong := too_few(plan)) is not None:
        found.append(str(wrong))
    single = isinstance(data, ImageData) and data.labels is not None and bool((data.labels == data.labels[0]).all())
    if data.labelled and (data.classes == 1 or single):
        found.append(
            "labels = 'a single class': expected records of several classes. Check the labels, or train without "
            "them: --no-labels."
        )
    elif missing := _without_records(data):
        found.append(
            f"labels = 'no record of {short(', '.join(missing))}': expected records of every class. Classes are "
            "numbered from 0: check the labels, the folders and the number of classes."
        )
    if (dark := too_dark(data)) is not None:
        found.append(str(dark))
    return found


def _without_records(data: ImageData | ImageStream) -> list[str]:
    """The names of classes that no record has, where all records are at hand."""
    if not isinstance(data, ImageData) or data.labels is None:
        return []
    here = set(data.labels.tolist())
    return [name for label, name in enumerate(data.class_names) if label not in here]


def guarantee(total: Event, *, delta: float, unit: str = "record", observer: str = "public") -> PrivacyCost:
    """What may be stated for this total of a run."""
    neighbours = unsampled(next(iter(tally(total)))).neighbours
    accountant = Accountant(neighbours)
    epsilon = accountant.epsilon(total, delta)
    if not math.isfinite(epsilon):
        raise PlanError("delta", delta, "a delta at which some epsilon can be stated", "Pass a larger --delta.")
    return PrivacyCost(
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        unit=unit,
        observer=observer,
        sampling=sampling_of(total),
        accountant=accountant.method(total),
    )


def epsilon_curve(draft: Draft, delta: float) -> tuple[tuple[int, float], ...]:
    """Epsilon spent after a growing number of steps, to the end; empty where it does not grow with them."""
    steps = draft.training.steps
    alike = bisect.bisect_right(range(1, steps + 1), 0, key=lambda done: draft.total(done) != draft.total(1))
    start = alike if alike > 1 else 0  # what is released before the first step may last for some
    parts = range(0 if start else 1, CURVE_POINTS + 1)
    points = sorted({start + math.ceil((steps - start) * part / CURVE_POINTS) for part in parts})
    totals = [draft.total(done) for done in points]
    if totals[0] is None or totals[-1] is None or tally(totals[0]) == tally(totals[-1]):
        return ()
    accountant = Accountant(unsampled(next(iter(tally(totals[-1])))).neighbours)
    return tuple((done, accountant.epsilon(spent, delta)) for done, spent in zip(points, totals) if spent is not None)
