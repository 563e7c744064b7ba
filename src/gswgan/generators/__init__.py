"""Generators: the only networks that are released. They never see data, only sanitized gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from gswgan.errors import PlanError
from gswgan.generators.bilinear import BilinearGenerator
from gswgan.generators.dcgan import DCGANGenerator
from gswgan.generators.decoded import DecodedGenerator
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.latent import LatentKind
from gswgan.generators.mlp import MLPGenerator
from gswgan.generators.resnet import ResNetGenerator

__all__ = ["GeneratorSettings", "build_network", "network_shapes"]

MAX_WEIGHTS = 2**28
"""Of a generator: 1 GiB, a hundred times the largest of the presets. A plan from elsewhere may ask for any."""


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """The network and its latent code."""

    architecture: Literal["resnet", "smooth-resnet", "dcgan", "bilinear", "mlp", "decoded", "denoiser"]
    width: int
    latent: int = 10
    latent_kind: LatentKind = "normal"
    spectral_norm: bool = False


def build_network(settings: GeneratorSettings, *, classes: int, channels: int, image_size: int) -> nn.Module:
    """An untrained network for images of this shape; refused where it would be larger than MAX_WEIGHTS."""
    network_shapes(settings, classes=classes, channels=channels, image_size=image_size)
    return _make(settings, classes, channels, image_size)


def network_shapes(
    settings: GeneratorSettings, *, classes: int, channels: int, image_size: int
) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each saved tensor of such a network, without any memory for them."""
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
    return kinds[settings.architecture](
        latent=settings.latent,
        classes=classes,
        channels=channels,
        image_size=image_size,
        width=settings.width,
        spectral_norm=settings.spectral_norm,
    )
