"""Settings that follow from public facts: nobody should have to tune on private data.

What touches the release (length scales, features, critics, rate, steps, batch of the ensemble) depends on the facts
alone. The device changes nothing that the guarantee depends on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.features import KernelSettings, PublicNetwork, pooled_side
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.plan.facts import Facts, PublicFacts
from gswgan.plan.plan import PrivacySettings, TrainingSettings

C = TypeVar("C", KernelSettings, EnsembleSettings)

TINY = 12
"""Images up to this side get a fully connected generator."""


LARGEST_SIDE = 32
"""Grey images up to this side are near what the kernel critic's pixel features were measured on (8x8 and 28x28)."""


def pooled(facts: Facts) -> int:
    """Pixels along a side that are averaged before the kernel critic sees them: it sees 24 to 47 a side at the most.

    Otherwise the noise in a fake's gradient, the memory and the time of a step would grow with the pixels, and what the
    kernel critic teaches is coarse in any case.
    """
    return max(1, round(facts.image_size / LARGEST_SIDE))


def seen_side(facts: Facts) -> int:
    """The side of what it sees."""
    return pooled_side(facts.image_size, pooled(facts))


def beyond_pixels(facts: Facts) -> bool:
    """Whether the images are unlike all that pixel features were measured on. A judgement, not a bound."""
    return facts.channels > 1 or facts.image_size > LARGEST_SIDE


@dataclass(frozen=True, kw_only=True)
class Defaults(Generic[C]):
    """All settings of a run that are not privacy settings."""

    critic: C
    generator: GeneratorSettings
    optimizer: OptimizerSettings
    training: TrainingSettings


# What the recipe depends on is the noise in a fake's gradient (docs/methods.md): 0.0077 for MNIST and Fashion-MNIST at
# epsilon 10, 0.057 at epsilon 1, 0.47 at epsilon 0.1; 0.09 for digits at epsilon 10.
QUIET = 0.008
"""Up to this noise nothing is held back: the noise is not what limits the images."""

LOUD = 0.3
"""Above this noise a long training would fit it."""

LONGEST_MEMORY = 0.99
"""A longer one lags behind the generator."""


def score_noise(facts: Facts, noise_std: float) -> float:
    """Noise on a class's score in units of its range, for classes of equal size: what more data buys."""
    if facts.persons is None:
        return noise_std * facts.classes / facts.records
    return noise_std * facts.classes / facts.persons


def sum_noise(facts: Facts, privacy: PrivacySettings) -> float:
    """Standard deviation of the noise in the sum over all: added once, or by each client or site of its own."""
    draws = (facts.persons or 1) if facts.silos is None else len(facts.silos.sites)
    return privacy.noise_std * (math.sqrt(draws) if privacy.observer == "server" else 1.0)


def gradient_noise(facts: Facts, noise_std: float) -> float:
    """Length of the noise in a fake's gradient, over the longest gradient without noise (docs/methods.md)."""
    return math.sqrt(math.e * facts.channels) * seen_side(facts) * score_noise(facts, noise_std)


def length_scale(facts: Facts, noise: float) -> float:
    """For images of this shape: a seventh of the side, 4 at 28x28; longer where there is noise to be averaged over."""
    longer = max(1.0, noise / (8 * QUIET)) ** 0.25
    return round(seen_side(facts) / 7 * math.sqrt(facts.channels) * longer, 2)


def memory(features: int, score: float, fakes: float) -> float:
    """How much the fakes' mean embedding keeps of itself, for so many fakes of a class in a step.

    The released embedding is off by features x (noise on a score)^2, squared. The mean of m fakes is off by 1 / m; it
    need not be better than a quarter of that, and a better one would only help to fit the noise.
    """
    enough = 4 / (features * score**2)
    return round(min(LONGEST_MEMORY, max(0.0, (enough - fakes) / (enough + fakes))), 4)


def smoothing(facts: Facts, noise: float) -> float:
    """Pixels to smooth the answers over: none where it is quiet, 0.7 at 28x28 at epsilon 1, 1.5 at epsilon 0.1."""
    return round(0.03 * facts.image_size * math.log10(max(1.0, noise / QUIET)), 2)


COLOUR_LAYERS = (32, 64, 128)
"""Of the untrained network that half of the features of colour images are behind (docs/methods.md)."""


