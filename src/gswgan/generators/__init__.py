"""Generators: the only networks that are released. They never see data, only sanitized gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from gswgan.generators.bilinear import BilinearGenerator
from gswgan.generators.dcgan import DCGANGenerator
from gswgan.generators.decoded import DecodedGenerator
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.latent import LatentKind
from gswgan.generators.mlp import MLPGenerator
from gswgan.generators.resnet import ResNetGenerator

__all__ = ["GeneratorSettings", "build_network"]


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """The network and its latent code."""

    architecture: Literal["resnet", "smooth-resnet", "dcgan", "bilinear", "mlp", "decoded", "denoiser"]
    width: int
    latent: int = 10
    latent_kind: LatentKind = "normal"
    spectral_norm: bool = False


def build_network(settings: GeneratorSettings, *, classes: int, channels: int, image_size: int) -> nn.Module:
    """An untrained network for images of this shape."""
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
