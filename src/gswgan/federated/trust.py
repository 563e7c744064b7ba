"""Who trusts whom: the plans of clients, and what their answers cost.

- *trusted aggregator*: clients send clipped rows, the server adds the noise once. The server sees every answer in the
  clear; the public is promised that one client could as well have sent nothing (zeroed). In Algorithm 2 each client
  takes part in a round by a secret coin of the server, and the sum is divided by the fixed number rate x clients.
- *untrusted server*: every client adds the full noise before it sends. The server is promised that one client could
  as well have been any other (replaced), and the public sees no more than the server. Who is asked is known, so
  nothing is amplified: everybody in each round, or one client drawn in each (preset paper-federated).

Which of the two a plan belongs to is said by its first observer: `public` or `server`.

A plan of silos (silos.py) protects a record or a person of one of a few sites, always replaced: the sizes of the sites
are public. A trusted aggregator adds the noise of centralized training once, or every site adds all of it. With preset
refined, for records and an untrusted server, rounds of DP-SGD follow the round of the kernel critic (site_steps.py).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, get_args

from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.embedding import count_weight
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.errors import PlanError
from gswgan.federated.silos import Protect, first_sums
from gswgan.methods import make_plan
from gswgan.methods.gswgan import load_preset
from gswgan.plan.defaults import sum_noise
from gswgan.plan.facts import Facts
from gswgan.plan.method import Federation
from gswgan.plan.plan import Plan
from gswgan.plan.settings import check_delta, check_whole, default_delta
from gswgan.privacy import Accountant
from gswgan.privacy.accountant import visible_draw_epsilon
from gswgan.privacy.events import BaseEvent, Composed, Event, Gaussian, Neighbours, Repeated, Sampled, gaussian_of
from gswgan.privacy.filter import with_repeats
from gswgan.ranges import MAX_STEPS
from gswgan.run.publish import TOLERANCE

Trust = Literal["trusted-aggregator", "untrusted-server"]

PRESETS = ("kernel", "refined", "ensemble", "paper-federated")
"""The kernel critic in one round; at sites also rounds of DP-SGD after it; Algorithm 2 with a critic at every client;
Algorithm 2 as published."""

ROUNDS = 100
"""Of Algorithm 2: few rounds with many clients are what both the engine and the privacy like."""

MANY_CLIENTS, SAMPLED_SHARE = 256, 0.1
"""Above so many clients only this share takes part in a round: the noise on the mean is the same."""

NEEDED = "Install it: pip install dp-accounting."

MAX_ACCOUNTED = 1e7
"""Numbers in a discretized loss, up to which a client computes a sampled plan's cost: at most 1 GB."""


def check_trust(trust: str) -> Trust:
    """Return the trust model if it is one that we know."""
    for known in get_args(Trust):
        if trust == known:
            return known
    raise PlanError("trust", trust, "one of " + ", ".join(get_args(Trust)))


def trust_of(plan: Plan) -> Trust:
    """The trust model of a plan of clients; any other plan is a PlanError."""
    privacy = plan.privacy
    whole = privacy is not None and (plan.facts.silos is not None or privacy.unit != "record")
    if plan.method != "gswgan" or plan.source is not None or privacy is None or not whole:
        expected = "method gswgan, a kernel critic or a critic for each client, by person, with a release of its own"
        raise PlanError("plan", plan.method, expected)
    each = isinstance(plan.critic, EnsembleSettings) and (plan.critic.fakes_per_step, privacy.critics)
    if is_refined(plan):
        found = (privacy.observer, privacy.neighbours, plan.facts.persons)
        if found != ("server", "replace-one", None) or plan.facts.silos is None:
            raise PlanError("plan", plan.preset, "sites with an untrusted server, one record replaced")
        return "untrusted-server"
    if plan.facts.silos is not None and (not plan.critic.can_stream or privacy.neighbours != "replace-one"):
        raise PlanError("plan", plan.preset, "the kernel critic, one record or person replaced, with silos")
    if not plan.critic.can_stream and each != ("one", plan.facts.persons):
        raise PlanError("plan", plan.preset, "a kernel critic, or a critic for each client with one batch per round")
    return "untrusted-server" if privacy.observer == "server" else "trusted-aggregator"


def is_refined(plan: Plan) -> bool:
    """Whether rounds of DP-SGD follow the kernel critic's round."""
    return isinstance(plan.critic, RefinedSettings)


def has_rounds(plan: Plan) -> bool:
    """Whether a plan of clients is one of Algorithm 2, with a critic at every client; else it begins with one round."""
    trust_of(plan)
    return not plan.critic.can_stream and not is_refined(plan)


def promise(trust: Trust, protect: Protect = "client") -> tuple[Literal["public", "server"], Neighbours]:
    """To whom the epsilon that is asked for is promised, and for which neighbours."""
    observer: Literal["public", "server"] = "public" if trust == "trusted-aggregator" else "server"
    return observer, "zeroed" if observer == "public" and protect == "client" else "replace-one"


