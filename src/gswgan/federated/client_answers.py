"""How a client makes an answer: the kernel critic's class sums, or `ClientUpdate` of Algorithm 2.

    STATE/<name of the client>/<digest of a plan>/answer.bin            kernel critic: the one answer
                                                 /critic.safetensors    Algorithm 2: the critic after its last round,
                                                                        with the answer
                                                 /warm_start.safetensors
                                                 /asked.json            with rounds: the question that was begun last

An answer is recorded in the ledger (written ahead, within the cap), then kept, then sent. Asked the same again, the
client sends the bytes that it has kept. In rounds it refuses an earlier one, and the same one with another question,
from the moment that it has begun: a server that could ask a client again which died in it would see, by whether the cap
allows one more answer, whether two sums are equal. A round in which the client died is computed again. The same sums
then give the same bytes; others, as another machine may round them, count again. After its last round in Algorithm 2
the critic is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.warm_start import WarmStart
from gswgan.critics.kernel.embedding import person_row
from gswgan.critics.kernel.features import RandomFeatures
from gswgan.data import ImageData
from gswgan.errors import FederationError
from gswgan.federated.messages import Batch, pack, shape_of
from gswgan.federated.silos import first_sums, grid_shape, site_sum
from gswgan.federated.trust import answer_event, is_refined, trust_of, weight_of_counts
from gswgan.generators.generator import Generator
from gswgan.plan.plan import Plan
from gswgan.privacy import BatchStreams, Contribution, GaussianMechanism, Ledger, Streams
from gswgan.privacy.mechanism import GRID_BITS, ClippedSum, announce, clip_to_grid
from gswgan.privacy.mechanism import Answer as NoisySum
from gswgan.privacy.storage import read_file, write_durably
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.folder import read_json, write_json

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an answer is made with."""

    data: ImageData
    ledger: Ledger
    secret: Streams
    failed: Callable[[Exception], None]
    """Told of what the records, or the critic, could not do: the answer is zeros then."""


class Answer(Protocol):
    """One answer of a client: kept, or to be made."""

    name: str
    """In the ledger."""

    is_last: bool
    """Whether the plan asks for none after it."""

    def kept(self) -> bytes | None:
        """What was made before; a FederationError where it is too late for it."""

    def make(self, work: Work) -> bytes:
        """Make, record and keep it."""


class Asked:
    """The question that was begun last, on the disk before its first line in the ledger."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "asked.json"

    def refuses(self, number: int, question: str, done: int) -> bool:
        """Whether this is an earlier round, or another question in the last one; `done` rounds are answered."""
        known = read_json(self._path, "asked.json") if self._path.exists() else {}
        last = max(known.get("round", -1), done - 1)
        return number < last or (number == last and known.get("question") != question)

    def begin(self, number: int, question: str) -> None:
        """From now on this round has no other question."""
        write_json(self._path, {"round": number, "question": question})


def sanitize(plan: Plan, name: str, rows: Tensor, work: Work) -> bytes:
    """Clip rows [1, R, W] and record them; with an untrusted server, add the noise. Nothing is sent here."""
    bound, event = plan.sums.contribution, answer_event(plan)
    if trust_of(plan) == "trusted-aggregator":
        grid = clip_to_grid(rows, bound.clip_norm)[0].numpy()
        announce(name, grid, bound, event, work.ledger, work.secret)
        return pack(grid, plan)
    mechanism = GaussianMechanism(contribution=bound, event=event, ledger=work.ledger, streams=work.secret)
    noisy = mechanism.answer(name, [(rows, None)], slots=rows.shape[1], width=rows.shape[2])
    return pack(on_grid(noisy, bound), plan)


class SumsAtClient:
    """The averaged, clipped class sums of a client's records, once."""

    name = "embedding"

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path, self._plan = folder / "answer.bin", plan
        self.is_last = not is_refined(plan)

    def kept(self) -> bytes | None:
        """The one answer, if it was made."""
        return read_file(self._path, 8 * math.prod(shape_of(self._plan))) if self._path.exists() else None

    def make(self, work: Work) -> bytes:
        """The class sums; zeros where they cannot be computed."""
        plan = self._plan
        features = RandomFeatures(plan.critic.kernel_settings, plan.facts.channels, plan.facts.image_size, CPU)
        try:
            row = person_row(work.data, features, weight_of_counts(plan))
        except Exception as wrong:  # whether there is an answer must not depend on the records
            work.failed(wrong)
            row = torch.zeros(1, *shape_of(plan), dtype=torch.float64)
        raw = sanitize(plan, self.name, row, work)
        write_durably(self._path, raw, mode=0o600)
        return raw


