"""Who trusts whom: the plan of a federated run, and what may be said to each observer.

- *trusted aggregator*: clients send clipped sums, the server adds the noise once. The server sees every client's sums
  in the clear; the public is promised that one client could as well have sent nothing (zeroed).
- *untrusted server*: every client adds the full noise before it sends. The server is promised that one client could
  as well have been any other (replaced), and the public sees no more than the server.

Which of the two a plan belongs to is said by its first observer: `public` or `server`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.embedding import count_weight
from gswgan.critics.kernel.features import KernelSettings
from gswgan.errors import PlanError
from gswgan.methods import find_method
from gswgan.methods.gs_wgan_plan import kernel_privacy
from gswgan.methods.method import PlanRequest
from gswgan.plan.advice import BEARABLE
from gswgan.plan.defaults import gradient_noise
from gswgan.plan.make import EPSILON, guarantee
from gswgan.plan.plan import Facts, Plan, PrivacySettings
from gswgan.plan.settings import check_delta, check_epsilon, default_delta
from gswgan.privacy import Accountant, calibrate
from gswgan.privacy.accountant import visible_draw_epsilon
from gswgan.privacy.events import BaseEvent, Composed, Gaussian, Neighbours, gaussian_of, tally
from gswgan.privacy.filter import with_repeats
from gswgan.run.publish import TOLERANCE

EXACT = "exact Gaussian (Balle and Wang 2018)"
"""How the figures for other observers and relations are computed: a client's releases are plain Gaussians."""

MAX_ACCOUNTED = 1e8
"""Epsilon without sampling times rounds, up to which a client computes a sampled plan's cost: some 100 MB."""

Trust = Literal["trusted-aggregator", "untrusted-server"]

UNTRUSTED = (
    "every client runs only code that it installed itself (`gswgan federate node`, or a round by files); one that runs "
    "the app that a server sends has NO guarantee towards that server, which can read its records",
    "whether and when a client answers does not depend on its data",
    "the noise of other clients is not counted on: the public is promised what the server is promised",
)
"""What is assumed where the server is not trusted, whichever critic there is."""

_SEES = (
    "it is trusted: it receives every client's clipped class sums in the clear, and adds the noise that protects them "
    "from everybody else"
)


def check_trust(trust: str) -> Trust:
    """Return the trust model if it is one that we know."""
    for known in get_args(Trust):
        if trust == known:
            return known
    raise PlanError("trust", trust, "one of " + ", ".join(get_args(Trust)))


def trust_of(plan: Plan) -> Trust:
    """The trust model of a federated plan; any other plan is a PlanError."""
    privacy = plan.privacy
    if plan.method != "gswgan" or plan.source is not None or privacy is None or privacy.unit == "record":
        raise PlanError(
            "plan",
            plan.method,
            "method gswgan, a kernel critic or a critic for each client, by person, with a release of its own",
        )
    each = isinstance(plan.critic, EnsembleSettings) and (plan.critic.fakes_per_step, privacy.shards)
    if not isinstance(plan.critic, KernelSettings) and each != ("one", plan.facts.persons):
        raise PlanError("plan", plan.preset, "a kernel critic, or a critic for each client with one batch a round")
    return "untrusted-server" if privacy.observer == "server" else "trusted-aggregator"


def who_is_a_client(plan: Plan) -> str:
    """What a client is taken to be, for the list of what is assumed."""
    assert plan.guarantee is not None
    return "a client is one person" if plan.guarantee.unit == "person" else "a client is invented by the simulation"


def for_invented_clients(plan: Plan) -> Plan:
    """The plan of a simulation that spreads records over clients which it makes up: they are no persons."""
    assert plan.privacy is not None
    assert plan.guarantee is not None
    privacy = dataclasses.replace(plan.privacy, unit="invented client")
    return dataclasses.replace(plan, privacy=privacy, guarantee=dataclasses.replace(plan.guarantee, unit=privacy.unit))


def has_rounds(plan: Plan) -> bool:
    """Whether a plan of clients is one of Algorithm 2, with a critic at every client; else it takes one round."""
    trust_of(plan)
    return not isinstance(plan.critic, KernelSettings)


