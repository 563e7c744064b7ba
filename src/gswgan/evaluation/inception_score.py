"""Inception Score (appendix, "Inception Score"): exp E_x KL(P(y|x) || P(y)), from a classifier's probabilities."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import xlogy

from gswgan.errors import DataError

_TOLERANCE = 1e-4  # float32 softmax rows add up to 1 within this


def inception_score(probabilities: np.ndarray | torch.Tensor, splits: int = 10) -> tuple[float, float]:
    """Mean and standard deviation (n - 1) over `splits` parts of P(y|x), given as [n, classes].

    The rows are dealt to the parts by a fixed shuffle: sets that are sorted by class, or dealt out class by class in
    turn, would otherwise give parts that lack classes, and too low a score.
    """
    rows = torch.as_tensor(probabilities).detach().cpu().numpy().astype(np.float64)
    if rows.ndim != 2 or rows.shape[1] < 1:
        raise DataError("probabilities", f"shape {list(rows.shape)}", "one row per image: shape [n, classes]")
    if not 1 <= splits <= len(rows):
        raise DataError("splits", splits, f"1 to {len(rows)}, the number of images", "Use more images.")
    if not (rows >= 0).all() or not np.allclose(rows.sum(1), 1, rtol=0, atol=_TOLERANCE):  # nan fails as well
        raise DataError("probabilities", "rows that are no distribution", "rows of numbers from 0 that add up to 1")
    shuffled = rows[np.random.default_rng(0).permutation(len(rows))]
    scores = [_score(part) for part in np.array_split(shuffled, splits)]
    return float(np.mean(scores)), float(np.std(scores, ddof=1)) if splits > 1 else 0.0


def _score(rows: np.ndarray) -> float:
    """E KL(P(y|x) || P(y)) is the entropy of the mean row less the mean entropy of a row."""
    mean = rows.mean(0)
    return float(np.exp(xlogy(rows, rows).sum(1).mean() - xlogy(mean, mean).sum()))
