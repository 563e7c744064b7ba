"""Settings that follow from public facts: nobody should have to tune on private data.

What touches the release (length scales, features, shards, rate, steps, batch of the ensemble) depends on the facts
alone. The device changes only what happens after the release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gswgan.critics.ensemble import EnsembleSettings
from gswgan.critics.kernel import KernelSettings
from gswgan.critics.student import StudentSettings
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.training.plan import Facts, TrainingSettings

TINY = 12
"""Images up to this side get a fully connected generator."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """All settings of a run that are not privacy settings."""

    critic: KernelSettings | EnsembleSettings
    generator: GeneratorSettings
    optimizer: OptimizerSettings
    training: TrainingSettings
    student: StudentSettings | None = None


def length_scale(facts: Facts) -> float:
    """A length scale for images of this shape: 1.5 at 8x8, 4 at 28x28, which served digits and clothes alike."""
    return round(0.295 * facts.image_size**0.782 * math.sqrt(facts.channels), 2)


def kernel_defaults(facts: Facts, device: str) -> Defaults:
    """The kernel critic: features and length scale by the shape; generator and steps by the device."""
    tiny = facts.image_size <= TINY
    critic = KernelSettings(features=2048 if tiny else 16384, length_scales=(length_scale(facts),))
    fast = device.startswith("cuda")
    per_class = 40 if not fast else 100
    batch = min(2000, max(200, per_class * facts.classes))
    if tiny:
        generator = GeneratorSettings(architecture="mlp", width=256)
        optimizer = OptimizerSettings(learning_rate=2e-3, warm_up=50, decay=True, average=0.99)
        training = TrainingSettings(steps=1500, batch_size=batch)
    elif fast:
        generator = GeneratorSettings(architecture="resnet", width=64)
        optimizer = OptimizerSettings(learning_rate=1e-3, warm_up=100, decay=True, average=0.99)
        training = TrainingSettings(steps=5000, batch_size=batch, mixed_precision=True)
    else:
        generator = GeneratorSettings(architecture="dcgan", width=16)
        optimizer = OptimizerSettings(learning_rate=2e-3, warm_up=50, decay=True, average=0.99)
        training = TrainingSettings(steps=2200, batch_size=batch)
    return Defaults(critic=critic, generator=generator, optimizer=optimizer, training=training)


@dataclass(frozen=True, kw_only=True)
class EnsembleRelease:
    """The privacy settings of an ensemble that follow from the facts."""

    shards: int
    rate: float
    releases: int
    rows: int


def ensemble_release(facts: Facts) -> EnsembleRelease:
    """How the data is cut and how often it is asked, by the number of records (or persons) alone."""
    units = facts.persons or facts.records
    shards = max(1, min(2000, units // (60 if units >= 20000 else 6)))
    small = units < 20000
    return EnsembleRelease(shards=shards, rate=0.1, releases=400 if small else 1000, rows=32 if small else 64)


def ensemble_defaults(facts: Facts, device: str) -> Defaults:
    """The ensemble: small critics for small images; a public student where little data makes the noise large."""
    tiny = facts.image_size <= TINY
    fast = device.startswith("cuda")
    release = ensemble_release(facts)
    critic = EnsembleSettings(
        width=8 if tiny else 32,
        learning_batch=16 if tiny else 64,
        learning_rate=1e-3 if tiny else 5e-4,
        betas=(0.5, 0.9) if tiny else (0.9, 0.99),
        precision="bfloat16" if fast else "float32",
    )
    if tiny:
        generator = GeneratorSettings(architecture="mlp", width=256)
    else:
        generator = GeneratorSettings(architecture="resnet", width=128 if fast else 32)
    student = StudentSettings() if tiny else None
    optimizer = OptimizerSettings(
        learning_rate=1e-3 if tiny else 5e-4, betas=(0.5, 0.9) if tiny else (0.9, 0.99), decay=tiny, average=0.995
    )
    training = TrainingSettings(
        steps=release.releases,
        batch_size=release.rows,
        generator_updates=5 if student else 1,
        mixed_precision=fast,
    )
    return Defaults(critic=critic, generator=generator, optimizer=optimizer, training=training, student=student)
