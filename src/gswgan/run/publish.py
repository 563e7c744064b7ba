"""What leaves at the end of a run: the generator, its guarantee from the ledger, a card and a picture."""

from __future__ import annotations

import dataclasses
import hashlib
import html
import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.torch
from torch import nn

from gswgan.errors import LedgerError, PlanError
from gswgan.generators.generator import Generator
from gswgan.generators.sampling import draw_levels, grid_of, png_bytes
from gswgan.methods import find_method
from gswgan.plan.plan import Plan
from gswgan.plan.settings import from_plain, to_plain
from gswgan.plan.wording import NOT_COVERED_ON_CARD, public_text, several_records
from gswgan.privacy import Accountant, PrivacyCost, Streams
from gswgan.privacy.accountant import NOT_RECOMPUTED
from gswgan.privacy.events import describe_event, tally, unsampled
from gswgan.privacy.filter import epsilon_with_repeats
from gswgan.privacy.ledger import compose, read_ledger
from gswgan.privacy.storage import write_durably
from gswgan.run.folder import RunFolder, read_json, write_json

PICTURE_COLUMNS = 12

TOLERANCE = 1e-4
"""Relative: between epsilons that two machines compute from the same releases."""

_COST = tuple(field.name for field in dataclasses.fields(PrivacyCost))


def publish(plan: Plan, folder: RunFolder, generator: Generator) -> None:
    """Write everything under release/; the generator last, so that it never stands without its privacy.json."""
    network = generator.released_network()
    kept = [int(label) for label in generator.label_set]
    write_json(folder.model, {"method": plan.method, "labels": kept, "plan": plan.to_json()})
    levels = draw_picture(plan, network, kept)
    write_durably(folder.samples, png_bytes(np.rint(levels).astype(np.uint8)))
    if plan.source is None:  # otherwise the source's privacy.json came with its embedding
        cost = cost_of_ledger(plan, folder)
        observers = read_json(folder.federation, "federation.json") if folder.federation.exists() else {}
        write_json(folder.privacy, {**privacy_statement(plan, cost, encoder_digest(folder)), **observers})
    statement = read_json(folder.privacy, "the privacy.json of the run")
    write_durably(folder.card, card(plan, statement, kept).encode())
    first = generator.first_network()
    for path, found in ((folder.first_generator, first), (folder.generator, network)):
        if found is not None:
            weights = {name: value.detach().cpu().contiguous() for name, value in found.state_dict().items()}
            write_durably(path, safetensors.torch.save(weights, {"format_version": "1"}))


def cost_of_ledger(plan: Plan, folder: RunFolder) -> PrivacyCost | None:
    """The guarantee of what the ledger holds: never less than the plan's, more if a release had to be repeated."""
    if plan.guarantee is None:
        return None
    _, entries, _ = read_ledger(folder.ledger)
    found, planned = tally(compose(entries)), plan.releases()
    known = {*planned, *(unsampled(event) for event in planned)}  # a release that is repeated is not sampled again
    if not known >= found.keys():
        raise LedgerError("releases", describe_event(next(iter(found.keys() - known))), "those of the plan")
    if any(found.get(event, 0) < times for event, times in planned.items()):
        raise LedgerError("releases", sum(found.values()), f"at least the planned {sum(planned.values())}")
    if importlib.util.find_spec("dp_accounting") is not None:
        epsilon = epsilon_with_repeats(planned, found, plan.guarantee.delta, plan.guarantee.neighbours)
        return dataclasses.replace(plan.guarantee, epsilon=max(epsilon, plan.guarantee.epsilon))
    if found != planned:
        raise LedgerError(
            "releases", sum(found.values()), f"the planned {sum(planned.values())}, since dp-accounting is not here",
            "A release was repeated after a stop. Install dp-accounting and resume to state what it cost.",
        )  # fmt: skip
    return not_recomputed(plan.guarantee)


def not_recomputed(planned: PrivacyCost) -> PrivacyCost:
    """What a plan states, where nobody has computed it again."""
    return dataclasses.replace(planned, accountant=f"{NOT_RECOMPUTED} (planned by: {planned.accountant})")


def check_stated(plan: Plan) -> None:
    """Refuse a plan that states less than its releases cost, before anything is released.

    Without dp-accounting nobody knows: then the statement of the run says that it was not recomputed.
    """
    cost, total = plan.guarantee, plan.total()
    if cost is None or total is None or plan.source is not None or importlib.util.find_spec("dp_accounting") is None:
        return
    epsilon = Accountant(cost.neighbours).epsilon(total, cost.delta)
    if cost.epsilon < epsilon * (1 - TOLERANCE):
        raise PlanError(
            "plan.guarantee.epsilon", cost.epsilon, f"at least {epsilon:.6g} at delta {cost.delta:g}, for its releases",
            "The plan states less than it costs: make it again. Nothing was released.",
        )  # fmt: skip


