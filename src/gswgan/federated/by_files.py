"""The kernel critic's round by files: no daemon, no network, and no code but what a site installed itself.

    RUN/plan.json        what the operator sends to every site
    answer.safetensors   what a site sends back: the message of messages.py, with its sums as bytes

Any channel will do: what counts is checked as it is over Flower (round.py), and a site does what it does over Flower
(client.py): the same plan, cap, ledger and bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from gswgan.errors import FederationError, GswganError, printable
from gswgan.federated.client import Client
from gswgan.federated.messages import MAX_PLAN_CHARACTERS, Fields, shape_of
from gswgan.federated.messages import read_plan as read_question
from gswgan.federated.server import Round
from gswgan.federated.site_rounds import SiteRounds
from gswgan.federated.site_steps import Turn, numbers_of
from gswgan.federated.trust import check_cost, is_refined
from gswgan.plan.plan import Plan
from gswgan.privacy.storage import create_durably, named_by_user, read_file

PLAN = "plan.json"
"""The plan in a run folder, for the sites."""

FORMAT_VERSION = 1
HEADER = 2**16
"""Bytes of an answer beside its sums, at the most."""


def read_plan(path: Path) -> Plan:
    """The plan that an operator has sent, if it is one for a round by files and states what it costs."""
    raw = read_file(path, 4 * MAX_PLAN_CHARACTERS, follow_link=True)
    plan = read_question({"plan": raw.decode(errors="replace")})
    check_cost(plan)
    return plan


def write_answer(path: Path, client: Client, plan: Plan, turn: Turn | None = None) -> None:
    """The site's answer to this plan, or to a round, as a new file: the ledger's lines first, then the answer."""
    if os.path.lexists(path):
        raise FederationError("out", str(path), "a file that does not exist yet", "Choose another --out.")
    sums = np.frombuffer(client.answer(plan, turn), np.uint8)
    told = {"format_version": FORMAT_VERSION, "client": client.name, "plan": plan.digest()}
    told |= {} if turn is None else {"round": str(turn.number)}
    raw = safetensors.numpy.save({"sums": sums}, {"answer": json.dumps(told)})  # one entry: it has no order
    create_durably(named_by_user(path), raw)


def read_answer_file(path: Path, plan: Plan) -> Fields:
    """The message in a file; whether it counts is the round's to say."""
    weights = 4 * numbers_of(plan)[0] if is_refined(plan) else 0
    raw = read_file(path, max(8 * math.prod(shape_of(plan)), weights) + HEADER)
    try:
        sums = safetensors.numpy.load(raw)["sums"]
        told = json.loads(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]["answer"])
        if told["format_version"] != FORMAT_VERSION or sums.dtype != np.uint8:
            raise ValueError("another format")
        if not isinstance(told["client"], str):
            raise TypeError("an id that is no text")
        told["client"].encode()  # JSON can hold a text that no file or log can: half of a surrogate pair
        if "round" in told:
            return {"client": told["client"], "plan": told["plan"], "round": told["round"], "weights": sums.tobytes()}
        return {"client": told["client"], "plan": told["plan"], "sums": sums.tobytes()}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise FederationError("answer", path.name[:60], f"an answer of a site ({type(wrong).__name__})") from wrong


def take_answers(held: Round, folder: Path) -> Iterator[str]:
    """Hand every answer in the folder to the round; yields what was refused and why.

    A file says itself whose answer it is. So all of them are read before one is taken, and where two different answers
    have the same id, in two files or in a file and in the round, none is taken: which one is the site's is not known.
    """
    if not folder.is_dir():
        raise FederationError("answers", str(folder), "a folder with the sites' answers", "Check the path.")
    taken = held.answers
    found = {client: (digest, str(taken.path_of(client))) for client, digest in taken.digests.items()}
    new: dict[Path, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            client, digest = taken.check(read_answer_file(path, held.plan))
        except (GswganError, OSError) as wrong:
            yield _line(path, wrong)
            continue
        known, where = found.setdefault(client, (digest, path.name))
        if known != digest:
            raise FederationError(
                "answers", f"{where} and {path.name}", f"one answer of {client[:60]}: these differ",
                "Ask the site which one it sent, and remove the other. Nothing was combined.",
            )  # fmt: skip
        if client not in taken.digests and where == path.name:
            new[path] = client
    for path, client in new.items():  # read again: together they may be larger than the memory
        try:
            fields = read_answer_file(path, held.plan)
            if taken.check(fields) != (client, found[client][0]):
                raise FederationError("answer", path.name[:60], "a file that does not change meanwhile", "Try again.")
        except (GswganError, OSError) as wrong:
            yield _line(path, wrong)
            continue
        node = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=7).digest(), "little")
        refused = held.take(fields, node=node, up=len(bytes(fields["sums"])))  # type: ignore[call-overload]
        if refused is not None:
            yield _line(path, refused)


def take_weights(rounds: SiteRounds, folder: Path) -> Iterator[str]:
    """Hand every answer in the folder to the round that waits; yields what was refused and why.

    Answers to the plan and to earlier rounds may lie there still: they are passed over.
    """
    if not folder.is_dir():
        raise FederationError("answers", str(folder), "a folder with the sites' answers", "Check the path.")
    found, new = rounds.taken(), list[Path]()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            fields = read_answer_file(path, rounds.plan)
        except (GswganError, OSError) as wrong:
            yield _line(path, wrong)
            continue
        if fields.get("round") != str(rounds.waiting):
            continue
        if (why := rounds.refused(fields)) is not None:  # a stranger's file, or one of another plan: it blocks nobody
            yield _line(path, why)
            continue
        client, digest = str(fields["client"]), hashlib.sha256(bytes(fields["weights"])).hexdigest()  # type: ignore[call-overload]
        known, where = found.setdefault(client, (digest, path.name))
        if known != digest:
            raise FederationError(
                "answers", f"{where} and {path.name}", f"one answer of {client[:60]}: these differ",
                "Ask the site which one it sent, and remove the other. Nothing was taken.",
            )  # fmt: skip
        if where == path.name:
            new.append(path)
    for path in new:  # read again: together they may be larger than the memory
        try:
            refused = rounds.take(read_answer_file(path, rounds.plan))
        except (GswganError, OSError) as wrong:
            yield _line(path, wrong)
            continue
        if refused is not None:
            yield _line(path, refused)


def _line(path: Path, why: object) -> str:
    """For a terminal: names of files and ids of clients are a stranger's."""
    return printable(f"{path.name}: {why}", keep="")
