"""A step of DP-SGD on the records that are here: the same in centralized training and at a site of a federation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gswgan.critics.refined.records import HeldRecords
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.generators.scaled_descent import ScaledDescent
from gswgan.privacy.randomness import BatchStreams

CONSTANT = 0.6
"""Part of the steps of DP-SGD with the full learning rate; it falls to 0 in a line in those that follow."""


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """The planned steps: how many, and how far each of them goes."""

    settings: RefinedSettings
    optimizer: OptimizerSettings
    releases: int

    def step(
        self, step: int, records: HeldRecords, descent: ScaledDescent, batches: BatchStreams, *, farther: float = 1.0
    ) -> None:
        """Step number `step` of all: one release, and the way that it shows, `farther` times the learning rate."""
        gradient = records.answer(step, batches)
        left = min(1.0, (1 - step / self.releases) / (1 - CONSTANT))
        rate = number(self.optimizer.learning_rate * left * farther, records.device)
        descent.step(gradient, rate, step=step)

    def kept(self, step: int) -> float:
        """What the averaged weights keep of themselves after a step."""
        return step / (step + self.settings.averaging)


def number(value: float, device: torch.device) -> Tensor:
    """A tensor of it, on the device."""
    return torch.tensor(value, dtype=torch.float32).to(device)
