"""Generators: the only networks that are published. They are trained on sanitized gradients and never see data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import nn

from gswgan.errors import PlanError
from gswgan.generators.decoded import DecodedGenerator
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.networks import BilinearGenerator, DCGANGenerator, MLPGenerator, ResNetGenerator
from gswgan.ranges import Range, Width

__all__ = ["GeneratorSettings", "LatentKind", "build_network", "network_shapes"]

LatentKind = Literal["normal", "bernoulli"]

MAX_WEIGHTS = 2**28
"""The largest generator: 1 GiB of weights, a hundred times any preset's. A plan from elsewhere may ask for more."""


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """The network and its latent code."""

    architecture: Literal["resnet", "smooth-resnet", "dcgan", "bilinear", "mlp", "decoded", "denoiser"]
    width: Width
    latent: Annotated[int, Range(1, 2**20)] = 10
    latent_kind: LatentKind = "normal"
    spectral_norm: bool = False


def build_network(settings: GeneratorSettings, *, classes: int, channels: int, image_size: int) -> nn.Module:
    """Return an untrained network for images of this shape; refuse one with more than MAX_WEIGHTS weights."""
    network_shapes(settings, classes=classes, channels=channels, image_size=image_size)
    return _make(settings, classes, channels, image_size)


def network_shapes(
    settings: GeneratorSettings, *, classes: int, channels: int, image_size: int
) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and type of each saved tensor of such a network without allocating it."""
    with torch.device("meta"):
        state = _make(settings, classes, channels, image_size).state_dict()
    weights = sum(value.numel() for value in state.values())
    if weights > MAX_WEIGHTS:
        raise PlanError(
            "generator", f"{settings.architecture} of width {settings.width}: {weights} weights",
            f"at most {MAX_WEIGHTS} weights", "Plan with a smaller width.",
        )  # fmt: skip
    return {name: (value.shape, value.dtype) for name, value in state.items()}


def _make(settings: GeneratorSettings, classes: int, channels: int, image_size: int) -> nn.Module:
    kinds: dict[str, Callable[..., nn.Module]] = {
        "resnet": ResNetGenerator,
        "smooth-resnet": partial(ResNetGenerator, smooth=True),
        "dcgan": DCGANGenerator,
        "bilinear": BilinearGenerator,
        "mlp": MLPGenerator,
        "decoded": DecodedGenerator,
        "denoiser": DenoisedSampler,
    }
    shape = {"classes": classes, "channels": channels, "image_size": image_size}
    network = {"latent": settings.latent, "width": settings.width, "spectral_norm": settings.spectral_norm}
    return kinds[settings.architecture](**shape, **network)
