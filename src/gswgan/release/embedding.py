"""What the embedding of a release must be like: which plans have one, its noise, and the values that it can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from gswgan.critics.kernel.embedding import Embedding, count_weight
from gswgan.critics.kernel.encoder import encoder_shapes
from gswgan.federated.silo_statement import noise_of_sum
from gswgan.plan.plan import Plan
from gswgan.privacy.mechanism import GRID_BITS

TAIL = 17.0
"""No draw of the noise is further out, in standard deviations: its tail probability has 192 bits."""

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, kw_only=True)
class ExpectedEmbedding:
    """The embedding that a plan releases."""

    classes: int
    features: int
    step: float  # of the grid of the sums
    weight: float  # of a count in the sums; 0 where the only count is the public number of records
    noise: tuple[float, float]  # of sums and of counts
    most: float  # the largest size of a number in a noisy sum
    records: int
    names_classes: bool  # whether the generator makes just the classes that its counts tell from the noise

    @property
    def shapes(self) -> Shapes:
        """Of every tensor, with its type."""
        shapes = {"sums": (self.classes, self.features), "counts": (self.classes,), "noise": (2,)}
        return {name: (shape, torch.float64) for name, shape in shapes.items()}

    def holds(self, embedding: Embedding) -> bool:
        """Whether all values can have come out of the mechanism: on its grid to the last bit, and not too large."""
        sums, counts = embedding.sums.numpy(), embedding.counts.numpy()
        if not self.weight:
            return self._on_grid(sums, 1.0) and counts.tolist() == [float(self.records)]
        return self._on_grid(sums, 1.0) and self._on_grid(counts, self.weight)

    def _on_grid(self, values: np.ndarray, weight: float) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):  # what is so far off is not on the grid
            whole = np.rint(values * weight / self.step) * self.step
            return bool(np.array_equal(whole / weight, values) and (np.abs(whole) <= self.most).all())


def expected_encoder(plan: Plan) -> Shapes | None:
    """The tensors of the encoder that the plan's features were made with; None where they have none."""
    if plan.public is None and not plan.critic.network_statement():
        return None
    kernel = plan.critic.kernel_settings
    shapes = encoder_shapes(kernel, plan.facts.channels) if kernel.has_encoder else {}
    return {name: (shape, torch.float32) for name, shape in shapes.items()} or None


def expected_embedding(plan: Plan, answers: int | None = None) -> ExpectedEmbedding | None:
    """What the plan's embedding is like; None where it releases none that is kept. `answers`: of so many silos."""
    facts, released = plan.facts, plan.critic.released_embedding(plan)
    if released is None:
        return None
    clip, noise, persons = released.clip_norm, released.noise_std, facts.persons
    by_clients = plan.privacy is not None and plan.privacy.observer == "server"
    draws = persons or 1 if by_clients else 1  # each client added noise of its own
    if facts.silos is not None:
        noise, draws = noise_of_sum(plan, answers), len(facts.silos.sites) if by_clients else 1
    if persons is not None:
        weight = count_weight(persons, facts.classes, released.noise_std / clip)
    else:
        weight = clip if facts.labelled else 0.0
    return ExpectedEmbedding(
        classes=facts.classes, features=released.features, step=clip * 2.0**-GRID_BITS, weight=weight,
        noise=(noise, noise / weight if weight else 0.0),
        most=(persons or facts.records) * clip + TAIL * noise * math.sqrt(draws),
        records=facts.records, names_classes=not released.all_classes,
    )  # fmt: skip
