"""From a method, public facts and a target epsilon to a plan and its noise (of clients: federated/trust.py)."""

from __future__ import annotations

import bisect
import math

from gswgan.data import ImageData, ImageStream
from gswgan.errors import PlanError
from gswgan.methods import find_method
from gswgan.methods.method import PlanRequest
from gswgan.plan.plan import Draft, Facts, Plan
from gswgan.plan.settings import MAX_STEPS, check_delta, check_epsilon, check_whole, default_delta
from gswgan.privacy import Accountant, Event, PrivacyCost, calibrate
from gswgan.privacy.events import check_neighbours, sampling_of, tally, unsampled

EPSILON = 10.0
"""Where nothing else is asked for."""

CURVE_POINTS = 8

ZEROED: dict[str, tuple[str, ...]] = {"gswgan": ("kernel", "refined")}
"""Methods and presets that can also be planned for one record zeroed instead of replaced."""


def make_plan(
    facts: Facts,
    *,
    method: str = "gswgan",
    preset: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    shards: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    insecure_reproducible: bool = False,
    neighbours: str = "replace-one",
) -> Plan:
    """Resolve everything, calibrate the noise, state the guarantee. Looks at facts only, never at data."""
    units, what = (facts.records, "records") if facts.persons is None else (facts.persons, "persons")
    if units < 2:
        raise PlanError(what, units, "at least 2", f"A guarantee hides one among others: add {what}.")
    delta, seed = check_delta(default_delta(units) if delta is None else delta), check_whole("seed", seed, 0, 2**63 - 1)
    draft = make_draft(
        facts,
        method=method,
        preset=preset,
        epsilon=epsilon,
        delta=delta,
        shards=shards,
        steps=steps,
        seed=seed,
        device=device,
        neighbours=neighbours,
    )
    total, recipe = draft.total(), draft.recipe
    return Plan(
        **vars(draft),
        guarantee=None if total is None else guarantee(total, delta=delta, unit=what.removesuffix("s")),
        claimed=recipe.claimed(draft, delta),
        lower_bound=recipe.lower_bound(draft),
        curve=epsilon_curve(draft, delta),
        seed=seed,
        insecure_reproducible=insecure_reproducible,
    )


def make_draft(
    facts: Facts,
    *,
    method: str = "gswgan",
    preset: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    shards: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    neighbours: str = "replace-one",
) -> Draft:
    """All settings of a run, with the noise calibrated where the preset leaves it open."""
    recipe = find_method(method)
    preset = recipe.presets[0] if preset is None else preset
    if preset not in recipe.presets:
        known = "one of " + ", ".join(recipe.presets)
        raise PlanError("preset", preset, f"{known} for method {method}", "Leave --preset out for the first of them.")
    if shards is not None and not recipe.takes_shards:
        raise PlanError("shards", shards, f"no shards with method {method}", "Leave --shards out.")
    request = PlanRequest(
        facts=facts,
        preset=preset,
        delta=check_delta(default_delta(facts.persons or facts.records) if delta is None else delta),
        shards=shards,
        steps=None if steps is None else check_whole("steps", steps, 1, MAX_STEPS),
        seed=seed,
        device=device,
        neighbours=check_neighbours(neighbours),
    )
    if request.neighbours != "replace-one" and (facts.persons is not None or preset not in ZEROED.get(method, ())):
        raise PlanError(
            "neighbours", neighbours, "replace-one with this method, preset and data",
            "One record zeroed is there for --preset kernel and --preset refined, without persons.",
        )  # fmt: skip
    own = recipe.own_noise(preset)
    if epsilon is not None and (own is not None or recipe.void):
        total = recipe.draft(request, own or 0.0).total()
        if total is None:
            raise PlanError("epsilon", epsilon, "no epsilon: this method has no guarantee", "Leave --epsilon out.")
        raise PlanError(
            "epsilon", epsilon, "no epsilon with a preset whose noise is fixed",
            f"To see the noise that a target needs: `gswgan privacy calibrate --sampling {sampling_of(total)} ...`.",
        )  # fmt: skip
    if own is None and not recipe.void:

        def run(noise: float) -> Event:
            total = recipe.draft(request, noise).total()
            assert total is not None
            return total

        target = check_epsilon(EPSILON if epsilon is None else epsilon)
        own = calibrate(run, epsilon=target, delta=request.delta, accountant=Accountant(request.neighbours))
    return recipe.draft(request, own or 0.0)


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
    single = isinstance(data, ImageData) and data.labels is not None and bool((data.labels == data.labels[0]).all())
    if data.labelled and (data.classes == 1 or single):
        found.append(
            "labels = 'a single class': expected records of several classes. Check the labels, or train without "
            "them: --no-labels."
        )
    return found


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