def encoder_digest(folder: RunFolder) -> str | None:
    """SHA-256 of the encoder; None where the features have none."""
    if not folder.encoder.exists():
        return None
    with folder.encoder.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def privacy_statement(plan: Plan, cost: PrivacyCost | None, encoder: str | None = None) -> dict[str, Any]:
    """The content of privacy.json. Without a cost there is no epsilon: the statement is void.

    `encoder`: the digest of the network of the features, which public images trained.
    """
    public = {} if plan.public is None else to_plain(plan.public)
    public |= {"statement": text} if (text := public_text(plan)) else {}
    public |= {} if encoder is None else {"encoder": encoder}
    stated = dict.fromkeys(_COST) if cost is None else cost.to_json()
    return {
        **stated,
        "guarantees": [] if cost is None else [stated],
        "claimed": None if plan.claimed is None else plan.claimed.to_json(),
        "lower_bound": to_plain(plan.lower_bound),
        "void": plan.void,
        **({"public_images": public} if public else {}),
    }


def cost_from_statement(statement: Mapping[str, Any]) -> PrivacyCost | None:
    """The guarantee at the top of a privacy.json; None where it says that there is not even a number."""
    found = {name: statement[name] for name in _COST if name in statement}
    if statement.get("void") and set(found.values()) == {None}:
        return None
    return from_plain(PrivacyCost, found, "privacy.json")


def draw_picture(plan: Plan, network: nn.Module, kept: list[int]) -> np.ndarray:
    """What samples.png shows, before it is rounded to 8 bits: a row for each class (of at most 20), always the same."""
    labels = np.repeat(np.array(kept[:20]), PICTURE_COLUMNS)
    if plan.facts.classes == 1:
        labels = np.zeros(8 * PICTURE_COLUMNS, np.int64)
    rng = Streams.public(plan.seed).generator("picture")
    return grid_of(draw_levels(network, plan.generator, labels, rng), PICTURE_COLUMNS)


def card(plan: Plan, statement: Mapping[str, Any], kept: list[int]) -> str:
    """The release card: what this is, what it guarantees, how it was made."""
    facts = plan.facts
    left_out = [name for label, name in enumerate(facts.class_names) if label not in kept]
    cost = cost_from_statement(statement)
    lines = [
        f"# Synthetic images after {plain_text(facts.data)}",
        "",
        "![samples](samples.png)",
        "",
        "## Guarantee",
        "",
    ]
    if statement.get("void"):
        lines += [f"**None.** This release was {statement['void']}.", ""]
        lines += ["Had the key been secret:", ""] if cost is not None else []
    if cost is not None:
        lines += [
            f"- {cost}",
            f"- sampling: {cost.sampling}; accountant: {cost.accountant}",
            f"- protected: the content of one {cost.unit}. {several_records(cost.unit)}",
            *(f"- planned: {times} x {describe_event(event)}" for event, times in plan.releases().items()),
            "- what happened is in ledger.jsonl",
            *(f"- also: {from_plain(PrivacyCost, other, 'privacy.json')}" for other in statement["guarantees"][1:]),
            *(f"- NO guarantee towards the {one['observer']}: {one['why']}" for one in statement.get("open_to", [])),
            *(f"- assumed: {one}" for one in statement.get("assumed", [])),
            *(f"- {plain_text(one)}" for one in statement.get("sites", {}).get("text", [])),
        ]
    if text := public_text(plan):
        lines.append(f"- {plain_text(text)}")
    if (claim := statement.get("claimed")) is not None:
        lines.append(f"- *claimed* elsewhere for the same run, and not a guarantee: epsilon {claim['epsilon']:.4g}")
    lines += [
        "",
        *NOT_COVERED_ON_CARD,
        "",
        "## Public facts",
        "",
        "Published here as they are, without protection; all of them are in model.json:",
        "",
        f"- that the data exists, and what it is called: {plain_text(facts.data)}",
        f"- {plan.size}, {facts.image_size}x{facts.image_size} with {facts.channels} channel(s)",
        f"- {facts.classes} class(es), and their names: {plain_text(facts.names)}",
        *([f"- how the images were read: {facts.reading.text}"] if facts.reading.text else []),
        "- the settings of the run, which must have been chosen without looking at the protected data",
        "",
        "## How it was made",
        "",
        f"- method `{plan.method}` ({find_method(plan.method).about}), preset {plain_text(plan.preset)}",
        f"- critic: {plan.describe()}; {plan.training.steps} steps, seed {plan.seed}",
        f"- generator: {plan.generator.architecture}, width {plan.generator.width}",
    ]
    if left_out:
        lines.append(f"- left out, too rare to be told from the noise: {', '.join(map(plain_text, left_out))}")
    return "\n".join(lines) + "\n"


def plain_text(name: str) -> str:
    """A name of a file, class or preset, which anybody may have chosen, as text that is no Markdown and no HTML."""
    return re.sub(r"([\\`*_{}\[\]()#!|~:])", r"\\\1", html.escape(name, quote=False))
