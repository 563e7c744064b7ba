"""What is promised to whom where a few sites hold the records: for privacy.json, for the operator and for a site."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gswgan.errors import PlanError, RunError
from gswgan.federated.messages import answer_bytes
from gswgan.federated.silos import first_sums, protect_of
from gswgan.federated.site_steps import numbers_of, steps_of
from gswgan.federated.trust import check_cost, is_refined, promise, spent, spent_with_coins, trust_of
from gswgan.methods.advice import BEARABLE
from gswgan.plan.defaults import gradient_noise, sum_noise
from gswgan.plan.facts import Silos
from gswgan.plan.plan import Plan
from gswgan.privacy.accountant import visible_draw_epsilon
from gswgan.privacy.events import BaseEvent, Composed, Repeated, gaussian_of, tally
from gswgan.privacy.filter import with_repeats

EXACT = "exact Gaussian (Balle and Wang 2018)"
"""How figures for other observers, relations and groups are computed."""

_TO_ALL = "the server, the other sites and the public"
_NOT_SERVER = "the public and the other sites, not the server"

_OWN_NOISE = (
    "every site runs only code that it installed itself (`gswgan federate node`, or a round by files), with good "
    "entropy; one that runs the app that a server sends has NO guarantee towards that server",
    "whether and when a site answers does not depend on its records",
    "the noise of other sites is not counted on",
)
_CENTRAL_NOISE = (
    "the server adds the noise, publishes nothing else, and removes the answers when the round is over",
    "whether and when a site answers does not depend on its records",
)


def noise_of_sum(plan: Plan, answers: int | None = None) -> float:
    """Standard deviation of the noise in the released sum: planned, or with the answers of so many sites."""
    if answers is None or plan.sums.observer != "server":
        return sum_noise(plan.facts, first_sums(plan))
    return first_sums(plan).noise_std * math.sqrt(answers)


def of_silos(
    plan: Plan, events: Sequence[BaseEvent], answered: Sequence[str], rounds: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """What is guaranteed to each observer, to whom a site is open, what is assumed, and which sites have answered.

    `rounds`: who has answered in each round of DP-SGD.
    """
    trust, silos = trust_of(plan), _silos(plan)
    covered, share = with_repeats(plan.releases(), tally(Composed(events=tuple(events))))
    releases = [event for event, times in tally(covered).items() for _ in range(times)]
    epsilon = spent(releases, neighbours="replace-one", delta=plan.cost.delta * share)
    cost = plan.cost
    if epsilon > cost.epsilon:
        cost = dataclasses.replace(cost, epsilon=epsilon, accountant=cost.accountant if is_refined(plan) else EXACT)
    to = dict.fromkeys([promise(trust, protect_of(plan))[0], "public"])
    clear = "it is trusted: it receives every site's exact sums, and adds the noise that protects them from the others"
    noise, own = noise_of_sum(plan, len(answered)), first_sums(plan).noise_std
    missing = [site.name for site in silos.sites if site.name not in answered]
    text = [
        f"the sites that answered: {', '.join(answered)}",
        *([f"not in it: {', '.join(missing)}; the plan needs {silos.min_sites}"] if missing else []),
        f"noise of std {noise:.5g} in every number of the released sum"
        + (f": {own:.5g} by each of {len(answered)} sites" if trust == "untrusted-server" else ""),
        *steps_lines(plan),
        *missing_lines(answered, rounds),
        relation(plan),
        *group_lines(plan, releases, cost.delta * share),
    ]
    return {
        "trust": trust,
        "guarantees": [dataclasses.replace(cost, observer=observer).to_json() for observer in to],
        "open_to": [] if trust == "untrusted-server" else [{"observer": "server", "epsilon": None, "why": clear}],
        "assumed": list(_OWN_NOISE if trust == "untrusted-server" else _CENTRAL_NOISE),
        "sites": {
            "answered": list(answered), "missing": missing, "noise_std": noise, "text": text,
            **({"rounds": [list(sites) for sites in rounds]} if is_refined(plan) else {}),
        },
    }  # fmt: skip


def answered_of(statement: Mapping[str, Any], plan: Plan) -> list[str]:
    """The sites that have answered, as a statement has it; a RunError where the plan cannot have ended so."""
    silos, found = _silos(plan), statement["sites"]["answered"]
    known = [site.name for site in silos.sites if site.name in found]
    if found != known or len(known) < silos.min_sites:
        raise RunError("sites", found, f"at least {silos.min_sites} of the sites of the plan, in their order")
    return known


def rounds_answered(statement: Mapping[str, Any], plan: Plan) -> list[list[str]]:
    """Who has answered in each round of DP-SGD, as a statement has it; a RunError where it cannot have been so."""
    if not is_refined(plan):
        return []
    silos, answered, found = _silos(plan), answered_of(statement, plan), statement["sites"]["rounds"]
    sound = [[name for name in answered if name in sites] for sites in found]
    if found != sound or len(found) != len(steps_of(plan)) or any(len(sites) < silos.min_sites for sites in found):
        expected = f"in each of {len(steps_of(plan))} rounds at least {silos.min_sites} of the sites that answered"
        raise RunError("rounds", found, expected)
    return sound


def relation(plan: Plan) -> str:
    """The neighbours and the observer of a plan of silos, in a sentence."""
    unit, to = protect_of(plan), _TO_ALL if trust_of(plan) == "untrusted-server" else _NOT_SERVER
    return (
        f"neighbours: one {unit} of one site replaced by any other, the sizes of the sites being public; promised to "
        f"{to}. Sites hold different records, so epsilon is the largest of any one site, not the sum over sites"
    )


def steps_lines(plan: Plan) -> list[str]:
    """What follows the kernel critic's round, where something does."""
    if not is_refined(plan):
        return []
    noise, rounds = plan.sums.noise_std / plan.sums.clip_norm, len(steps_of(plan))
    return [
        f"then {plan.sums.releases} steps of DP-SGD at each site in {rounds} rounds: records drawn by the site's coins "
        f"at rate {plan.sums.rate:.5g}, noise of std {noise:.5g} times the clip norm; the server averages the weights "
        "of the sites that answer a round"
    ]


