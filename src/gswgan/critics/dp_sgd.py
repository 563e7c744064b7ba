"""DP-SGD (Abadi et al. 2016): noisy sums of clipped gradients of the records that take part.

All training of networks on records (preset `refined`, DP-SGD GAN, the auto-encoder of DP-MERF AE) uses this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gswgan.critics.ensemble.ensemble import Mechanism
from gswgan.critics.kernel.features import products
from gswgan.critics.one_thread import each_in_one_thread
from gswgan.errors import PlanError, PrivacyError
from gswgan.generators.cuda_graphs import Captured
from gswgan.privacy import Contribution, Gaussian, Sampled
from gswgan.privacy.mechanism import Block
from gswgan.privacy.participation import expected_participants, usual_participants

NUMBERS_PER_CHUNK = {"cpu": 2**24, "cuda": 2**27}
"""The largest number of values in the gradients of a chunk of records, by device: bounds memory."""

LANES = 32
"""Chunks are multiples of it: a CPU computes exp for 32 numbers at once, and rounds the remaining ones differently."""


def update_event(*, clip_norm: float, noise_multiplier: float, batch: int, records: int) -> Sampled:
    """Return the event of one update with `batch` expected records, each with one gradient of norm clip_norm."""
    if not 1 <= batch <= records:
        raise PlanError("learning_batch", batch, f"a number from 1 to {records}, the records")
    sensitivity = Contribution(clip_norm=clip_norm).sensitivity("replace-one")
    gaussian = Gaussian(noise_std=noise_multiplier * clip_norm, sensitivity=sensitivity)
    return Sampled(rate=batch / records, event=gaussian)


class RecordGradients:
    """Gradients of single records in all parameters of a network, and noisy sums of them."""

    def __init__(
        self, network: nn.Module, mechanism: Mechanism, *, held: range | None = None, at_once: bool = False
    ) -> None:
        """`mechanism` draws who takes part, clips the gradients and adds the noise.

        `at_once`: whether a CPU may compute several chunks at once. `rows` below cannot: it exchanges the network's
        parameters.

        `held`: the records that are here, where the others are in other processes.
        """
        if not isinstance(mechanism.event, Sampled) or mechanism.contribution.rows != 1:
            found = (mechanism.event, mechanism.contribution)
            raise PrivacyError("mechanism", found, "a sampled sum of one clipped gradient per record")
        self.network, self.mechanism, self.clip = network, mechanism, mechanism.contribution.clip_norm
        self.held, self.at_once = held, at_once
        self.width = sum(parameter.numel() for parameter in network.parameters())
        self.norms: list[Tensor] = []
        self.records, self.expected, self.chunk, self.participants = 0, 0.0, 1, 0
        self._recorded: dict[Callable[..., Tensor], Captured] = {}  # by loss

    def prepare(self, records: int, *, numbers_per_chunk: int | None = None) -> None:
        """Fix the size of all chunks, so that a record's gradient never depends on who else takes part.

        `numbers_per_chunk` replaces NUMBERS_PER_CHUNK where it is given.
        """
        self.records, self.expected = records, expected_participants(self.mechanism.event, records)
        usual = usual_participants(self.mechanism.event, records)
        most = numbers_per_chunk or NUMBERS_PER_CHUNK[next(self.network.parameters()).device.type]
        self.chunk = LANES * math.ceil(usual / math.ceil(usual * self.width / most) / LANES)

    def draw(self, name: str) -> np.ndarray:
        """Draw who takes part in the query of this name: each record by its own secret coin."""
        return self.mechanism.participants(name, self.records)

    def rows(self, loss: Callable[..., Tensor], *examples: Tensor) -> Tensor:
        """Return the gradient of each example's own loss in all parameters, [n, P], not clipped.

        `loss` is a function of the network's output for one example and of the example: both as a batch of one. On a
        GPU the work is recorded by loss, so a loss is the same function in every call.
        """
        if loss not in self._recorded:
            self._recorded[loss] = Captured(lambda *examples: self._rows(loss, *examples))
        found = self._recorded[loss](*examples)
        assert found is not None
        return found

    def _rows(self, loss: Callable[..., Tensor], *examples: Tensor) -> Tensor:
        parameters = {name: value.detach() for name, value in self.network.named_parameters()}

        def one(parameters: dict[str, Tensor], *example: Tensor) -> Tensor:
            batch = tuple(part[None] for part in example)
            (found,) = loss(functional_call(self.network, parameters, batch), *batch)
            return found

        with products(tf32=True):  # whatever a row is, the mechanism clips it in float64
            found = vmap(grad(one), in_dims=(None, *(0 for _ in examples)))(parameters, *examples)
        return torch.cat([found[name].flatten(1) for name in parameters], dim=1)

    def blocks(self, members: np.ndarray, rows: Callable[[np.ndarray], Tensor]) -> Iterator[Block]:
        """Yield the members' rows in chunks of one size; the last chunk is padded with copies, which are dropped."""
        parts = [members[start : start + self.chunk] for start in range(0, len(members), self.chunk)]
        full, device = (np.resize(some, self.chunk) for some in parts), next(self.network.parameters()).device
        for some, whole in zip(parts, each_in_one_thread(rows, full, device, at_once=self.at_once)):
            found = whole[: len(some)]
            self.norms.append(found.norm(dim=1))
            yield found[:, None], None

    def answer(self, name: str, rows: Callable[[np.ndarray], Tensor]) -> Tensor:
        """Return (sum clip(g) + noise) / (q n) over the participants, [P]: the only value that leaves."""
        members = self.draw(name)
        if self.held is not None:
            members = members[(members >= self.held.start) & (members < self.held.stop)]
        self.participants, self.norms = len(members), []
        answer = self.mechanism.answer(name, self.blocks(members, rows), slots=1, width=self.width)
        device = next(self.network.parameters()).device
        return torch.from_numpy((answer.sums[0] / self.expected).astype(np.float32)).to(device)


def descend(adam: torch.optim.Optimizer, network: nn.Module, gradient: Tensor) -> None:
    """Make one step of the optimizer with the gradient of all parameters, [P]."""
    parameters = list(network.parameters())
    for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters])):
        parameter.grad = part.view_as(parameter)
    adam.step()
