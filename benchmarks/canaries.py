"""Audits of whole trainings with canaries in the data: bounds beside what is stated (docs/results.md).

    python benchmarks/canaries.py --out benchmarks/results/canaries-digits-cpu.json

One training for each row (Steinke et al. 2023): the presets as they are, the ensemble with the worst critics that its
guarantee allows, and four planted leaks in runs of epsilon 1, beside the same runs without them. A leak is found where
the lower bound of the white box, at 95 %, exceeds the stated epsilon. On machines without dp-accounting the plans come
from elsewhere: `--save-plans FOLDER` makes those of the presets and nothing else, `--plans FOLDER` audits them and
leaves the leaks out. A row costs its training and little else.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from canary_audit import Canaries, Tamper, View, audit_training, make_canaries
from gswgan import load_data
from gswgan.data import ImageData
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from leaks import (
    WorstCaseCritics,
    by_feedback,
    by_frequencies,
    fed_back,
    fitted_features,
    places_of_parts,
    shared_part,
    shared_warm_start,
)
from record import record

EPSILON = 1.0
"""Of the runs with leaks."""

WARM = 1500
"""Times that the shared warm start learns: long enough to know its ten records by heart."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Canaries, where they are, and what is planted and looked at besides the releases."""

    canaries: Canaries
    tamper: Tamper | None = None
    views: dict[str, View] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training to audit: honest ones must not be refuted, leaks must."""

    name: str
    plan: Callable[[Facts], Plan]
    attack: Callable[[Plan, ImageData, int], Attack]
    leak: bool = False


def many(plan: Plan, data: ImageData, seed: int, *, keep_class: bool) -> Attack:
    return Attack(canaries=make_canaries(data, min(500, data.n // 2), seed=seed, keep_class=keep_class))


def worst_critics(plan: Plan, data: ImageData, seed: int) -> Attack:
    """A canary in every other part."""
    places = places_of_parts(plan)[::2, 0]
    canaries = make_canaries(data, len(places), seed=seed, keep_class=True, among=places)
    worst = WorstCaseCritics(canaries)
    return Attack(canaries=canaries, tamper=worst.tamper, views={"blocks": worst.look})


PRESETS = {
    "kernel": Case(
        name="kernel", plan=partial(make_plan, preset="kernel"), attack=partial(many, keep_class=False)
    ),
    "ensemble": Case(
        name="ensemble", plan=partial(make_plan, preset="ensemble"), attack=partial(many, keep_class=True)
    ),
    "ensemble-alone": Case(
        name="ensemble-alone, the worst critics that are allowed",
        plan=partial(make_plan, preset="ensemble-alone"),
        attack=worst_critics,
    ),
}  # fmt: skip


def small_ensemble(facts: Facts, *, updates: int, steps: int, learning_rate: float, **options: Any) -> Plan:
    """Parts of ten records, and critics that learn theirs by heart."""
    critics = facts.records // 10
    plan = make_plan(facts, preset="ensemble-alone", epsilon=EPSILON, critics=critics, steps=steps, **options)
    critic = dataclasses.replace(plan.critic, updates=updates, learning_rate=learning_rate)
    return dataclasses.replace(plan, critic=critic)


def in_first_part(plan: Plan, data: ImageData, seed: int, *, tamper: Tamper | None = None) -> Attack:
    """All its records are canaries, one for each class."""
    canaries = make_canaries(data, 10, seed=seed, keep_class=True, among=places_of_parts(plan)[0])
    return Attack(canaries=canaries, tamper=tamper)


def fifty(plan: Plan, data: ImageData, seed: int, *, tamper: Tamper | None = None, **views: View) -> Attack:
    canaries = make_canaries(data, 50, seed=seed, keep_class=False)
    return Attack(canaries=canaries, tamper=tamper, views=views)


def leaks(**options: Any) -> list[Case]:
    """The four leaks and the same trainings without them; `options` for the plans."""
    long = partial(small_ensemble, updates=24, steps=10, learning_rate=1e-2, **options)
    short = partial(small_ensemble, updates=2, steps=2, learning_rate=3e-3, **options)
    kernel = partial(make_plan, preset="kernel", epsilon=EPSILON, steps=100, **options)
    warm = shared_warm_start(WARM)
    return [
        Case(name="every critic reads the first partition", plan=long, leak=True,
             attack=partial(in_first_part, tamper=shared_part)),
        Case(name="every critic reads its own partition", plan=long, attack=in_first_part),
        Case(name="critics start as copies of one that saw its partition", plan=short, leak=True,
             attack=partial(in_first_part, tamper=warm)),
        Case(name="critics start from public weights", plan=short, attack=in_first_part),
        Case(name="features fitted to the data", plan=kernel, leak=True,
             attack=partial(fifty, tamper=fitted_features, frequencies=by_frequencies)),
        Case(name="a logged statistic weighs the gradients", plan=kernel, leak=True,
             attack=partial(fifty, tamper=fed_back, weights=by_feedback)),
        Case(name="public features, nothing fed back", plan=kernel, attack=fifty),
    ]  # fmt: skip


def audit(case: Case, plan: Plan, data: ImageData, *, seed: int, device: str = "cpu") -> dict[str, Any]:
    began, attack = time.monotonic(), case.attack(plan, data, seed)
    found = audit_training(
        plan, data, attack.canaries, device=torch.device(device), tamper=attack.tamper, views=attack.views
    )
    row = {"name": case.name, "data": data.name, "seed": seed, "leak": case.leak, **found.to_json()}
    row |= {"as_expected": found.refuted == case.leak, "seconds": round(time.monotonic() - began, 1)}
    black = max(bound.epsilon for bound in found.black_box.values())
    print(
        f"{case.name}, seed {seed}: states {found.stated.epsilon:.3g}; at least {found.lower_bound:.3g} (white box), "
        f"{black:.3g} (black box): {'REFUTED' if found.refuted else 'not refuted'}, {row['seconds']:.0f} s",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=1, help="canaries and coins anew for each")
    parser.add_argument("--save-plans", type=Path, help="make the plans of the presets and stop")
    parser.add_argument("--plans", type=Path, help="audit these plans of the presets")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    data, rows = load_data(options.data), []
    facts = Facts.of(data)
    if options.save_plans is not None:
        options.save_plans.mkdir(parents=True, exist_ok=True)
        for name, case in PRESETS.items():
            case.plan(facts, device=options.device).save(options.save_plans / f"{name}.json")  # type: ignore[call-arg]
        return
    if options.plans is not None:
        chosen = [(case, read_plan(options.plans / f"{name}.json")) for name, case in PRESETS.items()]
    else:
        chosen = [(case, case.plan(facts)) for case in (*PRESETS.values(), *leaks())]
    for case, plan in chosen:
        for seed in range(options.seeds):
            rows.append(audit(case, plan, data, seed=seed, device=options.device))
            record(options.out, {"confidence": 0.95, "rows": rows})
    if not all(row["as_expected"] for row in rows):
        raise SystemExit("not as expected")


if __name__ == "__main__":
    main()
