"""DP-MERF (Harder, Adamczewski, Park 2021): class mean embeddings under random features, released once.

It is the kernel critic with the settings of its authors: 10,000 random Fourier features of one long length scale, their
small generator, five passes of batches of 500 without a moving mean. Its noise is 2/n on the mean of n records (its
"sensitivity 2/m"), which is our 2 on the sum. The authors took the length scale from the median distance in the private
data (10.2 on MNIST, 11.3 on Fashion-MNIST) and left that outside epsilon; here it follows from the image's shape alone.
"""

from __future__ import annotations

import math

from gswgan.critics.kernel import KernelSettings
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.training.defaults import Defaults
from gswgan.training.gs_wgan import check_kernel, kernel_draft, kernel_privacy, make_critic, total, words
from gswgan.training.method import Method
from gswgan.training.plan import Facts, TrainingSettings

FEATURES = 10_000
PASSES = 5
BATCH = 500


def length_scale(facts: Facts) -> float:
    """sqrt(105), the authors' for MNIST, in proportion to the side (and to the root of the channels)."""
    return round(math.sqrt(105) * facts.image_size / 28 * math.sqrt(facts.channels), 2)


def dp_merf_defaults(facts: Facts) -> Defaults:
    """Adam at 0.01, which falls in the course of the five passes; small sets get as many steps as MNIST."""
    steps = max(600, PASSES * facts.records // BATCH)
    return Defaults(
        critic=KernelSettings(features=FEATURES, length_scales=(length_scale(facts),)),
        generator=GeneratorSettings(architecture="bilinear", width=8, latent=5),
        optimizer=OptimizerSettings(learning_rate=0.01, betas=(0.9, 0.999), decay=True, average=0.0),
        training=TrainingSettings(steps=steps, batch_size=BATCH),
    )


METHOD = Method(
    name="dp-merf",
    about="DP-MERF (Harder, Adamczewski, Park 2021): mean embeddings under random features, released once",
    settings=KernelSettings,
    presets=("default",),
    draft=lambda wish, noise: kernel_draft("dp-merf", wish, kernel_privacy(wish, noise), dp_merf_defaults(wish.facts)),
    total=total,
    critic=make_critic,
    words=words,
    check=check_kernel,
)
