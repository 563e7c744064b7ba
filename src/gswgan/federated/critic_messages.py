"""What travels in Algorithm 2: down one batch of fakes with labels a round, up one clipped block of gradients.

The batch has two parts: fakes to learn from, as many of each class, which serve all n_dis updates of the round; and the
B fakes that are judged. Down they are 8-bit images, as the data and the published samples are: the critics see, and
judge, exactly these. Up are integers on the mechanism's grid, as in messages.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.critics.kernel.features import KernelSettings
from gswgan.errors import FederationError, short
from gswgan.federated.messages import FAR, Fields, plan_of
from gswgan.federated.trust import trust_of
from gswgan.plan.plan import Plan
from gswgan.privacy.mechanism import GRID_BITS, fits_grid


def pool_size(plan: Plan) -> int:
    """How many fakes a critic learns from in a round: what the ensemble asks of its generator."""
    size, classes = plan.critic.ensemble_settings.learning_batch, plan.facts.classes
    return int(classes * max(2, min(size, max(8, 2 * math.ceil(size / classes)))))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The fakes of one round: the pool to learn from first, then those to be judged."""

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
        """As it travels."""
        images = (self.images.detach() * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy().tobytes()
        return {
            "round": str(self.number),
            "images": images,
            "labels": self.labels.cpu().numpy().astype("<u2").tobytes(),
        }

    def digest(self) -> str:
        """Equal for equal questions."""
        fields = self.pack()
        state = hashlib.sha256(str(fields["round"]).encode())
        for name in ("images", "labels"):
            state.update(bytes(fields[name]))  # type: ignore[arg-type]
        return state.hexdigest()


def question(plan: Plan, batch: Batch) -> dict[str, str | bytes]:
    """What a participant is sent."""
    return {"plan": json.dumps(plan.to_json()), **batch.pack()}


def read_question(fields: Fields) -> tuple[Plan, Batch]:
    """The plan and the fakes, if they are what such a plan asks for."""
    plan = read_plan(fields)
    return plan, read_batch(plan, fields)


def read_plan(fields: Fields) -> Plan:
    """The plan of a question of Algorithm 2, before its fakes are looked at."""
    plan = plan_of(fields)
    trust_of(plan)
    if isinstance(plan.critic, KernelSettings):
        raise FederationError("question", "round", "no rounds with the kernel critic")
    return plan


def read_batch(plan: Plan, fields: Fields) -> Batch:
    """The fakes of a round, checked: number, size, labels that exist, as many of each class to learn from."""
    assert plan.privacy is not None
    facts, pool = plan.facts, pool_size(plan)
    number, images, labels = (fields.get(name) for name in ("round", "images", "labels"))
    if not isinstance(number, str) or not number.isascii() or not number.isdigit() or len(number) > 7:
        raise FederationError("round", short(number), "the number of a round")
    if int(number) >= plan.privacy.releases:
        raise FederationError("round", int(number), f"below {plan.privacy.releases}, as planned")
    shape = (pool + plan.privacy.rows, facts.channels, facts.image_size, facts.image_size)
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


def answer(client: str, plan: Plan, number: int, block: bytes) -> dict[str, str | bytes]:
    """What a participant sends back."""
    return {"client": client, "plan": plan.digest(), "round": str(number), "block": block}


def _most(plan: Plan) -> float:
    """The largest entry of an answer: clipped, or with as much noise as there can be."""
    assert plan.privacy is not None
    noise = plan.privacy.noise_std / plan.privacy.clip_norm if trust_of(plan) == "untrusted-server" else 0.0
    return float(2.0**GRID_BITS * (1 + FAR * noise))


def _type(plan: Plan) -> np.dtype[np.signedinteger]:
    return np.dtype("<i4" if _most(plan) < 2**31 else "<i8")


def pack_block(grid: NDArray[np.int64], plan: Plan) -> bytes:
    """Gradients [B, pixels] on the grid as they travel."""
    return np.ascontiguousarray(grid).astype(_type(plan), casting="unsafe").tobytes()


def unpack_block(raw: object, plan: Plan) -> NDArray[np.int64]:
    """The gradients of an answer [B, pixels], or a FederationError; every row is held to the clip norm, exactly.

    Noisy rows (untrusted server) are bounded by what noise can do.
    """
    assert plan.privacy is not None
    kind, shape = _type(plan), (plan.privacy.rows, plan.facts.pixels)
    if not isinstance(raw, bytes):
        raise FederationError("answer", type(raw).__name__, "bytes")
    if len(raw) != math.prod(shape) * kind.itemsize:
        raise FederationError("answer", f"{len(raw)} bytes", f"{math.prod(shape)} numbers of {kind.itemsize} bytes")
    grid = np.frombuffer(raw, kind).astype(np.int64).reshape(shape)
    if trust_of(plan) == "trusted-aggregator":
        if not bool(fits_grid(torch.from_numpy(grid)).all()):
            raise FederationError("answer", "a gradient that is too long", f"norm at most {plan.privacy.clip_norm:g}")
        return grid
    if not bool((np.abs(grid.astype(np.float64)) <= _most(plan)).all()):
        raise FederationError("answer", "an entry that is too large", "a clipped entry with its noise")
    return grid


def read_answer(fields: Fields, plan: Plan, number: int) -> tuple[str, NDArray[np.int64]]:
    """Client and gradients of an answer to this round; a client that refuses says why instead, which is raised."""
    refused, client = fields.get("refused"), fields.get("client")
    if isinstance(refused, str):
        raise FederationError("client", short(refused, 200), "an answer")
    if not isinstance(client, str):
        raise FederationError("answer", "without a client", "the client's id as text")
    if fields.get("plan") != plan.digest():
        raise FederationError("plan", short(str(fields.get("plan")), 12), f"{plan.digest()[:12]}, what was asked for")
    if fields.get("round") != str(number):
        raise FederationError("round", short(str(fields.get("round")), 12), f"{number}, the round that is open")
    return client, unpack_block(fields.get("block"), plan)
