"""What a question may cost a site in memory and work: estimated from the plan alone, before anything is allocated.

The estimates are generous (measured peaks are below them) and need no data, so whether a plan is refused for its size
says nothing about the site's records.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from gswgan.critics.dp_sgd import LANES
from gswgan.critics.ensemble.network import KERNEL, CriticShape
from gswgan.critics.kernel.convolutions import MADE, output_size
from gswgan.critics.kernel.embedding import CHUNK_ELEMENTS, FIXED_ROWS
from gswgan.critics.kernel.features import pooled_side
from gswgan.critics.refined.records import NUMBERS_PER_CHUNK
from gswgan.errors import FederationError
from gswgan.federated.messages import pool_size
from gswgan.federated.site_steps import numbers_of, refined_settings, steps_of
from gswgan.federated.trust import is_refined
from gswgan.generators import build_network
from gswgan.plan.plan import Plan

GIB, TERA = 2.0**30, 1e12

MAPS = 80
"""Maps of the full side that a denoiser keeps for each of its channels at the most."""

NOISE = 1e4
"""Multiplications in whose time one number gets its noise, in a step of DP-SGD."""

STEP = 5e9
"""Multiplications in whose time the smallest critic makes an update: most of it is not multiplying."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one answer may take: `memory` in GiB, `work` in 10^12 multiplications.

    The defaults let all presets pass; 10^12 multiplications take a core about ten seconds.
    """

    memory: float = 8.0
    work: float = 5000.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < 1e9:
                raise FederationError(name, value, "a number above 0", f"Set {name} in the site's configuration.")

    def check(self, plan: Plan) -> None:
        """Raise a FederationError that states both figures and the limit if the plan takes more."""
        needed = {"memory": (memory_of(plan) / GIB, "GiB"), "work": (work_of(plan) / TERA, "x 10^12 multiplications")}
        for name, (value, unit) in needed.items():
            if value > (most := getattr(self, name)):
                raise FederationError(
                    name, f"{value:.4g} {unit} for one answer", f"at most {most:g}, the limit of this site",
                    f"Raise {name} in the site's configuration if the plan is wanted.",
                )  # fmt: skip


UNLIMITED = Limits(memory=1e8, work=1e8)
"""For clients that are simulated: whoever simulates them has chosen the plan, and is told by the machine."""


def memory_of(plan: Plan) -> float:
    """Bytes that an answer takes at the most, beside the site's own data."""
    facts = plan.facts
    if plan.critic.can_stream or is_refined(plan):
        steps = _memory_of_steps(plan) if is_refined(plan) else 0.0
        features, network = plan.critic.kernel_settings.features, _Convolutions.of(plan)
        rows = max(FIXED_ROWS, CHUNK_ELEMENTS // features)
        sums = 20.0 * network.seen * features + 96.0 * facts.classes * (features + 1) + 32.0 * CHUNK_ELEMENTS
        return max(steps, sums + 24.0 * network.weights + (4.0 * rows + 8.0 * MADE) * network.activations)
    critic = plan.critic.ensemble_settings
    shape = _shape(plan)
    weights = sum(math.prod(size) for size in shape.parameters.values()) + _local_weights(plan)
    at_once = max(3 * critic.learning_batch, plan.sums.rows)
    batches = 16.0 * (pool_size(plan) + plan.sums.rows) * facts.pixels
    return 32.0 * weights + 64.0 * at_once * _activations(shape) + batches


def work_of(plan: Plan) -> float:
    """Multiplications of an answer at the most; a client's, beside those that grow with its own data."""
    if plan.critic.can_stream or is_refined(plan):
        features, network, silos = plan.critic.kernel_settings.features, _Convolutions.of(plan), plan.facts.silos
        records = 0 if silos is None else max(site.records for site in silos.sites)
        kernel = (1.0 + records) * network.seen * features + (MADE + FIXED_ROWS + records) * network.multiplications
        return max(kernel, _work_of_steps(plan, records)) if is_refined(plan) else kernel
    critic = plan.critic.ensemble_settings
    own = 10.0 * critic.learning_batch * _multiplications(_shape(plan)) + STEP
    local = 10.0 * critic.learning_batch * _local_weights(plan) * plan.facts.image_size**2
    return critic.updates * own + critic.warm_start * (critic.updates + 1) * (own + local)


def _memory_of_steps(plan: Plan) -> float:
    """Bytes of a round of DP-SGD: weights, axes, a chunk of gradients and the activations that they come from."""
    (count, axes), settings = numbers_of(plan), refined_settings(plan)
    most = NUMBERS_PER_CHUNK["cpu"]
    images = (most / count + LANES) * settings.draws
    activations = images * plan.facts.image_size**2 * plan.generator.width * MAPS
    classes = 24.0 * images * plan.facts.classes  # their labels, a number for each class
    weights = 64.0 * count + 16.0 * sum(map(math.prod, axes.values())) + 32.0 * (most + LANES * count)
    return weights + 4.0 * activations + classes


def _work_of_steps(plan: Plan, records: int) -> float:
    """Multiplications of a round of DP-SGD at the largest site, if every weight met every pixel.

    A step has a padded chunk and the noise of all weights, whoever takes part.
    """
    settings, (count, axes) = refined_settings(plan), numbers_of(plan)
    steps = max(len(steps) for steps in steps_of(plan))
    gradients = plan.sums.rate * records + LANES
    products = count * (3.0 * gradients * settings.draws * plan.facts.image_size**2 + NOISE)
    turned = gradients * count * 2.0 * max((shape[0] for shape in axes.values() if len(shape) == 2), default=0)
    return steps * (products + turned)


@dataclass(frozen=True, kw_only=True)
class _Convolutions:
    """Sizes of what a kernel plan's features see: the pixels, and the network where there is one."""

    seen: float
    """Numbers of an image that the frequencies act on."""
    weights: float = 0.0
    activations: float = 0.0
    """Numbers of an image that are in memory together, at the most."""
    multiplications: float = 0.0

    @classmethod
    def of(cls, plan: Plan) -> _Convolutions:
        """Counted without allocating anything."""
        facts, settings = plan.facts, plan.critic.kernel_settings
        widths = settings.convolutions
        inputs, side = facts.channels, pooled_side(facts.image_size, settings.pooled)
        weights, most, work = 0.0, 0.0, 0.0
        seen = float(facts.channels * side**2 + output_size(widths, side))
        for outputs in widths:
            weights += 9.0 * inputs * outputs
            most = max(most, float((inputs + 2 * outputs) * side**2))
            work += 9.0 * inputs * outputs * side**2
            inputs, side = outputs, (side + 1) // 2
        return cls(seen=seen, weights=weights, activations=most, multiplications=work)


def _shape(plan: Plan) -> CriticShape:
    facts = plan.facts
    return CriticShape(
        image_size=facts.image_size,
        channels=facts.channels,
        classes=facts.classes,
        width=plan.critic.ensemble_settings.width,
    )


def _layers(shape: CriticShape) -> list[tuple[int, int, int]]:
    """Side after each convolution, its inputs and its outputs."""
    outputs = [shape.width * 2**layer for layer in range(len(shape.sides) - 1)]
    return list(zip(shape.sides[1:], [shape.channels, *outputs], outputs))


def _activations(shape: CriticShape) -> float:
    return float(shape.image_size**2 * shape.channels + sum(side**2 * outputs for side, _, outputs in _layers(shape)))


def _multiplications(shape: CriticShape) -> float:
    return float(sum(side**2 * inputs * outputs * KERNEL**2 for side, inputs, outputs in _layers(shape)))


def _local_weights(plan: Plan) -> float:
    """Weights of the generator that a client's warm start trains, counted without allocating them."""
    if not plan.critic.ensemble_settings.warm_start:
        return 0.0
    settings, facts = dataclasses.replace(plan.generator, spectral_norm=False), plan.facts
    with torch.device("meta"):
        network = build_network(
            settings, classes=facts.classes, channels=facts.channels, image_size=facts.image_size
        )  # fmt: skip
    return float(sum(value.numel() for value in network.parameters()))
