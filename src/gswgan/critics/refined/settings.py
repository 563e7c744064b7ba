"""The settings of preset `refined`: of the kernel's start, the pre-training and DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from gswgan.critics.kernel_then_ensemble import KernelStart
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.privacy import Contribution
from gswgan.ranges import BELOW_ONE, MAX_STEPS, OMIT_DEFAULT, LearningRate, Range, Steps


@dataclass(frozen=True, kw_only=True)
class RefinedSettings(KernelStart):
    """All three stages; see also the plan's privacy."""

    start: GeneratorSettings  # the generator that the kernel critic trains
    start_optimizer: OptimizerSettings
    samples: Annotated[int, Range(16, 2**24)]  # of the start, which the denoiser is pre-trained on
    pretraining: Steps  # steps on samples
    pretraining_batch: Annotated[int, Range(16, 2**16)]  # samples in each of them
    pretraining_rate: LearningRate
    draws: Annotated[int, Range(1, 256)]  # of noise for each record, averaged before the clip
    level_mean: Annotated[float, Range(-10, 10)]  # of ln(noise level) for records; for samples see `draws.py`
    level_std: Annotated[float, Range(1e-3, 10)]
    scaling: Annotated[float, Range(0, 2)]  # of gradients, by second moments: generators/preconditioner.py
    averaging: Annotated[float, Range(1, 2**20)]  # step t of DP-SGD keeps t / (t + averaging) of the averaged weights
    person_clip: Annotated[float | None, Range(1e-9, 1e9)] = field(
        default=None, metadata=OMIT_DEFAULT
    )  # of a person's class sums in the kernel's release, where persons are protected
    public_steps: Annotated[int, Range(0, MAX_STEPS)] = field(
        default=0, metadata=OMIT_DEFAULT
    )  # before those on samples
    public_share: Annotated[float, Range(0, BELOW_ONE)] = field(default=0.0, metadata=OMIT_DEFAULT)  # of their batches
    local_steps: Annotated[int | None, Range(1, MAX_STEPS)] = field(default=None, metadata=OMIT_DEFAULT)  # in a round

    def contribution(self, labelled: bool) -> Contribution:
        """Return a record's contribution to the kernel's release, or a person's: class sums with counts, clipped."""
        return super().contribution(labelled) if self.person_clip is None else Contribution(clip_norm=self.person_clip)
