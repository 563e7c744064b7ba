"""An ensemble that does not start from nothing: the kernel critic leads first, with a part of the budget.

Where records are few for so many critics, a gradient of theirs is mostly noise, and most steps would go into what
one release of the kernel critic gives at once (docs/methods.md). After `steps` steps the critics take over: all of
them first learn against the generator as it is then, which stays with them and costs nothing, and then as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class KernelStart:
    """A run that the kernel critic starts. `noise_std` and the kernel's features are part of the guarantee."""

    kernel: KernelSettings
    noise_std: float  # of the kernel's one release
    steps: int  # with the kernel critic

    def contribution(self, labelled: bool) -> Contribution:
        """What a record adds to the kernel's release: features of norm 1, and a count where there are classes."""
        return Contribution(clip_norm=1.0, counts=labelled)

    def event(self, labelled: bool) -> Gaussian:
        """The kernel's release."""
        return Gaussian(noise_std=self.noise_std, sensitivity=self.contribution(labelled).sensitivity("replace-one"))


@dataclass(frozen=True, kw_only=True)
class KernelThenEnsembleSettings(KernelStart):
    """Both critics; see also the plan's privacy."""

    catch_up: int  # times n_dis updates of every critic before it is first asked
    ensemble: EnsembleSettings


class KernelThenEnsemble(Critic):
    """The kernel critic for the first steps, the ensemble for those that follow."""

    def __init__(
        self, settings: KernelThenEnsembleSettings, kernel: KernelCritic, ensemble: Ensemble | DistributedEnsemble
    ) -> None:
        self.settings, self.kernel, self.ensemble = settings, kernel, ensemble
        self._now: KernelCritic | Ensemble | DistributedEnsemble = kernel

    @property
    def can_be_captured(self) -> bool:
        """As the critic whose turn it is."""
        return self._now.can_be_captured

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """The kernel's release and the ensemble's shards."""
        self.kernel.prepare(data, resumed=resumed)
        self.ensemble.prepare(data, resumed=resumed)

    def learn(self, step: int, generator: Generator) -> None:
        """Whose turn it is; on their first turn, all critics catch up."""
        self._now = self.kernel if step < self.settings.steps else self.ensemble
        if self._now is self.ensemble:
            generator.label_set = np.arange(self.ensemble.shape.classes)  # the kernel leaves rare ones out
            if step == self.settings.steps:
                self.ensemble.catch_up(self.settings.catch_up, generator)
            step -= self.settings.steps
        self._now.learn(step, generator)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Post-processing of the kernel's release, or a release of the ensemble."""
        return self._now.upstream_gradient(fake, labels)

    def metrics(self) -> dict[str, Any]:
        """Of the critic whose turn it is."""
        return self._now.metrics()

    def state(self) -> dict[str, Tensor]:
        """Both. Critics that have not begun are not worth keeping: they are drawn anew."""
        parts = {"kernel": self.kernel.state()}
        if self._now is self.ensemble:
            parts["ensemble"] = self.ensemble.state()
        return {f"{part}|{name}": value for part, state in parts.items() for name, value in state.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, name = key.split("|", 1)
            parts.setdefault(part, {})[name] = value
        self.kernel.load_state(parts["kernel"])
        if "ensemble" in parts:
            self.ensemble.load_state(parts["ensemble"])
