"""Table 2 of the paper on our data: Fed-Avg GAN and ours, from the records of `train_plan.py`, into docs/federated.md.

    python benchmarks/table2.py benchmarks/results/federated-*-h200.json --into docs/federated.md

Bytes are those of the packed messages, one client and round; Flower's envelope comes on top (docs/federated.md). A
round of Fed-Avg GAN serves several generator steps, one of Algorithm 2 serves one, the kernel critic's serves all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.kernel.features import KernelSettings
from gswgan.federated import critic_messages, messages
from gswgan.methods import read_plan
from gswgan.methods.fed_avg_gan import PUBLISHED_DISCRIMINATOR, PUBLISHED_GENERATOR, bytes_a_round
from gswgan.plan.plan import Plan
from gswgan.run.loop import make_generator

BEGIN, END = "<!-- table 2 -->", "<!-- end of table 2 -->"
PUBLISHED = [  # the paper's own, on Federated EMNIST: 36 classes, 866 clients, delta 1.15e-3
    ("Fed-Avg GAN, the paper", "10.88", "218.2", "9.99e6", "115,200 zeroed", "3.94e7"),
    ("GS-WGAN, the paper", "11.25", "60.8", "598.6", "774.3 replaced; 3,788 as printed", "1.50e5"),
]


def travel(plan: Plan) -> dict[str, float]:
    """Bytes to and from a client in a round, rounds that a client is in on average, generator steps a round."""
    persons = plan.facts.persons or 1
    if plan.method == "fed-avg-gan":
        shape = CriticShape(
            image_size=plan.facts.image_size, channels=plan.facts.channels, classes=plan.facts.classes,
            width=plan.critic.width,
        )  # fmt: skip
        discriminator = sum(int(np.prod(size)) for size in shape.parameters.values())
        network = make_generator(plan, torch.device("cpu")).network
        generator = sum(value.numel() for value in network.state_dict().values())
        rounds = plan.critic.releases * plan.critic.clients / persons
        steps = plan.critic.generator_updates
        return {**bytes_a_round(discriminator, generator), "rounds": rounds, "steps": steps}
    privacy, facts = plan.privacy, plan.facts
    assert privacy is not None
    if isinstance(plan.critic, KernelSettings):
        up = _size(messages.answer("client", plan, bytes(4 * messages.width(plan))))
        return {"down": _size(messages.question(plan)), "up": up, "rounds": 1, "steps": plan.training.steps}
    pool, side = critic_messages.pool_size(plan), facts.image_size
    images = torch.zeros(pool + privacy.rows, facts.channels, side, side)
    batch = critic_messages.Batch(number=0, images=images, labels=torch.zeros(len(images), dtype=int), pool=pool)
    block = critic_messages.pack_block(np.zeros((privacy.rows, facts.pixels), np.int64), plan)
    rounds = privacy.releases * (1 / persons if privacy.sampling == "one" else privacy.rate)
    return {
        "down": _size(critic_messages.question(plan, batch)),
        "up": _size(critic_messages.answer("client", plan, 0, block)), "rounds": rounds, "steps": 1,
    }  # fmt: skip


def _size(fields: Any) -> int:
    return sum(len(value.encode() if isinstance(value, str) else value) for value in fields.values())


def row(record: dict[str, Any]) -> str:
    """A line of the table."""
    plan = read_plan(record["plan"])
    assert plan.privacy is not None or plan.method == "fed-avg-gan"
    moved, told = travel(plan), record["observers"]
    stated = {cost["neighbours"]: cost for cost in reversed(told["guarantees"])}
    words = {"zeroed": "zeroed", "replace-one": "replaced"}
    true = "; ".join(f"{_figure(cost['epsilon'])} {words[how]}" for how, cost in sorted(stated.items(), reverse=True))
    if "as_printed" in told:
        true += f"; {_figure(told['as_printed']['epsilon'])} as printed"
    both = moved["down"] + moved["up"]
    cells = [
        _name(plan), _figure(record.get("inception_score")), _figure(record.get("fid")),
        _figure(record.get("cnn_accuracy")), "none" if plan.claimed is None else _figure(plan.claimed.epsilon), true,
        f"{plan.guarantee.delta:g}" if plan.guarantee is not None else "", f"{moved['down']:,}", f"{moved['up']:,}",
        f"{both / moved['steps']:,.0f}", f"{both * moved['rounds']:.3g}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _name(plan: Plan) -> str:
    if plan.method == "fed-avg-gan":
        return f"Fed-Avg GAN, noise {plan.critic.noise_multiplier:g}, {plan.critic.releases:,} rounds"
    if isinstance(plan.critic, KernelSettings):
        return "kernel critic, one round"
    assert plan.privacy is not None
    kind = "Algorithm 2 as published" if plan.privacy.sampling == "one" else f"Algorithm 2, rate {plan.privacy.rate:g}"
    return f"{kind}, {plan.privacy.releases:,} rounds"


def _figure(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.4g}"


def table(records: list[dict[str, Any]]) -> str:
    """The whole table, and the paper's beside it."""
    heads = ["", "IS", "FID", "CNN", "epsilon claimed", "epsilon true, one client", "delta", "bytes down, a round",
             "bytes up, a round", "both, a generator step", "both, whole training"]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += [row(record) for record in records]
    size = bytes_a_round(PUBLISHED_DISCRIMINATOR, PUBLISHED_GENERATOR)
    for name, score, fid, claimed, true, bytes_ in PUBLISHED:
        lines.append(f"| {name} (36 classes) | {score} | {fid} | | {claimed} | {true} | 0.00115 | | | {bytes_} | |")
    both = size["down"] + size["up"]
    lines.append(
        f"| Fed-Avg GAN's published networks in our messages | | | | | | | {size['down']:,} | {size['up']:,} "
        f"| {both / 6:,.0f} | {both * 1000 * 10 / 866:.3g} |"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="a page with the two marks that the table goes between")
    options = parser.parse_args()
    made = table([json.loads(path.read_text()) for path in options.records])
    print(made)
    if options.into is not None:
        before, rest = options.into.read_text().split(BEGIN)
        _, after = rest.split(END)
        options.into.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    main()
