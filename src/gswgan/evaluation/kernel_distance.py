"""Kernel Inception Distance (Binkowski et al. 2018): unbiased at any number of images, and with a standard error.

The FID of few images is too large, the more so the fewer they are; the KID is right on average and says how far off it
may be.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from gswgan.errors import DataError

BLOCKS, MAX_BLOCK = 10, 1000


def kernel_distance(
    real_features: Tensor | np.ndarray, fake_features: Tensor | np.ndarray, blocks: int = BLOCKS
) -> tuple[float, float]:
    """The mean of `squared_mmd` over disjoint blocks of both sets, and the standard error of that mean.

    Blocks are disjoint, so their estimates are independent and the error is std / sqrt(blocks); subsets that are drawn
    again and again share images, and their spread says little. A block has at most 1,000 images of each set.
    """
    real, fake = torch.as_tensor(real_features).detach(), torch.as_tensor(fake_features).detach()
    if real.ndim != 2 or fake.ndim != 2 or real.shape[1] != fake.shape[1]:
        shapes = f"shapes {list(real.shape)} and {list(fake.shape)}"
        raise DataError("features", shapes, "one row per image, of the same features in both sets")
    size = min(len(real), len(fake), blocks * MAX_BLOCK) // max(1, blocks)
    if blocks < 2 or size < 2:
        raise DataError("blocks", blocks, f"2 to {min(len(real), len(fake)) // 2}, half of the smaller set's images")
    rng = np.random.default_rng(0)
    dealt = [torch.from_numpy(rng.permutation(len(rows))[: blocks * size]).split(size) for rows in (real, fake)]
    found = [squared_mmd(real[one.to(real.device)], fake[two.to(fake.device)]) for one, two in zip(*dealt)]
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(blocks))


def squared_mmd(one: Tensor, other: Tensor) -> float:
    """The unbiased estimate of the squared MMD with the kernel (x.y / d + 1)^3, in float64."""
    x, y = one.double(), other.double().to(one.device)
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise DataError("features", "not finite", "finite numbers")

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.T / a.shape[1] + 1) ** 3

    def within(a: Tensor) -> Tensor:
        values = kernel(a, a)
        return (values.sum() - values.trace()) / (len(a) * (len(a) - 1))  # without the pairs of an image with itself

    return float(within(x) + within(y) - 2 * kernel(x, y).mean())