def with_network(
    critic: KernelSettings, facts: Facts, device: str, public: PublicFacts | None, public_features: PublicNetwork
) -> KernelSettings:
    """The same features, half of them behind a network: the best there is of public images, else untrained in colour.

    On public images it is trained for as long as there is time.
    """
    if public_features:
        return replace(critic, public_network=public_features)
    if public is None:
        return replace(critic, convolutions=COLOUR_LAYERS) if facts.channels > 1 else critic
    if facts.image_size <= TINY:
        return replace(critic, convolutions=(32, 64), encoder_steps=400, encoder_batch=128)
    if device.startswith("cuda"):
        return replace(critic, convolutions=(64, 128, 256), encoder_steps=4000, encoder_batch=512)
    return replace(critic, convolutions=(32, 64, 128), encoder_steps=600, encoder_batch=128)


def kernel_defaults(
    facts: Facts,
    noise_std: float,
    device: str,
    *,
    public: PublicFacts | None = None,
    public_features: PublicNetwork = "",
) -> Defaults[KernelSettings]:
    """The kernel critic: features and length scale by the shape and the noise; generator and steps by the device.

    `public`: images that an encoder of the features is trained on. `public_features`: a network that others trained.
    """
    tiny, fast = facts.image_size <= TINY, device.startswith("cuda")
    noise = gradient_noise(facts, noise_std)
    scale = length_scale(facts, noise)
    batch, small = min(2000, max(200, 20 * facts.classes)), min(2000, max(100, 4 * facts.classes))
    if tiny:
        critic = KernelSettings(features=4096, length_scales=(scale,))
        generator = GeneratorSettings(architecture="mlp", width=256)
        optimizer = OptimizerSettings(learning_rate=3e-3, warm_up=50, decay=True)
        training = TrainingSettings(steps=3000, batch_size=batch)
    elif noise < 2 * QUIET:
        window = round(seen_side(facts) / 7, 2)  # half of the features compare neighbourhoods
        critic = KernelSettings(features=32768, length_scales=(scale, scale / 2), windows=(0.0, window))
        if fast:
            generator = GeneratorSettings(architecture="smooth-resnet", width=64)
            optimizer = OptimizerSettings(learning_rate=1e-3, warm_up=100, decay=True, average=0.998)
            training = TrainingSettings(steps=9000, batch_size=batch, mixed_precision=True)
        else:
            generator = GeneratorSettings(architecture="dcgan", width=16)
            optimizer = OptimizerSettings(learning_rate=2e-3, warm_up=100, decay=True, average=0.998)
            training = TrainingSettings(steps=10_000, batch_size=small, feature_blocks=8)
    else:
        critic = KernelSettings(features=16384, length_scales=(scale,))
        generator = GeneratorSettings(architecture="smooth-resnet", width=64 if fast else 16, latent=20)
        optimizer = OptimizerSettings(learning_rate=1e-3 if fast else 2e-3, warm_up=100, decay=True)
        if fast:
            training = TrainingSettings(steps=5000, batch_size=batch, mixed_precision=True)
        else:
            training = TrainingSettings(steps=4000, batch_size=small, feature_blocks=4)
    kept = 0.95 if tiny else memory(critic.features, score_noise(facts, noise_std), training.batch_size / facts.classes)
    training = replace(training, memory=kept, smoothing=smoothing(facts, noise))
    if noise > LOUD:
        optimizer = replace(optimizer, learning_rate=optimizer.learning_rate / 3)
        training = replace(training, steps=training.steps // 2, memory=0.0)
    critic = replace(critic, pooled=pooled(facts))
    critic = with_network(critic, facts, device, public, public_features)
    return Defaults(critic=critic, generator=generator, optimizer=optimizer, training=training)


@dataclass(frozen=True, kw_only=True)
class EnsembleRelease:
    """The privacy settings of an ensemble that follow from the facts."""

    critics: int
    rate: float
    releases: int
    rows: int


def ensemble_release(facts: Facts) -> EnsembleRelease:
    """How the data is cut and how often it is asked, by the number of records (or persons) alone.

    More critics mean less noise and worse critics: 60 records per critic served 60,000, 6 served 1,400. Where critics
    are few, all of them take part: the noise on their mean is the same, and they learn more.
    """
    units = facts.persons or facts.records
    size = max(2, round(60 * (units / 60_000) ** 0.617))
    critics = max(1, min(2000, units // size))
    few = critics <= 256
    return EnsembleRelease(critics=critics, rate=1.0 if few else 0.1, releases=100 if few else 1000, rows=64)


def ensemble_defaults(facts: Facts, device: str) -> Defaults[EnsembleSettings]:
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
        generator = GeneratorSettings(architecture="smooth-resnet", width=64 if fast else 32)
        optimizer = OptimizerSettings(learning_rate=5e-4, betas=(0.9, 0.99), average=0.995)
    training = TrainingSettings(steps=release.releases, batch_size=release.rows, mixed_precision=fast)
    return Defaults(critic=critic, generator=generator, optimizer=optimizer, training=training)
