"""Weights that stand in for those of VGG19, which are 9 MB of a package: of the same shapes, and known by digest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from gswgan.critics.kernel import vgg


def made_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    rng, made = np.random.default_rng(seed), {}
    for name, shape in vgg.vgg_shapes().items():
        scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        made[name] = torch.from_numpy((scale * rng.standard_normal(shape)).astype(np.float32))
    return made


def install(place: Path, patch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Put such weights where the product looks, and have it take them for the published ones."""
    weights = made_weights()
    patch.setenv("GSWGAN_DATA", str(place))
    patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    patch.setattr(vgg, "WEIGHTS_SHA256", vgg._digest(weights))
    (place / vgg.VGG19).mkdir(parents=True, exist_ok=True)
    (place / vgg.VGG19 / vgg.FILE).write_bytes(safetensors.torch.save(weights))
    return weights