def check_one_round(plan: Plan) -> Plan:
    """Return a federated plan if it is the kernel critic's, which takes one round."""
    if has_rounds(plan):
        raise PlanError("plan", plan.preset, "the kernel critic (preset kernel) in one round")
    return plan


def promise(trust: Trust) -> tuple[Literal["public", "server"], Neighbours]:
    """To whom the epsilon that is asked for is promised, and for which neighbours."""
    return ("public", "zeroed") if trust == "trusted-aggregator" else ("server", "replace-one")


def check_clients(facts: Facts) -> int:
    """The number of clients, if there are enough."""
    if facts.persons is None or facts.persons < 2:
        raise PlanError("clients", facts.persons, "at least 2", "A guarantee hides one among others: add clients.")
    return facts.persons


def make_federated_plan(
    facts: Facts,
    *,
    trust: Trust = "trusted-aggregator",
    epsilon: float | None = None,
    delta: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    insecure_reproducible: bool = False,
) -> Plan:
    """The centralized plan by person with the relation, the observer and the noise of the trust model."""
    clients = check_clients(facts)
    delta = check_delta(default_delta(clients) if delta is None else delta)
    request = PlanRequest(facts=facts, preset="kernel", delta=delta, steps=steps, seed=seed, device=device)
    observer, neighbours = promise(trust)

    def privacy(noise: float) -> PrivacySettings:
        return dataclasses.replace(kernel_privacy(request, noise), neighbours=neighbours, observer=observer)

    target = check_epsilon(EPSILON if epsilon is None else epsilon)
    noise = calibrate(
        lambda noise: privacy(noise).total(), epsilon=target, delta=delta, accountant=Accountant(neighbours)
    )
    settings = privacy(noise)
    draft = find_method("gswgan").draft(request, noise * sum_noise(facts, settings) / settings.noise_std)
    draft = dataclasses.replace(draft, privacy=settings)
    return Plan(
        **vars(draft),
        guarantee=guarantee(settings.total(), delta=delta, unit=settings.unit, observer=settings.observer),
        seed=seed,
        insecure_reproducible=insecure_reproducible,
    )


def sum_noise(facts: Facts, privacy: PrivacySettings) -> float:
    """Standard deviation of the noise in the sum over all clients: added once, or by each of them."""
    return privacy.noise_std * (math.sqrt(facts.persons or 1) if privacy.observer == "server" else 1.0)


def weight_of_counts(plan: Plan) -> float:
    """The weight of the counts in every client's sums: the centralized trainer's for the same noise in the sum."""
    assert plan.privacy is not None
    noise = sum_noise(plan.facts, plan.privacy) / plan.privacy.clip_norm
    return count_weight(plan.facts.persons or 1, plan.facts.classes, noise)


def enough_clients(facts: Facts, privacy: PrivacySettings) -> int:
    """How many clients it takes until the noise is bearable, with the noise that each client (or the server) adds.

    The noise in a fake's gradient falls with 1 / clients where it is added once, with 1 / sqrt(clients) where each
    client adds its own (docs/methods.md; it is bearable up to 0.3).
    """
    noise, clients = gradient_noise(facts, sum_noise(facts, privacy)), facts.persons or 1
    return math.ceil(clients * (noise / BEARABLE) ** (2 if privacy.observer == "server" else 1))


def advice(plan: Plan) -> str:
    """How many clients it takes, on a line or two, from public facts alone."""
    assert plan.privacy is not None
    needed, clients = enough_clients(plan.facts, plan.privacy), plan.facts.persons or 1
    noise = gradient_noise(plan.facts, sum_noise(plan.facts, plan.privacy))
    lines = [
        f"trust:     {trust_of(plan)}",
        f"noise:     {noise:.2g} in a fake's gradient, over the longest gradient without noise",
        f"clients:   {clients:,}; for noise up to {BEARABLE:g} it takes {needed:,}"
        + ("" if clients >= needed else f": {needed / clients:,.1f} times as many; expect little of the images"),
    ]
    if plan.privacy.observer == "server" and clients < needed:
        other = dataclasses.replace(
            plan.privacy, observer="public", neighbours="zeroed", noise_std=plan.privacy.noise_std / 2
        )
        lines.append(
            f"           with a trusted aggregator (one client zeroed, the same epsilon) it would take "
            f"{enough_clients(plan.facts, other):,}"
        )
    return "\n".join(lines)


