"""Precision and recall of a generated set (Kynkaanniemi et al. 2019, "Improved precision and recall metric")."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gswgan.errors import DataError

_CHUNK = 1000  # rows compared at a time


def precision_recall(
    real_features: Tensor | np.ndarray, fake_features: Tensor | np.ndarray, k: int = 3
) -> tuple[float, float]:
    """How much of the fake set lies within the real one, and how much of the real set within the fake one.

    A set's region is the union of balls around its points, each reaching to the point's k-th nearest neighbour in
    the set. Both sets should have the same size (the paper of the metric uses 50,000): regions grow with fewer points.
    """
    if k < 1:
        raise DataError("k", k, "a whole number of at least 1")
    real, fake = torch.as_tensor(real_features).detach(), torch.as_tensor(fake_features).detach()
    fake = fake.to(real.device)
    for name, rows in (("real_features", real), ("fake_features", fake)):
        if rows.ndim != 2 or rows.shape[1] != real.shape[-1] or len(rows) <= k:
            raise DataError(name, f"shape {list(rows.shape)}", f"more than k = {k} rows of the same features")
        if not bool(torch.isfinite(rows).all()):
            raise DataError(name, "not finite", "finite numbers")
    return _covered(fake, real, _radii(real, k)), _covered(real, fake, _radii(fake, k))


def _radii(points: Tensor, k: int) -> Tensor:
    """The distance of each point to its k-th nearest other point [n]."""
    found = [_distances(part, points).kthvalue(k + 1, dim=1).values for part in points.split(_CHUNK)]  # 1st: itself
    return torch.cat(found)


def _covered(points: Tensor, centres: Tensor, radii: Tensor) -> float:
    """The fraction of points within at least one ball."""
    inside = sum(int((_distances(part, centres) <= radii).any(1).sum()) for part in points.split(_CHUNK))
    return inside / len(points)


def _distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Differences are squared, not expanded into products: equal points have distance 0 exactly."""
    return torch.cdist(rows.float(), columns.float(), compute_mode="donot_use_mm_for_euclid_dist")
