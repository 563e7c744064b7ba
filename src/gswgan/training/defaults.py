"""Settings that follow from public facts: nobody should have to tune on private data.

What touches the release (length scales, features, shards, rate, steps, batch of the ensemble) depends on the facts
alone. The device changes nothing that the guarantee depends on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gswgan.critics.ensemble import EnsembleSettings
from gswgan.critics.kernel import KernelSettings
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


LOUD = 0.03
"""Above this noise on a class's score (its range is 1) a longer length scale and a shorter training serve better."""


def length_scale(facts: Facts, *, loud: bool) -> float:
    """A length scale for images of this shape: 1.5 at 8x8, 4 at 28x28, which served digits and clothes alike."""
    return round(0.295 * facts.image_size**0.782 * math.sqrt(facts.channels) * (4 / 3 if loud else 1), 2)


def score_noise(facts: Facts, noise_std: float) -> float:
    """Noise on a class's score in units of its range, for classes of equal size: what more data buys."""
    if facts.persons is None:
        return noise_std * facts.classes / facts.records
    return noise_std * facts.classes / facts.persons


def kernel_defaults(facts: Facts, noise_std: float, device: str) -> Defaults:
    """The kernel critic: features and length scale by the shape and the noise; generator and steps by the device."""
    tiny, fast = facts.image_size <= TINY, device.startswith("cuda")
    loud = score_noise(facts, noise_std) > LOUD
    critic = KernelSettings(features=4096 if tiny else 16384, length_scales=(length_scale(facts, loud=loud),))
    if tiny:
        generator = GeneratorSettings(architecture="mlp", width=256)
        optimizer = OptimizerSettings(learning_rate=3e-3, warm_up=50, decay=True)
        training = TrainingSettings(steps=3000, batch_size=min(1000, max(200, 20 * facts.classes)))
    elif fast:
        generator = GeneratorSettings(architecture="resnet", width=64)
        optimizer = OptimizerSettings(learning_rate=1e-3, warm_up=100, decay=True)
        batch = min(2000, max(500, 100 * facts.classes))
        training = TrainingSettings(steps=5000, batch_size=batch, mixed_precision=True)
    else:
        generator = GeneratorSettings(architecture="dcgan", width=16)
        optimizer = OptimizerSettings(learning_rate=2e-3, warm_up=100, decay=True)
        batch = min(1000, max(250, 25 * facts.classes))
        training = TrainingSettings(steps=3500, batch_size=batch, feature_blocks=4)
    if loud:  # long training would fit the noise
        optimizer = replace(optimizer, learning_rate=optimizer.learning_rate / 3)
        training = replace(training, steps=training.steps // 5)
    return Defaults(critic=critic, generator=generator, optimizer=optimizer, training=training)


@dataclass(frozen=True, kw_only=True)
class EnsembleRelease:
    """The privacy settings of an ensemble that follow from the facts."""

    shards: int
    rate: float
    releases: int
    rows: int


def ensemble_release(facts: Facts) -> EnsembleRelease:
    """How the data is cut and how often it is asked, by the number of records (or persons) alone.

    More shards mean less noise and worse critics: 60 records a shard served 60,000, 6 served 1,400. Where critics
    are few, all of them take part: the noise on their mean is the same, and they learn more.
    """
    units = facts.persons or facts.records
    size = max(2, round(60 * (units / 60_000) ** 0.617))
    shards = max(1, min(2000, units // size))
    few = shards <= 256
    return EnsembleRelease(shards=shards, rate=1.0 if few else 0.1, releases=100 if few else 1000, rows=64)


def ensemble_defaults(facts: Facts, device: str) -> Defaults:
    """The ensemble: small critics and a small latent code for tiny images, the paper's kind for larger ones."""
    release, fast = ensemble_release(facts), device.startswith("cuda")
    if facts.image_size <= TINY:
        critic = EnsembleSettings(width=4, updates=4, learning_batch=8, learning_rate=3e-3)
        generator = GeneratorSettings(architecture="mlp", width=256, latent=2)
        optimizer = OptimizerSettings(learning_rate=2e-3, betas=(0.5, 0.9), decay=True, average=0.95)
    else:
        critic = EnsembleSettings(
            width=32,
            learning_batch=64,
            learning_rate=5e-4,
            betas=(0.9, 0.99),
            precision="bfloat16" if fast else "float32",
        )
        generator = GeneratorSettings(architecture="resnet", width=128 if fast else 32)
        optimizer = OptimizerSettings(learning_rate=5e-4, betas=(0.9, 0.99), average=0.995)
    training = TrainingSettings(steps=release.releases, batch_size=release.rows, mixed_precision=fast)
    return Defaults(critic=critic, generator=generator, optimizer=optimizer, training=training)
