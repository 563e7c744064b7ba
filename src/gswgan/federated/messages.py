"""What travels, in both modes, and how it is checked before it is believed. Everything is plain text or bytes.

- Kernel critic: down the plan; up one row, the client's class sums with their counts.
- Silos: the same with a site's sums of its clipped records or persons.
- Algorithm 2: down the plan and the fakes of a round; up one row of gradients for each fake that is judged. The fakes
  have two parts: a pool to learn from, with as many of each class, which serves all updates of the round, and the
  fakes that are judged. They travel as 8-bit images, as data and samples are: the critics see exactly these.

Answers are integers on the mechanism's grid. Clipped rows take 32 bits per number, rows with noise 64 where needed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.errors import FederationError, short
from gswgan.federated.silos import FAR, check_sum, first_sums
from gswgan.federated.trust import has_rounds, trust_of
from gswgan.methods import read_plan as parse_plan
from gswgan.plan.plan import Plan
from gswgan.privacy.mechanism import GRID_BITS, fits_grid

MAX_PLAN_CHARACTERS = 2**22
"""Of a plan's text that is read: ten thousand classes with long names take 1.2 million."""

Fields = Mapping[str, object]
"""A message: names with text or bytes."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The fakes of one round: the pool to learn from first, then those that are judged."""

    number: int  # of the round, from 0
    images: Tensor  # [pool + B, c, h, w], in [0, 1]
    labels: Tensor  # [pool + B]
    pool: int

    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        """The pool, in a generator's place."""
        if count != self.pool:
            raise FederationError("fakes", self.pool, f"{count} to learn from")
        return self.images[: self.pool], self.labels[: self.pool]

    @property
    def judged(self) -> tuple[Tensor, Tensor]:
        """What the gradients are wanted of."""
        return self.images[self.pool :], self.labels[self.pool :]

    def pack(self) -> dict[str, str | bytes]:
        """The fields of a question."""
        images = (self.images.detach() * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy().tobytes()
        labels = self.labels.cpu().numpy().astype("<u2").tobytes()
        return {"round": str(self.number), "images": images, "labels": labels}

    def digest(self) -> str:
        """Equal for equal questions."""
        fields = self.pack()
        state = hashlib.sha256(str(fields["round"]).encode())
        for name in ("images", "labels"):
            state.update(bytes(fields[name]))  # type: ignore[arg-type]
        return state.hexdigest()


def pool_size(plan: Plan) -> int:
    """How many fakes a critic learns from in a round: what the ensemble asks of its generator."""
    size, classes = plan.critic.ensemble_settings.learning_batch, plan.facts.classes
    return int(classes * max(2, min(size, max(8, 2 * math.ceil(size / classes)))))


def question(plan: Plan, batch: Batch | None = None) -> dict[str, str | bytes]:
    """What a client is asked; `batch`: in a round of Algorithm 2."""
    return {"plan": json.dumps(plan.to_json()), **({} if batch is None else batch.pack())}


def read_plan(fields: Fields) -> Plan:
    """The plan of a question, which must be one for clients."""
    text = fields.get("plan")
    if not isinstance(text, str) or len(text) > MAX_PLAN_CHARACTERS:
        found = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise FederationError("question", found, f"the text of a plan, at most {MAX_PLAN_CHARACTERS} characters")
    try:
        plan = _parse(text)
    except (ValueError, RecursionError) as wrong:
        raise FederationError("question", short(str(wrong), 200), "the plan of a federated run") from wrong
    if has_rounds(plan) != ("round" in fields):
        raise FederationError("question", plan.preset, "a round exactly where the plan has rounds")
    return plan


@functools.lru_cache(maxsize=4)
def _parse(text: str) -> Plan:
    """Once per process: a client is asked with the same plan in every round."""
    return parse_plan(json.loads(text))


def read_batch(plan: Plan, fields: Fields) -> Batch | None:
    """The fakes of a round, checked: number, size, labels that exist, as many of each class to learn from.

    None for the kernel critic, which takes one round without fakes.
    """
    if not has_rounds(plan):
        return None
    facts, pool = plan.facts, pool_size(plan)
    number, images, labels = (fields.get(name) for name in ("round", "images", "labels"))
    if not isinstance(number, str) or not number.isascii() or not number.isdigit() or len(number) > 7:
        raise FederationError("round", short(number), "the number of a round")
    if int(number) >= plan.sums.releases:
        raise FederationError("round", int(number), f"below {plan.sums.releases}, as planned")
    shape = (pool + plan.sums.rows, facts.channels, facts.image_size, facts.image_size)
    if not isinstance(images, bytes) or not isinstance(labels, bytes):
        raise FederationError("fakes", type(images).__name__, "bytes")
    if (len(images), len(labels)) != (math.prod(shape), 2 * shape[0]):
        raise FederationError("fakes", (len(images), len(labels)), f"{shape[0]} images with their labels")
    pixels = torch.from_numpy(np.frombuffer(images, np.uint8).reshape(shape).copy()).float() / 255
    classes = torch.from_numpy(np.frombuffer(labels, "<u2").astype(np.int64))
    if int(classes.max()) >= facts.classes:
        raise FederationError("fakes", int(classes.max()), f"labels below {facts.classes}")
    if set(classes[:pool].bincount(minlength=facts.classes).tolist()) != {pool // facts.classes}:
        raise FederationError("fakes", "some classes more than others", "as many of each class to learn from")
    return Batch(number=int(number), images=pixels, labels=classes, pool=pool)


def shape_of(plan: Plan) -> tuple[int, int]:
    """Rows and columns of an answer: features and count of every class, or the pixels of every judged fake."""
    facts = plan.facts
    return first_sums(plan).rows, facts.pixels if has_rounds(plan) else facts.classes * (
        plan.critic.kernel_settings.features + 1
    )


def answer_bytes(plan: Plan) -> int:
    """How many bytes the numbers of an answer take."""
    return math.prod(shape_of(plan)) * _type(plan).itemsize


def answer(client: str, plan: Plan, raw: bytes, number: int | None = None) -> dict[str, str | bytes]:
    """What a client sends; `number`: of the round of Algorithm 2."""
    whose = {"client": client, "plan": plan.digest()}
    return {**whose, "sums": raw} if number is None else {**whose, "round": str(number), "block": raw}


def read_answer(fields: Fields, plan: Plan, number: int | None = None) -> tuple[str, NDArray[np.int64]]:
    """Client and numbers of an answer; a client that refuses says why instead, which is raised."""
    refused, client = fields.get("refused"), fields.get("client")
    if isinstance(refused, str):
        raise FederationError("client", short(refused, 200), "an answer")
    if not isinstance(client, str):
        raise FederationError("answer", "without a client", "the client's id as text")
    if fields.get("plan") != plan.digest():
        raise FederationError("plan", short(str(fields.get("plan")), 12), f"{plan.digest()[:12]}, what was asked for")
    if number is not None and fields.get("round") != str(number):
        raise FederationError("round", short(str(fields.get("round")), 12), f"{number}, the round that is open")
    return client, unpack(raw_of(fields, number), plan, client)


def raw_of(fields: Fields, number: int | None) -> object:
    """The bytes of an answer's numbers."""
    return fields.get("sums" if number is None else "block")


def _largest(plan: Plan) -> float:
    """The largest number of an answer: clipped, or with as much noise as there can be."""
    noise = first_sums(plan).noise_std / first_sums(plan).clip_norm if trust_of(plan) == "untrusted-server" else 0.0
    return float(2.0**GRID_BITS * (1 + FAR * noise))


def _type(plan: Plan) -> np.dtype[np.signedinteger]:
    clear = trust_of(plan) == "trusted-aggregator" and plan.facts.silos is None  # one clipped row, without noise
    narrow = _largest(plan) < 2**31 if has_rounds(plan) else clear
    return np.dtype("<i4" if narrow else "<i8")


def pack(grid: NDArray[np.int64], plan: Plan) -> bytes:
    """Integers on the grid as they travel."""
    return np.ascontiguousarray(grid).astype(_type(plan), casting="unsafe").tobytes()


def unpack(raw: object, plan: Plan, client: str = "") -> NDArray[np.int64]:
    """The numbers of a client's answer [rows, columns], or a FederationError: wrong type, wrong size or too large.

    A clipped row has norm at most the clip norm, exactly. A noisy one is bounded by what noise can do. A site's sums
    are bounded by the number of its records.
    """
    kind, shape = _type(plan), shape_of(plan)
    if not isinstance(raw, bytes):
        raise FederationError("answer", type(raw).__name__, "bytes")
    if len(raw) != math.prod(shape) * kind.itemsize:
        raise FederationError("answer", f"{len(raw)} bytes", f"{math.prod(shape)} numbers of {kind.itemsize} bytes")
    grid = np.frombuffer(raw, kind).astype(np.int64).reshape(shape)
    if plan.facts.silos is not None:
        check_sum(grid, plan, client, noisy=trust_of(plan) == "untrusted-server")
    elif trust_of(plan) == "trusted-aggregator":
        if not bool(fits_grid(torch.from_numpy(grid)).all()):
            raise FederationError("answer", "a row that is too long", f"norm at most {plan.sums.clip_norm:g}")
    elif not bool((np.abs(grid.astype(np.float64)) <= _largest(plan)).all()):
        raise FederationError("answer", "a number that is too large", "a clipped number with its noise")
    return grid
