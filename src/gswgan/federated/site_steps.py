"""Rounds of DP-SGD at a site (preset refined): what it is asked, what it answers, what it keeps from round to round.

    STATE/<name of the client>/<digest of a plan>/steps.safetensors    after the last round: the answer, the momentum,
                                                                       and the axes of gradients, from the first round

The site draws its own coins, so they are secret from the server, and a step costs what a sampled sum costs
(docs/proof.md, section 10). A round that was begun has one question (client_answers.py). One in which the site died is
computed again: sums that another machine rounds otherwise count again, without the coins, within the cap.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gswgan.critics.refined.records import gradients_of
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.critics.refined.sites import SiteSteps, farther, rounds_of
from gswgan.critics.refined.steps import DPSGD
from gswgan.data import ImageData
from gswgan.errors import FederationError, PlanError, RunError, short
from gswgan.federated.client_answers import Asked, Work
from gswgan.generators import build_network
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.preconditioner import preconditioner_of
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.privacy import BatchStreams, GaussianMechanism, Streams
from gswgan.privacy.storage import read_file, write_durably
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.folder import data_digest, read_json, write_json

STEPS = "steps.safetensors"

FORMAT_VERSION = 1
HEADER = 2**20
"""Bytes of a question beside its numbers, at the most."""

LONGEST = 3.0
"""A step is at most so many times the learning rate long in the mean over the weights: momentum over the size of the
gradients is at most 2.35, by Cauchy and Schwarz with what both keep of themselves (generators/scaled_descent.py)."""


def refined_settings(plan: Plan) -> RefinedSettings:
    """Those of a plan of preset refined."""
    settings = plan.critic
    if not isinstance(settings, RefinedSettings) or settings.local_steps is None:
        raise PlanError("plan", plan.preset, "preset refined over sites")
    return settings


def steps_of(plan: Plan) -> list[range]:
    """The steps of DP-SGD in each round."""
    return rounds_of(plan.sums.releases, refined_settings(plan).local_steps or 1)


def planned_steps(plan: Plan) -> DPSGD:
    """How far each of them goes."""
    return DPSGD(settings=refined_settings(plan), optimizer=plan.optimizer, releases=plan.sums.releases)


def sizes_of(plan: Plan) -> dict[str, int]:
    """The public number of records of every site."""
    assert plan.facts.silos is not None
    return {site.name: site.records for site in plan.facts.silos.sites}


def denoiser_of(plan: Plan, device: torch.device) -> DenoisedSampler:
    """The network that all sites train; its first weights are of no account."""
    with torch.random.fork_rng(devices=[]), device:
        network = build_network(plan.generator, **plan.facts.shape)
    assert isinstance(network, DenoisedSampler)
    return network


def numbers_of(plan: Plan) -> tuple[int, dict[str, tuple[int, ...]]]:
    """How many weights there are, and the shapes of the axes: counted without allocating them."""
    meta = torch.device("meta")
    network = denoiser_of(plan, meta)
    axes = preconditioner_of(network, meta).state()
    return sum(value.numel() for value in network.parameters()), {name: tuple(v.shape) for name, v in axes.items()}


def check_weights(plan: Plan, found: object, before: Tensor, steps: range) -> Tensor:
    """The weights of a site's answer, if they can come of these steps: so many finite numbers, not too far away."""
    if not isinstance(found, bytes) or len(found) != 4 * len(before):
        size = f"{len(found)} bytes" if isinstance(found, bytes) else type(found).__name__
        raise FederationError("weights", size, f"{len(before)} numbers of 4 bytes")
    weights = torch.from_numpy(np.frombuffer(found, "<f4").copy())
    rate = plan.optimizer.learning_rate * farther(sizes_of(plan))
    most = LONGEST * rate * len(steps) * math.sqrt(len(before))
    if not float((weights.double() - before.double()).norm()) <= most:  # a NaN is not
        raise FederationError(
            "weights", "too far away, or not numbers", f"at most {most:.4g} from those that were sent"
        )
    return weights


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The question of one round: the weights that the steps begin at, and in the first round the axes of gradients."""

    number: int
    weights: Tensor
    axes: Mapping[str, Tensor]

    def save(self, path: Path, plan: Plan) -> None:
        """As a file for all sites."""
        told = {"format_version": FORMAT_VERSION, "plan": plan.digest(), "round": self.number}
        tensors = {"weights": self.weights, **{f"axes|{name}": value for name, value in self.axes.items()}}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        write_durably(path, safetensors.torch.save(tensors, {"question": json.dumps(told)}))

    def digest(self) -> str:
        """Equal for equal questions."""
        found = hashlib.sha256(str(self.number).encode())
        for name, value in sorted({"weights": self.weights, **self.axes}.items()):
            found.update(name.encode())
            found.update(value.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


def read_turn(path: Path, plan: Plan) -> Turn:
    """A question that came by file, checked: of this plan, of a round that it has, with as many numbers as it has."""
    count, shapes = numbers_of(plan)
    raw = read_file(path, HEADER + 4 * (count + sum(map(math.prod, shapes.values()))), follow_link=True)
    try:
        tensors = safetensors.torch.load(raw)
        told = json.loads(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]["question"])
        number, version, of = told["round"], told["format_version"], told["plan"]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise FederationError("question", path.name[:60], f"a round's question ({type(wrong).__name__})") from wrong
    if (version, of) != (FORMAT_VERSION, plan.digest()):
        raise FederationError("question", short(str(of), 12), f"one of plan {plan.digest()[:12]}")
    if type(number) is not int or not 0 <= number < len(steps_of(plan)):
        raise FederationError("round", short(number), f"a round below {len(steps_of(plan))}, as planned")
    wanted = {"weights": (count,)} | ({f"axes|{name}": shape for name, shape in shapes.items()} if number == 0 else {})
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    kinds = {value.dtype for value in tensors.values()}
    if found != wanted or kinds != {torch.float32} or not all(bool(v.isfinite().all()) for v in tensors.values()):
        raise FederationError("question", path.name[:60], "the numbers of this round: finite, of the planned shapes")
    weights = tensors.pop("weights")
    return Turn(number=number, weights=weights, axes={name.removeprefix("axes|"): v for name, v in tensors.items()})


def bind_data(path: Path, data: ImageData, secret: Streams) -> None:
    """Remember, keyed, which records the rounds are about; refuse to go on with others.

    Where there are none, since they cannot be used, the answer is of black images, which are nobody's.
    """
    if data.n == 0:
        return
    digest = data_digest(data, secret.seed("data"))
    if not path.exists():
        write_json(path, {"digest": digest})
    elif read_json(path, "data.json").get("digest") != digest:
        raise FederationError(
            "data", data.name, "the records of the rounds before, in the same order", "Put them back: coins are theirs."
        )


class StepsAtSite:
    """The local steps of one round (`client_answers.Answer`)."""

    def __init__(self, folder: Path, plan: Plan, turn: Turn, records: int) -> None:
        """`records`: how many the site has, as is public."""
        self._plan, self._turn, self._records, self._steps = plan, turn, records, steps_of(plan)[turn.number]
        self.name, self.is_last = f"step {self._steps.start}", self._steps.stop == plan.sums.releases
        self._first, self._kept = folder / "answer.bin", Checkpoint(folder / STEPS, plan.digest())
        self._asked = Asked(folder)

    def kept(self) -> bytes | None:
        """The answer to this question, if it has been given; a FederationError where the round is not the next."""
        saved, number = self._saved(), self._turn.number
        done = 0 if saved is None else saved[0]
        if not self._first.exists() or number > done:
            raise FederationError("round", number + 1, f"round {done + 1}, after the answer to the plan itself")
        if self._asked.refuses(number, self._turn.digest(), done):
            raise FederationError("round", number + 1, f"round {done + 1}, the next, or the same question again")
        return None if number == done or saved is None else _raw(saved[1]["answer"]["weights"])

    def _saved(self) -> tuple[int, dict[str, dict[str, Tensor]]] | None:
        try:
            return self._kept.load()
        except RunError as wrong:
            expected = "the file that the last round left"
            raise FederationError(
                STEPS, "a damaged one", expected, "Restore it: no round goes on without it."
            ) from wrong

    def make(self, work: Work) -> bytes:
        """The weights after the steps. Each of them is in the ledger before its noise is drawn."""
        plan, device, saved = self._plan, pick_device("auto"), self._saved()
        self._asked.begin(self._turn.number, self._turn.digest())
        network = denoiser_of(plan, device)
        preconditioner = preconditioner_of(network, device)
        preconditioner.load_state(dict(self._turn.axes) if saved is None else saved[1]["axes"])
        mechanism = GaussianMechanism(
            contribution=plan.sums.contribution, event=plan.sums.event, ledger=work.ledger, streams=work.secret
        )
        site = SiteSteps(
            planned_steps(plan), self._data(work.data), mechanism, BatchStreams(work.secret), network=network,
            preconditioner=preconditioner, gradients=gradients_of(refined_settings(plan), network),
            farther=farther(sizes_of(plan)),
        )  # fmt: skip
        if saved is not None:
            site.descent.load_state(saved[1]["descent"])
        found = site.answer(self._turn.weights.to(device), self._steps)
        state = {"descent": site.descent.state(), "axes": preconditioner.state()}
        self._kept.save(self._turn.number + 1, {"answer": {"weights": found}, **state})
        return _raw(found)

    def _data(self, data: ImageData) -> ImageData:
        """The records; black images in their place where they cannot be used: there is an answer all the same."""
        if data.n == self._records:
            return data
        facts: Any = self._plan.facts
        shape = (self._records, facts.channels, facts.image_size, facts.image_size)
        return dataclasses.replace(data, images=np.zeros(shape, np.uint8), labels=np.zeros(self._records, np.int64))


def _raw(weights: Tensor) -> bytes:
    return weights.detach().cpu().numpy().astype("<f4").tobytes()
