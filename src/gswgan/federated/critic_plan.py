"""The plan of Algorithm 2: a critic at every client, one answer of each participant a round.

- *trusted aggregator*: in every round each client takes part by a secret coin that the server tosses; participants
  send clipped gradients, the server adds the noise once and divides by the fixed number rate x clients.
- *untrusted server*: who is asked is known, so nothing is amplified. Every client adds the full noise itself. It
  is asked in every round (preset ensemble), or one client is drawn in each (preset paper-federated, as published).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gswgan.errors import PlanError
from gswgan.federated.trust import (
    UNTRUSTED,
    Trust,
    check_clients,
    in_relation,
    promise,
    spent,
    to_each,
    trust_of,
    who_is_a_client,
)
from gswgan.methods import make_plan
from gswgan.methods.advice import BEARABLE, ensemble_noise
from gswgan.methods.ensemble import load_preset
from gswgan.plan.facts import Facts
from gswgan.plan.method import Federation
from gswgan.plan.plan import Plan, PrivacySettings
from gswgan.plan.settings import MAX_STEPS, check_delta, check_whole, default_delta
from gswgan.privacy import Accountant, DrawnOne, PrivacyCost, Repeated, Sampled
from gswgan.privacy.events import BaseEvent, Composed, Gaussian, Neighbours, gaussian_of, tally
from gswgan.privacy.filter import with_repeats

MANY, FEWER = 256, 0.1
"""Above MANY clients only a share of FEWER takes part in a round: the noise on the mean is the same."""

ROUNDS = 100
"""Few rounds with many clients: what both the engine and the privacy like."""

_SEES = (
    "it is trusted: it receives the clipped gradients of the clients that it asks in the clear, and adds the noise "
    "that protects them from everybody else"
)


def make_critic_plan(
    facts: Facts,
    *,
    preset: str = "ensemble",
    trust: Trust = "trusted-aggregator",
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    insecure_reproducible: bool = False,
) -> Plan:
    """The centralized ensemble with one client a shard, and the relation, observer and noise of the trust model."""
    clients = check_clients(facts)
    given, central = load_preset(preset)["privacy"], trust == "trusted-aggregator"
    if given["sampling"] == "one" and (central or rate is not None or epsilon is not None):
        found = (trust, rate, epsilon)
        raise PlanError(
            "trust, rate, epsilon", found, f"an untrusted server and nothing else with {preset}, whose noise is fixed",
            "Pass --trust untrusted-server alone.",
        )  # fmt: skip
    if rate is not None and not (0 < rate <= 1 and (central or rate == 1)):
        raise PlanError("rate", rate, "above 0, at most 1; 1 with an untrusted server, who knows whom it asks")
    delta = check_delta(given.get("delta", default_delta(clients)) if delta is None else delta)
    rounds = given.get("releases", ROUNDS) if rounds is None else check_whole("rounds", rounds, 1, MAX_STEPS)
    share = rate or (1.0 if clients <= MANY or not central else FEWER)
    observer, neighbours = promise(trust)
    return make_plan(
        facts, preset=preset, federation=Federation(observer=observer, neighbours=neighbours, rate=share),
        epsilon=epsilon, delta=delta, shards=clients, steps=rounds, seed=seed, device=device,
        insecure_reproducible=insecure_reproducible,
    )  # fmt: skip


def answer_event(plan: Plan) -> Gaussian:
    """What a client records for one answer: the Gaussian alone. It counts on nobody's coins but its own."""
    assert plan.privacy is not None
    return gaussian_of(plan.privacy.event)


def most_spent(plan: Plan) -> float:
    """Epsilon of a client by its own budgets at the most, at the plan's delta and under its relation.

    Where everybody answers in each round it is the plan's own figure. Where a trusted server tosses secret coins, a
    client that answered often counts more than the public is promised, since its own ledger does not rely on the
    coins. Where one client is drawn in each round, the guarantee averages over the draw; as the client's cap it holds
    whomever the server asks.
    """
    assert plan.privacy is not None
    assert plan.guarantee is not None
    if plan.privacy.sampling != "poisson":  # the kernel critic's one round, too
        return plan.guarantee.epsilon
    events = [answer_event(plan)] * plan.privacy.releases
    return spent(events, neighbours=plan.privacy.neighbours, delta=plan.privacy.delta)


def advice(plan: Plan) -> str:
    """Whom it trusts, how much noise it is, and how many clients it takes; from public facts alone."""
    privacy = plan.privacy
    assert privacy is not None
    trust, clients = trust_of(plan), privacy.shards or 1
    lines = [f"trust:     {trust}; {_who(privacy)}, {privacy.releases:,} rounds"]
    noise = ensemble_noise(plan.facts, privacy) / math.sqrt(privacy.releases)
    if trust == "untrusted-server" and privacy.sampling != "one":
        noise *= math.sqrt(clients)
    lines.append(f"noise:     {noise:.2g} in a fake's gradient (at most 1 without noise), averaged over the run")
    if noise > BEARABLE and privacy.sampling != "one":
        power = 2 if trust == "untrusted-server" else 1
        needed = math.ceil(clients * (noise / BEARABLE) ** power)
        lines.append(
            f"clients:   {clients:,}; for noise up to {BEARABLE:g} it takes {needed:,}: "
            f"{needed / clients:,.1f} times as many; expect little of the images"
        )
    return "\n".join(lines)


def _who(privacy: PrivacySettings) -> str:
    if privacy.sampling == "one":
        return "one client a round"
    return "every client in every round" if privacy.rate >= 1 else f"each client in a round with rate {privacy.rate:g}"


def statement(plan: Plan, events: Iterable[BaseEvent]) -> dict[str, Any]:
    """Both observers, for privacy.json, from the server's ledger; `trust.observers` for rounds."""
    assert plan.guarantee is not None
    planned, trust = plan.guarantee, trust_of(plan)
    covered, share = with_repeats(plan.releases(), tally(Composed(events=tuple(events))))

    def cost(observer: str, neighbours: Neighbours) -> dict[str, Any]:
        moved = ((_moved(event, neighbours), times) for event, times in tally(covered).items())
        total = Composed(events=tuple(Repeated(event=event, times=times) for event, times in moved))
        accountant = Accountant(neighbours)
        epsilon = accountant.epsilon(total, planned.delta * share)
        if neighbours == planned.neighbours:
            epsilon = max(epsilon, planned.epsilon)
        return PrivacyCost(
            epsilon=epsilon, delta=planned.delta, neighbours=neighbours, unit=planned.unit, observer=observer,
            sampling=planned.sampling, accountant=accountant.method(total),
        ).to_json()  # fmt: skip

    assert plan.privacy is not None
    if trust == "trusted-aggregator":
        assumed = [
            "the server adds the noise, tosses the coins, keeps both secret, and removes the answers after a round",
            f"{who_is_a_client(plan)}; one that does not answer counts as zero, and nobody takes its place",
        ]
    else:
        assumed = [
            "the client runs this software with good entropy; the server may do as it likes, with any fakes",
            *UNTRUSTED,
        ]
        if plan.privacy.sampling == "one":
            assumed.append(
                "the server draws whom it asks without looking at the data; a client's cap holds whomever it asks"
            )
    return to_each(trust, cost, sees=_SEES, assumed=assumed)


def _moved(event: BaseEvent, neighbours: Neighbours) -> BaseEvent:
    """A recorded release under the other relation."""
    inner = in_relation(gaussian_of(event), neighbours)
    if isinstance(event, Sampled):
        return Sampled(rate=event.rate, event=inner)
    return DrawnOne(count=event.count, event=inner) if isinstance(event, DrawnOne) else inner
