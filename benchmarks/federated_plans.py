"""Plans of Algorithm 2 and of Fed-Avg GAN on `mnist-writers`, for `train_plan.py` where dp-accounting is not.

    python benchmarks/federated_plans.py PLANS
    python benchmarks/train_plan.py PLANS/writers-*.json --device cuda --tag=-h200 --out benchmarks/results

Beside every plan NAME.json stands NAME.observers.json, what each observer is promised, which takes an accountant. All
clients' critics are one batched ensemble there (tests/federated/test_remote_critics.py: the same as at the clients).

The published run has 866 clients and 30,000 rounds. Here are 539, and `--rounds` is in proportion (18,672), so that a
client is asked as often as in the paper, and the paper's rule claims the same 598.61.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from gswgan.data import load_data
from gswgan.federated.statement import observers
from gswgan.federated.trust import in_relation, make_federated_plan
from gswgan.methods import find_method, make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, Repeated, Sampled

DELTA, PAPER_DELTA = 1e-4, 1.15e-3
CANDIDATES: dict[str, dict[str, Any]] = {  # preset ensemble, epsilon 10, one writer zeroed
    "writers-q0.1": {"rate": 0.1, "rounds": 1000},
    "writers-q0.2": {"rate": 0.2, "rounds": 1000},
    "writers-q0.3-short": {"rate": 0.3, "rounds": 600},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="mnist-writers")
    parser.add_argument("--device", default="cuda", help="where it will be trained")
    parser.add_argument("--rounds", type=int, default=18_672, help="of the published run")
    parser.add_argument("--warm-start", type=int, default=2000, help="iterations, of the published run")
    parser.add_argument("--scale", type=float, default=1.0, help="of all rounds; below 1 to try the commands")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    facts = Facts.of(load_data(options.data))
    for name, request in CANDIDATES.items():
        rounds = max(1, round(options.scale * request["rounds"]))
        plan = make_federated_plan(
            facts, preset="ensemble", epsilon=10, delta=DELTA, rate=request["rate"], rounds=rounds,
            device=options.device,
        )  # fmt: skip
        save(options.out / f"{name}.json", plan)
    rounds = max(1, round(options.scale * options.rounds))
    published = make_federated_plan(
        facts, preset="paper-federated", trust="untrusted-server", rounds=rounds, device=options.device
    )  # fmt: skip
    critic = dataclasses.replace(published.critic, warm_start=round(options.scale * options.warm_start))
    save(options.out / "writers-paper-federated.json", dataclasses.replace(published, critic=critic))
    for preset in find_method("fed-avg-gan").presets:
        steps = None if options.scale == 1 else max(6, round(6000 * options.scale))
        request = {"preset": preset, "delta": PAPER_DELTA, "steps": steps, "device": options.device}
        save(
            options.out / f"writers-fed-avg-{preset.removeprefix('noise-')}.json",
            make_plan(facts, method="fed-avg-gan", **request),
        )


def save(path: Path, plan: Plan) -> None:
    """The plan, and what each observer is promised."""
    privacy, cost = plan.privacy, plan.guarantee
    assert cost is not None
    plan.save(path)
    releases = sum(plan.releases().values())
    told = fed_avg(plan) if privacy is None else observers(plan, [privacy.event] * releases)
    if privacy is not None and privacy.sampling == "one":
        told["as_printed"] = {
            "epsilon": as_printed(plan), "delta": cost.delta, "neighbours": cost.neighbours, "observer": "server",
            "why": "Algorithm 2 as printed sends a sanitized gradient in each of the n_dis updates of a round",
        }  # fmt: skip
    path.with_suffix(".observers.json").write_text(json.dumps(told, indent=1) + "\n")
    claim = "" if plan.claimed is None else f", claimed {plan.claimed.epsilon:.2f}"
    print(f"{path.name}: {releases} rounds, {cost}{claim}")


def fed_avg(plan: Plan) -> dict[str, Any]:
    """What Fed-Avg GAN promises: one client zeroed, and what the same noise is for one replaced."""
    cost, (event,) = plan.guarantee, plan.releases()
    assert cost is not None
    assert isinstance(event, Sampled)
    replaced = dataclasses.replace(event, event=in_relation(event.event, "replace-one"))
    whole, accountant = Repeated(event=replaced, times=plan.critic.releases), Accountant("replace-one")
    other = dataclasses.replace(
        cost, epsilon=accountant.epsilon(whole, cost.delta), neighbours="replace-one",
        accountant=accountant.method(whole),
    )  # fmt: skip
    return {
        "trust": "trusted-aggregator",
        "guarantees": [cost.to_json(), other.to_json()],
        "open_to": [
            {"observer": "server", "epsilon": None, "why": "it is trusted: it sees every difference of weights"}
        ],
    }


def as_printed(plan: Plan) -> float:
    """Epsilon of the run if a client answered in each of the n_dis updates of a round."""
    assert plan.privacy is not None
    whole = dataclasses.replace(plan.privacy, rows=plan.privacy.rows * plan.critic.updates).total()
    return Accountant(plan.privacy.neighbours).epsilon(whole, plan.privacy.delta)


if __name__ == "__main__":
    main()
