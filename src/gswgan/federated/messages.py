"""What travels: down one question, the plan; up one answer, the client's sums as integers on the mechanism's grid.

Everything is plain text or bytes, so that it can be kept on a disk as it was sent and checked before it is believed.
With a trusted aggregator an entry is a 32-bit integer (a clipped vector fits), with noise it is a 64-bit one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from gswgan.errors import FederationError, short
from gswgan.federated.trust import check_one_round, trust_of
from gswgan.methods import read_plan
from gswgan.plan.plan import Plan
from gswgan.privacy.mechanism import GRID_BITS, fits_grid

FAR = 12.0
"""Standard deviations beyond which no honest noisy entry lies: one in 10^32 draws."""

LARGEST_PLAN = 2**22
"""Characters of a plan's text that are read: ten thousand classes with long names take 1.2 million."""

Fields = Mapping[str, object]
"""A message: names with text or bytes."""


def question(plan: Plan) -> dict[str, str]:
    """What the server sends to every client."""
    return {"plan": json.dumps(plan.to_json())}


def read_question(fields: Fields) -> Plan:
    """The plan of a question; a client believes nothing else."""
    return check_one_round(plan_of(fields))


def plan_of(fields: Fields) -> Plan:
    """The plan in a question, whichever critic it has."""
    text = fields.get("plan")
    if not isinstance(text, str) or len(text) > LARGEST_PLAN:
        found = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise FederationError("question", found, f"the text of a plan, at most {LARGEST_PLAN} characters")
    try:
        return read_plan(json.loads(text))
    except (ValueError, RecursionError) as wrong:
        raise FederationError("question", short(str(wrong), 200), "the plan of a federated run") from wrong


def answer(client: str, plan: Plan, sums: bytes) -> dict[str, str | bytes]:
    """What a client sends, once."""
    return {"client": client, "plan": plan.digest(), "sums": sums}


def width(plan: Plan) -> int:
    """Numbers in an answer: features and count of each class."""
    return plan.facts.classes * (plan.critic.kernel_settings.features + 1)


def _type(plan: Plan) -> np.dtype[np.signedinteger]:
    return np.dtype("<i4" if trust_of(plan) == "trusted-aggregator" else "<i8")


def pack(grid: NDArray[np.int64], plan: Plan) -> bytes:
    """Integers on the grid as they travel."""
    return np.ascontiguousarray(grid).astype(_type(plan), casting="unsafe").tobytes()


def unpack(raw: object, plan: Plan) -> NDArray[np.int64]:
    """The sums of an answer, or a FederationError: wrong type, wrong size, or longer than any honest one.

    Clipped sums have norm at most the clip norm, exactly. Noisy ones are bounded by what noise can do.
    """
    assert plan.privacy is not None
    kind = _type(plan)
    if not isinstance(raw, bytes):
        raise FederationError("answer", type(raw).__name__, "bytes")
    if len(raw) != width(plan) * kind.itemsize:
        raise FederationError("answer", f"{len(raw)} bytes", f"{width(plan)} numbers of {kind.itemsize} bytes")
    grid = np.frombuffer(raw, kind).astype(np.int64)
    if trust_of(plan) == "trusted-aggregator":
        if not bool(fits_grid(torch.from_numpy(grid)).all()):
            raise FederationError("answer", "a vector that is too long", f"norm at most {plan.privacy.clip_norm:g}")
        return grid
    most = 2.0**GRID_BITS * (1 + FAR * plan.privacy.noise_std / plan.privacy.clip_norm)
    if not bool((np.abs(grid.astype(np.float64)) <= most).all()):
        raise FederationError("answer", "an entry that is too large", "a clipped entry with its noise")
    return grid


def read_answer(fields: Fields) -> tuple[str, str, object]:
    """Client, plan and sums of an answer; a client that refuses says why instead, which is raised."""
    refused, client, plan = fields.get("refused"), fields.get("client"), fields.get("plan")
    if isinstance(refused, str):
        raise FederationError("client", short(refused, 200), "an answer")
    if not isinstance(client, str) or not isinstance(plan, str):
        raise FederationError("answer", "without client or plan", "both of them as text")
    return client, plan, fields.get("sums")
