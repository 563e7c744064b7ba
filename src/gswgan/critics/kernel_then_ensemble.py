"""The kernel critic for the first steps, with a part of the budget, and the ensemble for the others.

Where each of many critics has few records, their noisy gradients are mostly noise, and most steps would be spent on
what one answer of the kernel critic provides (docs/methods.md). After `steps` steps the ensemble takes over: first all
critics learn against the generator of that moment, which stays private and costs nothing, then as in any ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble.distributed import DistributedEnsemble
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.features import KernelSettings
from gswgan.data import ImageData
from gswgan.generators.generator import Generator
from gswgan.privacy import Contribution, Gaussian
from gswgan.privacy.events import Neighbours
from gswgan.ranges import Range, Steps


@dataclass(frozen=True, kw_only=True)
class KernelStart:
    """Settings of the first steps with the kernel critic. `noise_std` and the features are part of the guarantee."""

    kernel: KernelSettings
    noise_std: float  # of the kernel's one answer
    steps: Steps  # with the kernel critic

    def contribution(self, labelled: bool) -> Contribution:
        """Return a record's contribution: features of norm 1, and a count where there are classes."""
        return Contribution(clip_norm=1.0, counts=labelled)

    def event(self, labelled: bool, neighbours: Neighbours = "replace-one") -> Gaussian:
        """Return the event of the kernel's one answer."""
        sensitivity = self.contribution(labelled).sensitivity(neighbours)
        return Gaussian(noise_std=self.noise_std, sensitivity=sensitivity, neighbours=neighbours)


@dataclass(frozen=True, kw_only=True)
class KernelThenEnsembleSettings(KernelStart):
    """Settings of both critics; the ensemble's noise is in the plan's privacy settings."""

    catch_up: Annotated[int, Range(0, 10_000)]  # times n_dis updates of every critic before its first step
    ensemble: EnsembleSettings


class KernelThenEnsemble(Critic):
    """Passes each call to the kernel critic in the first steps and to the ensemble in the others."""

    def __init__(
        self, settings: KernelThenEnsembleSettings, kernel: KernelCritic, ensemble: Ensemble | DistributedEnsemble
    ) -> None:
        self.settings, self.kernel, self.ensemble = settings, kernel, ensemble
        self._now: KernelCritic | Ensemble | DistributedEnsemble = kernel

    @property
    def can_be_captured(self) -> bool:
        """As the critic of the current step."""
        return self._now.can_be_captured

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Prepare both critics."""
        self.kernel.prepare(data, resumed=resumed)
        self.ensemble.prepare(data, resumed=resumed)

    def learn(self, step: int, generator: Generator) -> None:
        """Choose the critic of this step and let it learn; all critics of the ensemble catch up in their first step."""
        self._now = self.kernel if step < self.settings.steps else self.ensemble
        if self._now is self.ensemble:
            generator.label_set = np.arange(self.ensemble.shape.classes)  # the kernel critic leaves rare classes out
            if step == self.settings.steps:
                self.ensemble.catch_up(self.settings.catch_up, generator)
            step -= self.settings.steps
        self._now.learn(step, generator)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of the critic of this step."""
        return self._now.upstream_gradient(fake, labels)

    def metrics(self) -> dict[str, Any]:
        """Return the figures of the critic of this step."""
        return self._now.metrics()

    def state(self) -> dict[str, Tensor]:
        """Return the state of both; an ensemble that has not begun is left out, since it is drawn again."""
        parts = {"kernel": self.kernel.state()}
        if self._now is self.ensemble:
            parts["ensemble"] = self.ensemble.state()
        return {f"{part}|{name}": value for part, state in parts.items() for name, value in state.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, name = key.split("|", 1)
            parts.setdefault(part, {})[name] = value
        self.kernel.load_state(parts["kernel"])
        if "ensemble" in parts:
            self.ensemble.load_state(parts["ensemble"])
