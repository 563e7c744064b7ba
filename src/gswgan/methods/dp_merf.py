"""DP-MERF (Harder, Adamczewski, Park 2021): class mean embeddings under random features, released once.

It is the kernel critic with the settings of its authors: 10,000 random Fourier features of one long length scale, their
small generator, five passes of batches of 500 without a moving mean. Its noise is 2/n on the mean of n records (its
"sensitivity 2/m"), which is our 2 on the sum. The authors took the length scale from the median distance in the private
data (10.2 on MNIST, 11.3 on Fashion-MNIST) and left that outside epsilon; here it follows from the image's shape alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gswgan.critics.kernel.features import KernelSettings
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.methods.dp_merf_minibatch import MinibatchSettings
from gswgan.methods.gan_generator import is_tiny
from gswgan.methods.kernel import PlannedKernel, kernel_draft, kernel_privacy
from gswgan.plan.defaults import Defaults
from gswgan.plan.facts import Facts
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import Draft, TrainingSettings
from gswgan.privacy import Event

FEATURES = 10_000
PASSES = 5
BATCH = 500
TINY_FEATURES = 1_000
"""Of tiny images with the preset `paper`, which clips and sums them in every step."""

PAPER_NOISE_SCALE = 0.588
"""Of the GS-WGAN paper's run of DP-MERF, relative to the sensitivity: see dp_merf_minibatch.py."""


def length_scale(facts: Facts) -> float:
    """sqrt(105), the authors' for MNIST, in proportion to the side (and to the root of the channels)."""
    return round(math.sqrt(105) * facts.image_size / 28 * math.sqrt(facts.channels), 2)


def dp_merf_defaults(facts: Facts) -> Defaults[KernelSettings]:
    """Adam at 0.01, which falls in the course of the five passes; small sets get as many steps as MNIST."""
    steps = max(600, PASSES * facts.records // BATCH)
    return Defaults(
        critic=KernelSettings(features=FEATURES, length_scales=(length_scale(facts),)),
        generator=GeneratorSettings(architecture="bilinear", width=8, latent=5),
        optimizer=OptimizerSettings(learning_rate=0.01, betas=(0.9, 0.999), decay=True, average=0.0),
        training=TrainingSettings(steps=steps, batch_size=BATCH),
    )


def minibatch_settings(request: PlanRequest, noise: float) -> MinibatchSettings:
    """One release of a minibatch in each step, at this noise_std."""
    critic = MinibatchSettings(
        features=TINY_FEATURES if is_tiny(request.facts) else FEATURES,
        length_scale=length_scale(request.facts),
        noise_std=noise,
        seed=request.seed,
    )
    return critic if request.steps is None else replace(critic, releases=request.steps)


class DPMerf(Method):
    """One release of everybody; with the preset `paper` one of a minibatch in each step."""

    name = "dp-merf"
    about = "DP-MERF (Harder, Adamczewski, Park 2021): noisy mean embeddings under random features"
    settings = PlannedKernel | MinibatchSettings
    presets = ("default", "paper")

    def events(self, request: PlanRequest, noise: float) -> Event:
        """One release, or one in each step."""
        if request.preset == "default":
            return kernel_privacy(request, noise).total()
        critic = minibatch_settings(request, noise)
        return critic.events(request.facts, critic.releases)

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings, with the authors' generator."""
        defaults = dp_merf_defaults(request.facts)
        if request.preset == "default":
            return kernel_draft(self.name, request, kernel_privacy(request, noise), defaults)
        critic = minibatch_settings(request, noise)
        return Draft(
            method=self.name,
            preset=request.preset,
            facts=request.facts,
            critic=critic,
            generator=defaults.generator,
            optimizer=defaults.optimizer,
            training=replace(defaults.training, steps=critic.releases),
        )

    def own_noise(self, preset: str) -> float | None:
        """That of the GS-WGAN paper's run."""
        return 2 * PAPER_NOISE_SCALE if preset == "paper" else None


METHOD = DPMerf()