def make_federated_plan(
    facts: Facts,
    *,
    preset: str = "kernel",
    trust: str | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    rate: float | None = None,
    **options: Any,
) -> Plan:
    """The centralized plan by person with the relation, the observer and the noise of the trust model.

    Where the facts name silos, it is that of their records or persons, by default with an untrusted server.
    `steps` of training after the kernel critic's round, or `rounds` of Algorithm 2 with a `rate` of participation.
    `options`: epsilon, delta, seed, device and insecure_reproducible, as of any plan.
    """
    if preset not in PRESETS:
        raise PlanError("preset", preset, "one of " + ", ".join(PRESETS))
    if facts.silos is not None:
        if preset not in ("kernel", "refined"):
            raise PlanError("preset", preset, "kernel or refined with --protect record or person")
    elif preset == "refined":
        raise PlanError("preset", preset, "--protect record with it", "Leave --preset out.")
    elif facts.persons is None or facts.persons < 2:
        raise PlanError("clients", facts.persons, "at least 2", "A guarantee hides one among others: add clients.")
    own_noise = preset == "paper-federated" or facts.silos is not None
    chosen = check_trust(trust or ("untrusted-server" if own_noise else "trusted-aggregator"))
    protect: Protect = "client" if facts.silos is None else "record" if facts.persons is None else "person"
    observer, neighbours = promise(chosen, protect)
    if preset == "refined":
        if (chosen, protect, rate) != ("untrusted-server", "record", None):
            raise PlanError("trust", (chosen, protect, rate), "an untrusted server and records with preset refined")
        federation = Federation(observer=observer, neighbours=neighbours, rounds=rounds)
        return make_plan(facts, preset=preset, federation=federation, steps=steps, **options)
    if preset == "kernel":
        if rounds is not None or rate is not None:
            raise PlanError("rounds", rounds, "no rounds and no rate: the kernel critic takes one", "Leave them out.")
        federation = Federation(observer=observer, neighbours=neighbours)
        return make_plan(facts, preset=preset, federation=federation, steps=steps, **options)
    assert facts.persons is not None
    if steps is not None:
        raise PlanError("steps", steps, "no steps: a round of Algorithm 2 is one", "Pass --rounds.")
    given, central = load_preset(preset)["privacy"], chosen == "trusted-aggregator"
    if given["sampling"] == "one" and (central or rate is not None or options.get("epsilon") is not None):
        expected = f"an untrusted server and nothing else with {preset}, whose noise is fixed"
        found = (chosen, rate, options.get("epsilon"))
        raise PlanError("trust, rate, epsilon", found, expected, "Pass --trust untrusted-server alone.")
    if rate is not None and not (0 < rate <= 1 and (central or rate == 1)):
        raise PlanError("rate", rate, "above 0, at most 1; 1 with an untrusted server, who knows whom it asks")
    delta = options.pop("delta", None)
    delta = check_delta(given.get("delta", default_delta(facts.persons)) if delta is None else delta)
    rounds = given.get("releases", ROUNDS) if rounds is None else check_whole("rounds", rounds, 1, MAX_STEPS)
    share = rate or (SAMPLED_SHARE if central and facts.persons > MANY_CLIENTS else 1.0)
    federation = Federation(observer=observer, neighbours=neighbours, rate=share)
    return make_plan(
        facts, preset=preset, federation=federation, critics=facts.persons, steps=rounds, delta=delta, **options
    )


def for_invented_clients(plan: Plan) -> Plan:
    """The plan of a simulation that spreads records over clients which it makes up: they are no persons."""
    privacy = dataclasses.replace(plan.sums, unit="invented client")
    return dataclasses.replace(plan, privacy=privacy, guarantee=dataclasses.replace(plan.cost, unit=privacy.unit))


def weight_of_counts(plan: Plan) -> float:
    """The weight of the counts in every client's sums: the centralized trainer's for the same noise in the sum."""
    noise = sum_noise(plan.facts, plan.sums) / plan.sums.clip_norm
    return count_weight(plan.facts.persons or 1, plan.facts.classes, noise)


def answer_event(plan: Plan) -> Gaussian:
    """What a client records for one answer: the Gaussian alone. It counts on nobody's coins but its own."""
    return gaussian_of(first_sums(plan).event)


def planned_events(plan: Plan) -> tuple[BaseEvent, ...]:
    """What a client agrees to with its first answer: that one, or with preset refined all that follow as well."""
    if not is_refined(plan):
        return (answer_event(plan),)
    return tuple(event for event, times in plan.releases().items() for _ in range(times))


