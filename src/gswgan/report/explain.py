"""The guarantee of a run in plain text, for the commands that print it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gswgan.plan.plan import Plan
from gswgan.plan.settings import from_plain
from gswgan.plan.wording import not_covered, strength
from gswgan.privacy import PrivacyCost
from gswgan.privacy.events import describe_event
from gswgan.run.folder import RunFolder, read_json
from gswgan.run.publish import cost_from_statement

LARGEST_SHOWN = 50.0
"""The largest epsilon whose factor e^epsilon is written as a number."""


def outcome(folder: RunFolder) -> str:
    """What a finished run has written, and its guarantee."""
    statement = read_json(folder.privacy, "privacy.json")
    plan, kept = folder.plan(), read_json(folder.model, "model.json")["labels"]
    left_out = [name for label, name in enumerate(plan.facts.class_names) if label not in kept]
    lines = [f"left out, too rare to be told from the noise: {', '.join(left_out)}"] if left_out else []
    may = f"may be published; {folder.private} may not" if plan.guarantee is not None else "NOT to be published"
    lines += [
        f"samples:   {folder.samples}",
        f"release:   {folder.release} ({may})",
        f"guarantee: NONE, {statement['void']}"
        if statement["void"]
        else f"guarantee: {cost_from_statement(statement)}",
    ]
    if statement["claimed"] and not statement["void"]:
        claim = statement["claimed"]["epsilon"]
        lines.append(f"claimed by the paper's accounting, and NOT a guarantee: {claim:.4g}")
    return "\n".join(lines)


def outcome_to_each(folder: RunFolder) -> str:
    """What a finished run of clients has written, and its guarantee towards each observer."""
    statement = read_json(folder.privacy, "privacy.json")
    also = [f"also:      {from_plain(PrivacyCost, other)}" for other in statement["guarantees"][1:]]
    assumed = [f"assumed:   {one}" for one in statement["assumed"]]
    none = [f"NO guarantee towards the {other['observer']}: {other['why']}" for other in statement["open_to"]]
    sites = [f"sites:     {one}" for one in statement.get("sites", {}).get("text", [])]
    return "\n".join([outcome(folder), *also, *assumed, *none, *sites])


def explanation(plan: Plan, statement: Mapping[str, Any]) -> str:
    """What the guarantee says, what it rests on, what it covers and what it does not cover."""
    cost = cost_from_statement(statement)
    if cost is None:
        return "\n".join([
            f"NO GUARANTEE: this release was {statement['void']}.",
            "",
            "There is no epsilon, of any size. The generator learned from the records without noise and may draw them",
            "again: treat it, and everything drawn from it, as the data itself.",
        ])  # fmt: skip
    unit = cost.unit
    change = {"replace-one": "exchange it for any other", "zeroed": "let it add nothing"}[cost.neighbours]
    embedding = "the embedding, " if plan.critic.has_embedding else ""
    releases = plan.releases()
    lines = []
    if statement.get("void"):
        lines += [f"NO GUARANTEE: this release was {statement['void']}.", "With a secret key it would read:", ""]
    lines += [
        f"{cost}.", "", "What it says",
        f"  Take any one {unit} of the {plan.facts.data} data and {change}. Whatever is in release/,",
        f"  the chance of seeing it changes by a factor of at most {_factor(cost.epsilon)}, except for a",
        f"  probability of {cost.delta:g}. {_strength(cost.epsilon)} It holds against everybody who",
        f"  sees release/ (observer: {cost.observer}), whatever else they know, and for any number of samples",
        "  drawn from the generator.", "", "What it rests on",
        f"  {sum(releases.values())} planned release(s) of sums to which one {unit}'s content can add so little",
        f"  that the noise hides it (sampling: {cost.sampling}; accountant: {cost.accountant}):",
        *(f"  {times} x {describe_event(event)}." for event, times in releases.items()),
        "  Each is a line of ledger.jsonl.",
        "", "What it covers", f"  everything under release/: the generator, its samples, {embedding}the ledger.", "",
        "What it does not cover", *(f"  - {line}" for line in not_covered(plan, unit)),
    ]  # fmt: skip
    if statement.get("claimed"):
        claim = statement["claimed"]
        lines += [
            "",
            f"Claimed for this run by the paper's accounting: epsilon {claim['epsilon']:.4g}. It does not hold:",
        ]
        lines += [f"  {claim['accounting']}."]
    return "\n".join(lines)


def _factor(epsilon: float) -> str:
    """The factor as a number, where somebody can make sense of it."""
    return f"e^{epsilon:.4g}" + (f" = {math.exp(epsilon):.3g}" if epsilon <= LARGEST_SHOWN else "")


def _strength(epsilon: float) -> str:
    if epsilon > LARGEST_SHOWN:
        return "Such a factor rules nothing out: this guarantee is not meaningful."
    return f"The protection is {strength(epsilon)}."
