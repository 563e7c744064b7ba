"""What is promised to whom, in words and figures: for privacy.json, for the operator and for a site."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from gswgan.federated.memory import Memory
from gswgan.federated.messages import answer_bytes
from gswgan.federated.silo_statement import EXACT, of_silos, silo_advice, who_sees_what
from gswgan.federated.trust import (
    check_cost,
    has_rounds,
    in_relation,
    is_refined,
    promise,
    spent,
    trust_of,
)
from gswgan.methods.advice import BEARABLE, ensemble_noise
from gswgan.plan.defaults import gradient_noise, sum_noise
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan, PrivacySettings
from gswgan.privacy import Accountant, DrawnOne, Event, PrivacyCost, Repeated, Sampled
from gswgan.privacy.events import BaseEvent, Composed, Neighbours, gaussian_of, tally
from gswgan.privacy.filter import with_repeats

_CLEAR = {False: "every client's clipped class sums", True: "the clipped gradients of the clients that it asks"}
"""What a trusted server receives, in one round or in rounds."""

_UNTRUSTED = (
    "every client runs only code that it installed itself (`gswgan federate node`, or a round by files); one that runs "
    "the app that a server sends has NO guarantee towards that server, which can read its records",
    "whether and when a client answers does not depend on its data",
    "the noise of other clients is not counted on: the public is promised what the server is promised",
)


def observers(
    plan: Plan, events: Iterable[BaseEvent], answered: Sequence[str] = (), rounds: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """What is guaranteed to each observer, to whom a client is open, and what is assumed: for privacy.json.

    `events`: all that the server's ledger has. `answered`: which silos have, and in `rounds` of DP-SGD.
    """
    trust = trust_of(plan)
    if plan.facts.silos is not None:
        return of_silos(plan, list(events), answered, rounds)
    covered, share = with_repeats(plan.releases(), tally(Composed(events=tuple(events))))
    cost = _cost_of_rounds if has_rounds(plan) else _cost_of_one_round
    promised: tuple[tuple[str, Neighbours], ...] = (promise(trust), ("public", "replace-one"))
    sees = (
        f"it is trusted: it receives {_CLEAR[has_rounds(plan)]} in the clear, and adds the noise that protects them "
        "from everybody else"
    )
    return {
        "trust": trust,
        "guarantees": [cost(plan, covered, share, *each).to_json() for each in promised],
        "open_to": [{"observer": "server", "epsilon": None, "why": sees}] if trust == "trusted-aggregator" else [],
        "assumed": _assumed(plan),
    }


def _cost_of_one_round(plan: Plan, covered: Event, share: float, observer: str, neighbours: Neighbours) -> PrivacyCost:
    releases = [event for event, times in tally(covered).items() for _ in range(times)]
    epsilon = spent(releases, neighbours=neighbours, delta=plan.cost.delta * share)
    if neighbours == plan.cost.neighbours and epsilon <= plan.cost.epsilon:
        return dataclasses.replace(plan.cost, observer=observer)
    return dataclasses.replace(
        plan.cost, epsilon=epsilon, neighbours=neighbours, observer=observer, accountant=EXACT
    )  # fmt: skip


def _cost_of_rounds(plan: Plan, covered: Event, share: float, observer: str, neighbours: Neighbours) -> PrivacyCost:
    moved = ((_moved(event, neighbours), times) for event, times in tally(covered).items())
    total = Composed(events=tuple(Repeated(event=event, times=times) for event, times in moved))
    accountant = Accountant(neighbours)
    epsilon = accountant.epsilon(total, plan.cost.delta * share)
    if neighbours == plan.cost.neighbours:
        epsilon = max(epsilon, plan.cost.epsilon)
    return dataclasses.replace(
        plan.cost, epsilon=epsilon, neighbours=neighbours, observer=observer, accountant=accountant.method(total)
    )


def _moved(event: BaseEvent, neighbours: Neighbours) -> BaseEvent:
    """A recorded release under the other relation."""
    inner = in_relation(gaussian_of(event), neighbours)
    if isinstance(event, Sampled):
        return Sampled(rate=event.rate, event=inner)
    return DrawnOne(count=event.count, event=inner) if isinstance(event, DrawnOne) else inner


def _assumed(plan: Plan) -> list[str]:
    who = "a client is one person" if plan.cost.unit == "person" else "a client is invented by the simulation"
    if trust_of(plan) == "trusted-aggregator" and has_rounds(plan):
        return [
            "the server adds the noise, tosses the coins, keeps both secret, and removes the answers after a round",
            f"{who}; one that does not answer counts as zero, and nobody takes its place",
        ]
    if trust_of(plan) == "trusted-aggregator":
        return [
            "the server adds the noise, publishes nothing else, and removes the answers when the round is over",
            f"{who}, and answers once",
        ]
    fakes = ", with any fakes" if has_rounds(plan) else ""
    assumed = [f"the client runs this software with good entropy; the server may do as it likes{fakes}", *_UNTRUSTED]
    if plan.sums.sampling == "one":
        assumed.append(
            "the server draws whom it asks without looking at the data; a client's cap holds whomever it asks"
        )
    return assumed


def kernel_noise(facts: Facts, privacy: PrivacySettings) -> float:
    """Noise in a fake's gradient over the longest gradient without noise, for the kernel critic's one round."""
    return gradient_noise(facts, sum_noise(facts, privacy))


def clients_needed(clients: int, noise: float, privacy: PrivacySettings) -> int:
    """How many clients it takes until this noise is bearable.

    It falls with 1 / clients where it is added once, with 1 / sqrt(clients) where each client adds its own.
    """
    return math.ceil(clients * (noise / BEARABLE) ** (2 if privacy.observer == "server" else 1))


def advice(plan: Plan) -> str:
    """Whom it trusts, how much noise it is, and how many clients it takes; from public facts alone."""
    if plan.facts.silos is not None:
        return silo_advice(plan)
    privacy, clients = plan.sums, plan.facts.persons or 1
    lines = [f"trust:     {trust_of(plan)}"]
    if has_rounds(plan):
        noise = ensemble_noise(plan.facts, privacy) / math.sqrt(privacy.releases)
        if privacy.observer == "server" and privacy.sampling != "one":
            noise *= math.sqrt(clients)
        lines[0] += f"; {_participants(privacy)}, {privacy.releases:,} rounds"
        lines.append(f"noise:     {noise:.2g} in a fake's gradient (at most 1 without noise), averaged over the run")
    else:
        noise = kernel_noise(plan.facts, privacy)
        lines.append(f"noise:     {noise:.2g} in a fake's gradient, over the longest gradient without noise")
    needed = clients_needed(clients, noise, privacy)
    more = "" if clients >= needed else f": {needed / clients:,.1f} times as many; expect little of the images"
    if privacy.sampling != "one":
        lines.append(f"clients:   {clients:,}; for noise up to {BEARABLE:g} it takes {needed:,}{more}")
    if privacy.observer == "server" and more and not has_rounds(plan):
        other = dataclasses.replace(
            privacy, observer="public", neighbours="zeroed", noise_std=privacy.noise_std / 2
        )  # fmt: skip
        lines.append(
            "           with a trusted aggregator (one client zeroed, the same epsilon) it would take "
            f"{clients_needed(clients, kernel_noise(plan.facts, other), other):,}"
        )
    return "\n".join(lines)


def _participants(privacy: PrivacySettings) -> str:
    if privacy.sampling == "one":
        return "one client per round"
    return "every client in every round" if privacy.rate >= 1 else f"each client in a round with rate {privacy.rate:g}"


def who_learns_what(plan: Plan, memory: Memory | None = None) -> list[str]:
    """What a site's answer shows to whom, what leaves it, and what it costs the site by its own computation.

    `memory`: of the site, for what it has spent.
    """
    if plan.facts.silos is not None:
        return [*who_sees_what(plan), *_spent_lines(plan, memory)]
    how = {"zeroed": "zeroed", "replace-one": "replaced"}[plan.sums.neighbours]
    cost = check_cost(plan) or plan.cost.epsilon
    epsilon = f"epsilon {cost:.4g} at delta {plan.sums.delta:g} for one site {how}"
    if trust_of(plan) == "trusted-aggregator":
        lines = [
            "operator:  NO guarantee. It gets this site's clipped class sums in the clear, and is trusted with them.",
            f"public:    {epsilon}, if the operator adds the noise and publishes nothing else.",
        ]
    else:
        lines = [
            f"operator:  {epsilon}. It gets this site's class sums with this site's own noise.",
            "public:    the same; it sees no more than the operator.",
        ]
    lines.append(f"leaves:    {answer_bytes(plan):,} bytes of sums" + " in every round" * has_rounds(plan))
    return [*lines, *_spent_lines(plan, memory)]


def _spent_lines(plan: Plan, memory: Memory | None) -> list[str]:
    if memory is None:
        return []
    cap = memory.cap
    more, what = memory.not_agreed(plan), "all answers to this plan" if is_refined(plan) else "one more answer"
    sums_up = not memory.has_other_coins(more)
    then = f"{memory.epsilon(*more):.4g} with {what}, " if sums_up else "which this plan cannot be added to, "
    return [f"this site: epsilon {memory.spent:.4g} spent so far, {then}of {cap.epsilon:g} at delta {cap.delta:g}"]
