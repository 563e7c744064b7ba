"""Teachers for G-PATE and PATE-GAN: discriminators on disjoint shards, the ensemble's critics without its release.

A record is in one shard and a shard has one teacher, so between neighbours (one record replaced) one teacher
differs: PATE's argument (Papernot et al. 2017). All teachers take part in every step; there is no sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble import Ensemble
from gswgan.critics.learners import EnsembleSettings
from gswgan.critics.network import Buffers, CriticShape, Parameters
from gswgan.errors import RunError
from gswgan.privacy import GaussianMechanism, Streams
from gswgan.training.gs_wgan_plan import check_shards
from gswgan.training.method import Wish
from gswgan.training.plan import Plan


class Teachers(Ensemble):
    """K teachers, each of which has seen its own shard and public fakes. Nothing leaves but by a mechanism of votes."""

    def __init__(
        self,
        settings: EnsembleSettings,
        shape: CriticShape,
        *,
        count: int,
        public: Streams,
        secret: Streams,
        device: torch.device,
    ) -> None:
        no_mechanism = cast(GaussianMechanism, None)  # only `upstream_gradient` would need one
        super().__init__(
            settings, shape, no_mechanism, count=count, sampling="all", rate=1.0, public=public, secret=secret,
            device=device,
        )  # fmt: skip

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> NoReturn:
        """Teachers vote; their gradients are not released."""
        raise RunError("upstream_gradient", "of teachers", "votes through a VoteMechanism")

    @torch.no_grad()
    def ask(self, question: Callable[[Parameters, Buffers], Tensor]) -> Tensor:
        """Every teacher's answer, [K, ...] in the order of the shards: private."""
        answers = []
        for start in range(0, self.count, self.chunk):
            some = self.critics.copy(np.arange(start, min(start + self.chunk, self.count)))
            answers.append(question(some.params, some.buffers))
        return torch.cat(answers)


def number_of_teachers(wish: Wish, *, most: int) -> int:
    """As asked for, or by the number of records (or persons): 30 each of 60,000, 3 of 1,400, and at the most `most`.

    Fewer records would have too few teachers otherwise for any noise: the rule of `ensemble_release`.
    """
    units = wish.facts.persons or wish.facts.records
    size = max(2, round(30 * (units / 60_000) ** 0.617))
    return max(1, min(most, units // size)) if wish.shards is None else wish.shards


def check_teachers(plan: Plan) -> None:
    """Each teacher has a shard of its own."""
    check_shards(plan.facts, plan.critic.teachers)