class SumsAtSite(SumsAtClient):
    """The sum of a site's clipped records or persons, once; with an untrusted server, with all of the noise.

    A class that the site does not have is a row of zeros, and has the same noise as any other.
    """

    def make(self, work: Work) -> bytes:
        """The sums; zeros where they cannot be computed."""
        plan, bound, event = self._plan, first_sums(self._plan).contribution, answer_event(self._plan)
        try:
            summed = site_sum(plan, work.data, weight_of_counts(plan))
        except Exception as wrong:  # whether there is an answer must not depend on the records
            work.failed(wrong)
            summed = ClippedSum(contribution=bound, total=np.zeros(grid_shape(plan), np.int64))
        if trust_of(plan) == "trusted-aggregator":
            grid = summed.total
            announce(self.name, grid, bound, event, work.ledger, work.secret)
        else:
            mechanism = GaussianMechanism(contribution=bound, event=event, ledger=work.ledger, streams=work.secret)
            slots, columns = grid_shape(plan)
            noisy = mechanism.answer(self.name, summed, slots=slots, width=columns - bound.counts)
            grid = on_grid(noisy, bound)
        raw = pack(grid, plan)
        write_durably(self._path, raw, mode=0o600)
        return raw


def on_grid(noisy: NoisySum, bound: Contribution) -> NDArray[np.int64]:
    """What a mechanism has answered, as the integers that it was."""
    parts = [noisy.sums, *([] if noisy.counts is None else [noisy.counts[:, None] * bound.clip_norm])]
    return np.rint(np.hstack(parts) / (bound.clip_norm * 2.0**-GRID_BITS)).astype(np.int64)


class CriticAtClient:
    """D(.; theta_D^k) of one client in one round: kept on the disk from round to round."""

    def __init__(self, folder: Path, plan: Plan, batch: Batch) -> None:
        self._plan, self._batch, self._asked = plan, batch, Asked(folder)
        self.name, self.is_last = f"step {batch.number}", batch.number + 1 == plan.sums.releases
        self._kept = Checkpoint(folder / "critic.safetensors", plan.digest())
        self._warm = Checkpoint(folder / "warm_start.safetensors", plan.digest())

    def kept(self) -> bytes | None:
        """The answer to this question, if it has been given; a FederationError where the client is past this round."""
        saved, number = self._kept.load(), self._batch.number
        done = 0 if saved is None else saved[0]
        if self._asked.refuses(number, self._batch.digest(), done):
            expected = "the fakes that were answered for, or a round after the last one answered"
            raise FederationError("round", number, expected)
        return None if saved is None or number >= done else saved[1]["answer"]["block"].numpy().tobytes()

    def make(self, work: Work) -> bytes:
        """n_dis updates on the own data, then M_{sigma,C} of the judged fakes' gradients."""
        self._asked.begin(self._batch.number, self._batch.digest())
        try:
            rows, state = self._gradients(work)
        except Exception as wrong:  # whether there is an answer must not depend on the records
            work.failed(wrong)
            rows, state = torch.zeros(1, *shape_of(self._plan)), {}
        block = sanitize(self._plan, self.name, rows, work)
        kept = {"block": torch.from_numpy(np.frombuffer(block, np.uint8).copy())}
        self._kept.save(self._batch.number + 1, {"critic": {} if self.is_last else state, "answer": kept})
        if self.is_last:
            self._warm.remove()
        return block

    def _gradients(self, work: Work) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradients, not clipped yet, and the critic's state after its updates."""
        if not work.data.n:  # a client without records answers all the same
            return torch.zeros(1, *shape_of(self._plan)), {}
        saved = self._kept.load()
        state = {} if saved is None else saved[1].get("critic", {})  # none after a round in which it failed
        critic = self.critic(work)
        critic.prepare(work.data, resumed=bool(state))
        if state:
            critic.load_state(state)
        critic.learn(self._batch.number, cast(Generator, self._batch))
        return critic.input_gradients(np.zeros(1, np.int64), *self._batch.judged).flatten(2), critic.state()

    def critic(self, work: Work) -> Ensemble:
        """An ensemble of one. Its initial weights are the client's own: hidden state, as its warm start is."""
        plan, facts, settings = self._plan, self._plan.facts, self._plan.critic.ensemble_settings
        warm = WarmStart(
            iterations=settings.warm_start,
            generator=plan.generator,
            learning_rate=plan.optimizer.learning_rate,
            betas=plan.optimizer.betas,
            store=self._warm,
        )
        shape = CriticShape(
            image_size=facts.image_size, channels=facts.channels, classes=facts.classes, width=settings.width
        )
        mechanism = GaussianMechanism(
            contribution=plan.sums.contribution, event=answer_event(plan), ledger=work.ledger, streams=work.secret
        )
        return Ensemble(
            settings, shape, mechanism, count=1, public=work.secret, batches=BatchStreams(work.secret), device=CPU,
            warm_start=warm if warm.iterations else None,
        )  # fmt: skip
