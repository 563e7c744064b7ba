"""Latent codes and labels, the inputs of a generator. Both are drawn from the public seed."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

LatentKind = Literal["normal", "bernoulli"]


def latent_codes(count: int, dim: int, kind: LatentKind, rng: np.random.Generator) -> Tensor:
    """Draw z ~ P_z: standard normal, or Bernoulli(0.5) as in the published code."""
    if kind == "normal":
        return torch.from_numpy(rng.standard_normal((count, dim), dtype=np.float32))
    return torch.from_numpy(rng.integers(0, 2, (count, dim)).astype(np.float32))


def balanced_labels(count: int, classes: np.ndarray, rng: np.random.Generator) -> Tensor:
    """Draw labels with a uniform prior, as evenly spread as `count` allows, in random order.

    Every class that occurs does so at least twice (the kernel's distance needs pairs): with too many classes
    for one batch, a random subset of them is taken.
    """
    chosen = rng.permutation(classes)[: max(1, count // 2)]
    return torch.from_numpy(rng.permutation(np.resize(chosen, count)).astype(np.int64))