def missing_lines(answered: Sequence[str], rounds: Sequence[Sequence[str]]) -> list[str]:
    """Who has answered the plan and not a round of DP-SGD."""
    found = []
    for number, sites in enumerate(rounds, start=1):
        if missing := [name for name in answered if name not in sites]:
            found.append(f"not in round {number} of DP-SGD: {', '.join(missing)}")
    return found


def group_lines(plan: Plan, releases: Sequence[BaseEvent], delta: float) -> list[str]:
    """What one person with a record (or records) at several sites is promised: m sites, m times mu."""
    if is_refined(plan):
        return [_group_with_coins(plan, releases, delta)]
    mu, most = math.sqrt(sum(gaussian_of(event).mu ** 2 for event in releases)), len(_silos(plan).sites)
    figures = [
        f"{sites} sites: epsilon {visible_draw_epsilon(sites * mu, 1, 1, delta):.4g}" for sites in sorted({2, most})
    ]
    what = "a record at m sites" if protect_of(plan) == "record" else "records at m sites"
    return [f"one person with {what} is protected as a group, at m times mu: {', '.join(figures)}, at delta {delta:g}"]


def _group_with_coins(plan: Plan, releases: Sequence[BaseEvent], delta: float) -> str:
    """One record at each of two sites, and at all: their answers have coins and noise of their own, so they compose."""
    figures, one = [], Composed(events=tuple(releases))
    for sites in sorted({2, len(_silos(plan).sites)}):
        try:
            epsilon = spent_with_coins(Repeated(event=one, times=sites), neighbours="replace-one", delta=delta)
        except PlanError:  # too much to compute
            epsilon = math.inf
        figures.append(f"{sites} sites: epsilon {epsilon:.4g}")
    return f"one person with a record at each of several sites: {', '.join(figures)}, at delta {delta:g}"


def who_sees_what(plan: Plan) -> list[str]:
    """To whom a site's answer shows what, at which epsilon, and how many bytes leave the site."""
    unit, cost = protect_of(plan), check_cost(plan) or plan.cost.epsilon
    epsilon = f"epsilon {cost:.4g} at delta {plan.sums.delta:g} for one {unit} of this site replaced"
    if trust_of(plan) == "untrusted-server":
        lines = [
            f"operator:  {epsilon}. It gets this site's sums with all of this site's own noise"
            + (", and then weights that were trained with it." if is_refined(plan) else "."),
            "others:    the same. The other sites and the public see no more than the operator.",
        ]
    else:
        lines = [
            "operator:  NO guarantee. It gets this site's exact sums in the clear, and is trusted with them.",
            f"others:    {epsilon}, if the operator adds the noise and publishes nothing else.",
        ]
    releases = [event for event, times in plan.releases().items() for _ in range(times)]
    rows, columns = plan.facts.classes, plan.critic.kernel_settings.features + 1
    return [
        *lines,
        *(f"several:   {line}" for line in group_lines(plan, releases, plan.sums.delta)),
        f"leaves:    one message, once: {answer_bytes(plan):,} bytes of sums ({rows} classes x {columns:,} numbers), "
        "the site's name and the plan's digest. No record, no person's id, no file name",
        *_leaves_later(plan),
        "in the plan: the sites' names and sizes and the class names, which are public",
    ]


def _leaves_later(plan: Plan) -> list[str]:
    if not is_refined(plan):
        return []
    count, axes = numbers_of(plan)
    comes = 4 * (count + sum(map(math.prod, axes.values())))
    return [
        f"later:     {len(steps_of(plan))} more messages, one per round: {4 * count:,} bytes of weights, trained from "
        f"the operator's on this site's records with noise. Questions have as many bytes, the first {comes:,}. "
        "The answer to the plan agrees to all of it"
    ]


def silo_advice(plan: Plan) -> str:
    """The sites with their sizes, whom they trust, and how much noise it is; from public facts alone."""
    silos, noise = _silos(plan), gradient_noise(plan.facts, noise_of_sum(plan))
    sizes = ", ".join(
        f"{site.name} ({site.records:,} records" + (f" of {site.persons:,} persons)" if site.persons else ")")
        for site in silos.sites
    )
    own = f"every site adds noise of std {first_sums(plan).noise_std:.4g}" if plan.sums.observer == "server" else (
        f"the server adds noise of std {plan.sums.noise_std:.4g} once"
    )  # fmt: skip
    loud = "" if noise <= BEARABLE else f": above {BEARABLE:g}, expect little of the images"
    return "\n".join([
        f"trust:     {trust_of(plan)}: {own}, {noise_of_sum(plan):.4g} in the sum",
        f"sites:     {sizes}",
        f"needed:    {silos.min_sites} of {len(silos.sites)} sites must answer",
        relation(plan),
        f"noise:     {noise:.2g} in a fake's gradient, over the longest gradient without noise{loud}",
    ])  # fmt: skip


def _silos(plan: Plan) -> Silos:
    assert plan.facts.silos is not None
    return plan.facts.silos
