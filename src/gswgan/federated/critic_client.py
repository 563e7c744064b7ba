"""A client's critic in Algorithm 2: `ClientUpdate`, with one answer a round and all of it on the client's own disk.

    STATE/<name of the client>/<digest of a plan>/ledger.jsonl, journal.jsonl, key.json
                                                 /critic.safetensors   the critic after its last round, with the answer
                                                 /warm_start.safetensors

The order is: ledger (written ahead, within the cap), critic and answer in one file, answer sent. Asked for the same
round with the same fakes, the client sends the bytes it has kept; for an earlier round, or the same one with other
fakes, it refuses. So no round is computed twice, but for one in which the client died before its answer was kept: the
same key, critic and fakes then give the same bytes, and anything else counts again. After the last round the critic is
forgotten and the answer alone is kept; the client erases its key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.warm_start import WarmStart
from gswgan.data import ImageData
from gswgan.errors import FederationError
from gswgan.federated.critic_messages import Batch, pack_block
from gswgan.federated.critic_plan import answer_event
from gswgan.federated.trust import trust_of
from gswgan.generators.generator import Generator
from gswgan.plan.plan import Plan
from gswgan.privacy import BatchStreams, GaussianMechanism, Ledger, Streams
from gswgan.privacy.mechanism import GRID_BITS, announce, clip_to_grid
from gswgan.run.checkpoint import Checkpoint

CPU = torch.device("cpu")
ONLY = np.zeros(1, np.int64)
"""The one critic of a client's ensemble."""
CRITIC = "critic.safetensors"


def was_last(plan: Plan, batch: Batch) -> bool:
    """Whether the plan has no round after this one."""
    assert plan.privacy is not None
    return batch.number + 1 == plan.privacy.releases


def kept_answer(folder: Path, plan: Plan, batch: Batch) -> bytes | None:
    """The answer to this question, if it has been given; a FederationError where the client is past this round."""
    saved = Checkpoint(folder / CRITIC, plan.digest()).load()
    if saved is None or batch.number >= saved[0]:  # saved[0] rounds are behind this client
        return None
    known = saved[1]["answer"]
    if batch.number + 1 < saved[0]:
        raise FederationError("round", batch.number, f"a round after {saved[0] - 1}, the last one answered")
    if known["question"].numpy().tobytes() != batch.digest().encode():
        raise FederationError("round", batch.number, "the fakes that were answered for, or another round")
    return known["block"].numpy().tobytes()


class CriticAtClient:
    """D(.; theta_D^k) of one client under one plan: kept on the disk from round to round."""

    def __init__(self, folder: Path, plan: Plan, data: ImageData, ledger: Ledger, secret: Streams) -> None:
        self._plan, self._data, self._secret = plan, data, secret
        assert plan.privacy is not None
        self._mechanism = GaussianMechanism(
            contribution=plan.privacy.contribution, event=answer_event(plan), ledger=ledger, streams=secret
        )
        self._kept = Checkpoint(folder / CRITIC, plan.digest())
        self._warm = Checkpoint(folder / "warm_start.safetensors", plan.digest())
        self.failed: Callable[[Exception], None] = lambda wrong: None
        """Told of what the records, or the critic, could not do: the answer is zeros then."""

    def answer(self, batch: Batch) -> bytes:
        """n_dis updates on the own data, then M_{sigma,C} of the judged fakes' gradients; kept, then returned."""
        try:
            rows, state = self._judge(batch)
        except Exception as wrong:  # whether there is an answer must not depend on the records
            self.failed(wrong)
            rows, state = self._zeros(batch), {}
        block = self._sanitize(batch.number, rows)
        if was_last(self._plan, batch):
            state = {}
        kept = {"question": _as_tensor(batch.digest().encode()), "block": _as_tensor(block)}
        self._kept.save(batch.number + 1, {"critic": state, "answer": kept})
        if was_last(self._plan, batch):
            self._warm.remove()
        return block

    def _judge(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradients, not clipped yet, and the critic's state after its updates."""
        if not self._data.n:  # a client without records answers all the same
            return self._zeros(batch), {}
        saved = self._kept.load()
        state = {} if saved is None else saved[1].get("critic", {})  # none after a round in which it failed
        critic = self._critic()
        critic.prepare(self._data, resumed=bool(state))
        if state:
            critic.load_state(state)
        critic.learn(batch.number, cast(Generator, batch))
        return critic.input_gradients(ONLY, *batch.judged).flatten(2), critic.state()

    def _zeros(self, batch: Batch) -> Tensor:
        return torch.zeros(1, len(batch.judged[0]), self._plan.facts.pixels)

    def _sanitize(self, number: int, rows: Tensor) -> bytes:
        """Clip every row; record; with an untrusted server, add the noise. Nothing is sent here."""
        mechanism, name, bound = self._mechanism, f"step {number}", self._mechanism.contribution
        if trust_of(self._plan) == "trusted-aggregator":
            grid = clip_to_grid(rows, bound.clip_norm)[0].numpy()
            announce(name, grid, bound, mechanism.event, mechanism.ledger, self._secret)
            return pack_block(grid, self._plan)
        noisy = mechanism.answer(name, [(rows, None)], slots=rows.shape[1], width=rows.shape[2])
        return pack_block(np.rint(noisy.sums / (bound.clip_norm * 2.0**-GRID_BITS)).astype(np.int64), self._plan)

    def _critic(self) -> Ensemble:
        """An ensemble of one. Its initial weights are the client's own: hidden state, as its warm start is."""
        plan, facts = self._plan, self._plan.facts
        warm = WarmStart(
            iterations=plan.critic.ensemble_settings.warm_start,
            generator=plan.generator,
            learning_rate=plan.optimizer.learning_rate,
            betas=plan.optimizer.betas,
            store=self._warm,
        )
        return Ensemble(
            plan.critic.ensemble_settings,
            CriticShape(
                image_size=facts.image_size,
                channels=facts.channels,
                classes=facts.classes,
                width=plan.critic.ensemble_settings.width,
            ),
            self._mechanism,
            count=1,
            public=self._secret,
            batches=BatchStreams(self._secret),
            device=CPU,
            warm_start=warm if warm.iterations else None,
        )


def _as_tensor(raw: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy())
