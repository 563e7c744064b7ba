"""DP-MERF (Harder, Adamczewski, Park 2021): class mean embeddings under random features, released once.

It is the kernel critic with the settings of its authors: 10,000 random Fourier features of one long length scale, their
small generator, five passes of batches of 500 without a moving mean. Its noise is 2/n on the mean of n records (its
"sensitivity 2/m"), which is our 2 on the sum. The authors took the length scale from the median distance in the private
data (10.2 on MNIST, 11.3 on Fashion-MNIST) and left that outside epsilon; here it follows from the image's shape alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gswgan.critics.kernel.features import KernelSettings
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.methods import dp_merf_minibatch as minibatch
from gswgan.methods import gs_wgan
from gswgan.methods.dp_merf_minibatch import MinibatchSettings
from gswgan.methods.gan_generator import is_tiny
from gswgan.methods.gs_wgan_plan import check_kernel, kernel_draft, kernel_privacy
from gswgan.methods.method import Method, PlanRequest
from gswgan.plan.defaults import Defaults
from gswgan.plan.plan import Draft, Facts, TrainingSettings
from gswgan.privacy.claims import Claim

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


def dp_merf_defaults(facts: Facts) -> Defaults:
    """Adam at 0.01, which falls in the course of the five passes; small sets get as many steps as MNIST."""
    steps = max(600, PASSES * facts.records // BATCH)
    return Defaults(
        critic=KernelSettings(features=FEATURES, length_scales=(length_scale(facts),)),
        generator=GeneratorSettings(architecture="bilinear", width=8, latent=5),
        optimizer=OptimizerSettings(learning_rate=0.01, betas=(0.9, 0.999), decay=True, average=0.0),
        training=TrainingSettings(steps=steps, batch_size=BATCH),
    )


def draft(request: PlanRequest, noise: float) -> Draft:
    """One release of everybody; with the preset `paper` one of a minibatch in each step, at this noise_std."""
    defaults = dp_merf_defaults(request.facts)
    if request.preset == "default":
        return kernel_draft("dp-merf", request, kernel_privacy(request, noise), defaults)
    critic = MinibatchSettings(
        features=TINY_FEATURES if is_tiny(request.facts) else FEATURES,
        length_scale=length_scale(request.facts),
        noise_std=noise,
        seed=request.seed,
    )
    if request.steps is not None:
        critic = replace(critic, releases=request.steps)
    return Draft(
        method="dp-merf",
        preset=request.preset,
        facts=request.facts,
        critic=critic,
        generator=defaults.generator,
        optimizer=defaults.optimizer,
        training=replace(defaults.training, steps=critic.releases),
    )


def _part(draft: Draft) -> Any:
    """The code behind the preset."""
    return minibatch if isinstance(draft.critic, MinibatchSettings) else gs_wgan


def claimed(draft: Draft, delta: float) -> Claim | None:
    """The GS-WGAN paper's figure for its run."""
    settings = draft.critic
    return minibatch.claimed(settings, draft.facts, delta) if isinstance(settings, MinibatchSettings) else None


METHOD = Method(
    name="dp-merf",
    about="DP-MERF (Harder, Adamczewski, Park 2021): noisy mean embeddings under random features",
    settings=KernelSettings | MinibatchSettings,
    presets=("default", "paper"),
    draft=draft,
    total=lambda draft, steps: _part(draft).total(draft, steps),
    critic=lambda plan, context: _part(plan).make_critic(plan, context),
    words=lambda draft: _part(draft).words(draft),
    check=lambda plan: minibatch.check(plan) if _part(plan) is minibatch else check_kernel(plan),
    own_noise=lambda preset: 2 * PAPER_NOISE_SCALE if preset == "paper" else None,
    claimed=claimed,
)
