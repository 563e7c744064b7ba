"""Frechet distance of two sets of features, from their first two moments (appendix, "Frechet Inception Distance").

FID = |mu_r - mu_g|^2 + tr(S_r + S_g - 2 (S_r S_g)^(1/2)), with unbiased covariances S, all in float64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from gswgan.errors import DataError, RunError
from gswgan.privacy.storage import check_file, make_folder, write_durably


class Moments:
    """Count, mean and scatter of features seen batch by batch, on the device of the features.

    The scatter is kept about the mean (Chan, Golub and LeVeque 1983), so nothing cancels when the mean is large.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._scatter = torch.zeros(0, 0, dtype=torch.float64)

    @property
    def dimension(self) -> int:
        """The number of features; 0 before the first batch."""
        return len(self._mean)

    @property
    def mean(self) -> Tensor:
        """mu, float64 [d]."""
        return self._mean

    @property
    def covariance(self) -> Tensor:
        """S, float64 [d, d], divided by count - 1."""
        if self.count < 2:
            raise DataError("count", self.count, "features of at least two images")
        return self._scatter / (self.count - 1)

    def update(self, features: Tensor | np.ndarray) -> None:
        """Take in a batch [n, d]."""
        rows = torch.as_tensor(features).detach().to(torch.float64)
        if rows.ndim != 2:
            raise DataError("features", f"shape {list(rows.shape)}", "one row per image: shape [n, d]")
        if not bool(torch.isfinite(rows).all()):
            raise DataError("features", "not finite", "finite numbers")
        if len(rows) == 0:
            return
        mean = rows.mean(0)
        centred = rows - mean
        count, scatter = len(rows), centred.T @ centred
        if self.count == 0:
            self.count, self._mean, self._scatter = count, mean, scatter
            return
        if len(mean) != self.dimension:
            raise DataError("features", f"{len(mean)} per row", f"{self.dimension} per row, as before")
        apart = mean.to(self._mean.device) - self._mean
        total = self.count + count
        self._scatter += scatter.to(self._mean.device) + torch.outer(apart, apart) * (self.count * count / total)
        self._mean = self._mean + apart * (count / total)
        self.count = total

    def save(self, path: Path) -> None:
        """A safetensors file: count, mean and the lower half of the symmetric scatter."""
        row, column = _lower(self.dimension)
        tensors = {
            "count": torch.tensor(self.count), "mean": self._mean.cpu(), "scatter": self._scatter.cpu()[row, column],
        }  # fmt: skip
        make_folder(path.parent)
        write_durably(path, save(tensors))

    @classmethod
    def load(cls, path: Path) -> Moments:
        """What `save` wrote; anything else is a RunError."""
        moments = cls()
        try:
            check_file(path)
            tensors = load_file(path)
            moments.count, moments._mean = int(tensors["count"]), tensors["mean"]
            row, column = _lower(moments.dimension)
            scatter = torch.zeros(moments.dimension, moments.dimension, dtype=torch.float64)
            scatter[row, column] = scatter[column, row] = tensors["scatter"]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise RunError(str(path), str(error), "moments saved by this package", "Remove it.") from error
        moments._scatter = scatter
        return moments


def frechet_distance(one: Moments, other: Moments) -> float:
    """The squared 2-Wasserstein distance of the two Gaussians with these moments.

    tr (S T)^(1/2) is the sum of the singular values of S^(1/2) T^(1/2). Taken from there, and not from the square
    roots of the eigenvalues of S T, rounding is not magnified where a covariance is singular (fewer images than
    features): the distance of a set to itself is 0 to the last digits.
    """
    if one.dimension != other.dimension:
        raise DataError("moments", f"{one.dimension} and {other.dimension} features", "the same features in both")
    s, t = one.covariance.cpu(), other.covariance.cpu()  # in one place, whatever the moments were taken on
    apart = one.mean.cpu() - other.mean.cpu()
    cross = torch.linalg.svdvals(_square_root(s) @ _square_root(t)).sum()
    distance = float(apart @ apart + s.trace() + t.trace() - 2 * cross)
    return max(distance, 0.0)


def _square_root(covariance: Tensor) -> Tensor:
    """The symmetric square root; eigenvalues that are rounding (or below 0) count as 0."""
    values, vectors = torch.linalg.eigh(covariance)
    floor = values[-1].clamp_min(0) * len(values) * torch.finfo(torch.float64).eps
    roots = torch.where(values > floor, values, torch.zeros_like(values)).sqrt()
    return (vectors * roots) @ vectors.T


def _lower(dimension: int) -> tuple[Tensor, Tensor]:
    row, column = torch.tril_indices(dimension, dimension)
    return row, column