def in_relation(event: BaseEvent, neighbours: Neighbours) -> Gaussian:
    """A client's release under the other relation: its sums lie in a ball of radius C; zeroed moves C, replaced 2C."""
    if not isinstance(event, Gaussian):
        raise PlanError("event", type(event).__name__, "the one Gaussian release of a client's sums")
    factor = 1.0 if event.neighbours == neighbours else 2.0 if neighbours == "replace-one" else 0.5
    return Gaussian(noise_std=event.noise_std, sensitivity=factor * event.sensitivity, neighbours=neighbours)


def spent(events: Iterable[BaseEvent], *, neighbours: Neighbours, delta: float) -> float:
    """Epsilon of all these releases of one client together: Gaussians add their mu^2, and the sum has a closed form."""
    squares = sum(in_relation(event, neighbours).mu ** 2 for event in events)
    return visible_draw_epsilon(math.sqrt(squares), 1, 1, delta) if squares else 0.0


def check_cost(plan: Plan) -> float | None:
    """Epsilon of all answers to a plan, computed here; a plan that states less is refused.

    None: it was not computed, since clients are sampled, the figure is below that without sampling, and dp-accounting
    is not installed or would take too much memory. A client does not rely on sampling: its ledger and its cap count
    every answer without it.
    """
    privacy, stated = plan.privacy, plan.guarantee
    assert privacy is not None
    assert stated is not None
    answers = [gaussian_of(privacy.event)] * privacy.releases
    epsilon = spent(answers, neighbours=privacy.neighbours, delta=privacy.delta)
    relies = privacy.sampling == "poisson" and stated.epsilon < epsilon  # on the sampling
    if relies and (epsilon * privacy.releases > MAX_ACCOUNTED or importlib.util.find_spec("dp_accounting") is None):
        return None
    if relies or privacy.sampling == "one":
        epsilon = Accountant(privacy.neighbours).epsilon(privacy.total(), privacy.delta)
    if stated.epsilon < epsilon * (1 - TOLERANCE):
        raise PlanError(
            "plan.guarantee.epsilon", stated.epsilon, f"at least {epsilon:.6g} at delta {privacy.delta:g}, its cost",
            "The plan states less than it costs: ask the operator. Nothing was answered.",
        )  # fmt: skip
    return epsilon


def observers(plan: Plan, events: Iterable[BaseEvent]) -> dict[str, Any]:
    """Both observers, for privacy.json: what is guaranteed to each, and to whom a client is open."""
    assert plan.guarantee is not None
    planned, trust = plan.guarantee, trust_of(plan)
    covered, share = with_repeats(plan.releases(), tally(Composed(events=tuple(events))))
    releases = [event for event, times in tally(covered).items() for _ in range(times)]

    def cost(observer: str, neighbours: Neighbours) -> dict[str, Any]:
        epsilon = spent(releases, neighbours=neighbours, delta=planned.delta * share)
        if neighbours == planned.neighbours and epsilon <= planned.epsilon:
            return dataclasses.replace(planned, observer=observer).to_json()
        return dataclasses.replace(
            planned, epsilon=epsilon, neighbours=neighbours, observer=observer, accountant=EXACT
        ).to_json()

    if trust == "trusted-aggregator":
        assumed = [
            "the server adds the noise, publishes nothing else, and removes the answers when the round is over",
            f"{who_is_a_client(plan)}, and answers once",
        ]
    else:
        assumed = ["the client runs this software with good entropy; the server may do as it likes", *UNTRUSTED]
    return to_each(trust, cost, sees=_SEES, assumed=assumed)


def to_each(
    trust: Trust, cost: Callable[[str, Neighbours], dict[str, Any]], *, sees: str, assumed: list[str]
) -> dict[str, Any]:
    """What is guaranteed to each observer, to whom a client is open, and why, as privacy.json has it."""
    trusted = trust == "trusted-aggregator"
    observer, neighbours = promise(trust)
    return {
        "trust": trust,
        "guarantees": [cost(observer, neighbours), cost("public", "replace-one")],
        "open_to": [{"observer": "server", "epsilon": None, "why": sees}] if trusted else [],
        "assumed": assumed,
    }