def in_relation(event: BaseEvent, neighbours: Neighbours) -> Gaussian:
    """A client's answer under the other relation: its rows lie in a ball of radius C; zeroed moves C, replaced 2C."""
    if not isinstance(event, Gaussian):
        raise PlanError("event", type(event).__name__, "the Gaussian of one answer of a client")
    factor = 1.0 if event.neighbours == neighbours else 2.0 if neighbours == "replace-one" else 0.5
    return Gaussian(noise_std=event.noise_std, sensitivity=factor * event.sensitivity, neighbours=neighbours)


def spent(events: Iterable[BaseEvent], *, neighbours: Neighbours, delta: float) -> float:
    """Epsilon of all these answers of one client: Gaussians add their mu^2, and the sum has a closed form.

    Sampled ones, whose coins are the client's own (site_steps.py), are those of one plan that was fixed beforehand.
    """
    events = tuple(events)
    if any(isinstance(event, Sampled) for event in events):
        moved = [event if isinstance(event, Sampled) else in_relation(event, neighbours) for event in events]
        total = Composed(events=tuple(Repeated(event=event, times=times) for event, times in Counter(moved).items()))
        return spent_with_coins(total, neighbours=neighbours, delta=delta)
    squares = sum(in_relation(event, neighbours).mu ** 2 for event in events)
    return visible_draw_epsilon(math.sqrt(squares), 1, 1, delta) if squares else 0.0


def spent_with_repeats(
    planned: Iterable[BaseEvent], repeats: Iterable[BaseEvent], *, neighbours: Neighbours, delta: float
) -> float:
    """Epsilon of answers and of those that came twice: whether they did may depend on answers before.

    That adds up as it is for Gaussians alone; a plan with coins has levels for it (docs/proof.md, section 8).
    """
    planned, repeats = tuple(planned), tuple(repeats)
    if not repeats or not any(isinstance(event, Sampled) for event in planned):
        return spent((*planned, *repeats), neighbours=neighbours, delta=delta)
    covered, share = with_repeats(Counter(planned), Counter((*planned, *repeats)))
    return spent_with_coins(covered, neighbours=neighbours, delta=delta * share)


def spent_with_coins(total: Event, *, neighbours: Neighbours, delta: float) -> float:
    """By privacy-loss distributions, all in one; a PlanError where that takes too much memory."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise PlanError("dp-accounting", None, "the package, to compute what sampled answers cost", NEEDED)
    accountant = Accountant(neighbours)
    if not (numbers := accountant.numbers(total)) <= MAX_ACCOUNTED:
        raise PlanError(
            "noise", f"{numbers:.3g} numbers in the privacy loss", f"at most {MAX_ACCOUNTED:g}",
            "Its cost would take too much memory to compute: ask for a plan with more noise.",
        )  # fmt: skip
    return accountant.epsilon(total, delta)


def all_spent(plan: Plan) -> float:
    """Epsilon of all answers, or one in every round, at the plan's delta and under its relation."""
    privacy = plan.sums
    events = planned_events(plan) if is_refined(plan) else (answer_event(plan),) * privacy.releases
    return spent(events, neighbours=privacy.neighbours, delta=privacy.delta)


def most_spent(plan: Plan) -> float:
    """Epsilon of a client by its own ledger at the most: the cap of a client that answers this plan and no other.

    Where everybody answers in each round it is the plan's own figure. Where a trusted server tosses secret coins, a
    client that answered often counts more than the public is promised, since its own ledger does not rely on the
    coins. Where one client is drawn in each round, the guarantee averages over the draw; as the client's cap it holds
    whomever the server asks.
    """
    return all_spent(plan) if plan.sums.sampling == "poisson" and not is_refined(plan) else plan.cost.epsilon


def check_cost(plan: Plan) -> float | None:
    """Epsilon of all answers to a plan, computed here; a plan that states less is refused.

    None: it was not computed, since clients are sampled, the figure is below that without sampling, and dp-accounting
    is not installed or would take too much memory. A client does not rely on sampling: its ledger and its cap count
    every answer without it.
    """
    privacy, stated, epsilon = plan.sums, plan.cost, all_spent(plan)
    relies = privacy.sampling == "poisson" and stated.epsilon < epsilon and not is_refined(plan)  # on the sampling
    accountant, total = Accountant(privacy.neighbours), privacy.total()
    if relies and (accountant.numbers(total) > MAX_ACCOUNTED or importlib.util.find_spec("dp_accounting") is None):
        return None
    if relies or privacy.sampling == "one":
        epsilon = accountant.epsilon(total, privacy.delta)
    if stated.epsilon < epsilon * (1 - TOLERANCE):
        raise PlanError(
            "plan.guarantee.epsilon", stated.epsilon, f"at least {epsilon:.6g} at delta {privacy.delta:g}, its cost",
            "The plan states less than it costs: ask the operator. Nothing was answered.",
        )  # fmt: skip
    return epsilon
