"""The generator that the GAN baselines share, by the shape of the images."""

from __future__ import annotations

from gswgan.generators import GeneratorSettings
from gswgan.plan.defaults import TINY
from gswgan.plan.facts import Facts
from gswgan.plan.method import PlanRequest


def is_tiny(facts: Facts) -> bool:
    """Whether the images are so small that small networks and larger steps will do."""
    return facts.image_size <= TINY


def gan_generator(request: PlanRequest, *, tiny_latent: int = 10) -> GeneratorSettings:
    """Fully connected for tiny images, a DCGAN for larger ones: narrow on a CPU."""
    if is_tiny(request.facts):
        return GeneratorSettings(architecture="mlp", width=256, latent=tiny_latent)
    return GeneratorSettings(architecture="dcgan", width=64 if request.device.startswith("cuda") else 16)
