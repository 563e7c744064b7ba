from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gswgan.errors import DataError, RunError
from gswgan.evaluation import frechet
from gswgan.evaluation.frechet import Moments, frechet_distance


def features(n: int, d: int, *, seed: int, shift: float = 0.0) -> torch.Tensor:
    """Correlated, skewed and never negative, as pooled activations are."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((n, d)) @ np.random.default_rng(99).standard_normal((d, d)) / math.sqrt(d)
    return torch.from_numpy(np.maximum(mixed + shift, 0))


def moments(*batches: torch.Tensor) -> Moments:
    found = Moments()
    for batch in batches:
        found.update(batch)
    return found


def exactly(mean: np.ndarray, covariance: np.ndarray, n: int = 50) -> Moments:
    """Points that have exactly this mean and covariance."""
    points = np.random.default_rng(5).standard_normal((n, len(mean)))
    points -= points.mean(0)
    white = points @ np.linalg.inv(np.linalg.cholesky(np.cov(points.T))).T
    return moments(torch.from_numpy(white @ np.linalg.cholesky(covariance).T + mean))


class AsTheyAre(nn.Module):
    """Hands features to torchmetrics in the place of images."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.num_features = d

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.flatten(1)


@pytest.mark.parametrize(("n", "d"), [(400, 32), (200, 128)])
def test_agrees_with_torchmetrics(n: int, d: int) -> None:
    from torchmetrics.image.fid import FrechetInceptionDistance

    real, fake = features(n, d, seed=1), features(n + 37, d, seed=2, shift=0.3)
    metric = FrechetInceptionDistance(feature=AsTheyAre(d), input_img_size=(d, 1, 1))
    metric.set_dtype(torch.float64)
    metric.update(real[..., None, None], real=True)
    metric.update(fake[..., None, None], real=False)
    assert frechet_distance(moments(real), moments(fake)) == pytest.approx(float(metric.compute()), rel=1e-4)


@pytest.mark.parametrize(("n", "d"), [(1000, 16), (60, 300)])
def test_a_set_is_at_distance_0_from_itself(n: int, d: int) -> None:
    """Also where there are fewer images than features, and in another order."""
    rows = 10 * features(n, d, seed=3)
    assert frechet_distance(moments(rows), moments(rows)) <= 1e-6
    assert frechet_distance(moments(rows), moments(rows.flip(0))) <= 1e-6
    assert frechet_distance(moments(rows), moments(rows + 1e-2)) == pytest.approx(d * 1e-4, abs=1e-6)


def test_equals_the_closed_form_of_two_gaussians() -> None:
    """Covariances with the same axes: each axis adds (s - t)^2. In two dimensions any two have a closed form."""
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))
    s, t = np.array([1.0, 4.0, 9.0, 0.25]), np.array([2.0, 1.0, 16.0, 0.5])
    mean = np.array([1.0, -2.0, 0.5, 3.0])
    found = frechet_distance(exactly(mean, turn @ np.diag(s) @ turn.T), exactly(0 * mean, turn @ np.diag(t) @ turn.T))
    assert found == pytest.approx(float(mean @ mean + ((np.sqrt(s) - np.sqrt(t)) ** 2).sum()), rel=1e-9)

    one, other = np.array([[2.0, 0.9], [0.9, 1.0]]), np.array([[1.0, -0.6], [-0.6, 3.0]])
    product = one @ other
    cross = math.sqrt(np.trace(product) + 2 * math.sqrt(np.linalg.det(product)))
    found = frechet_distance(exactly(np.zeros(2), one), exactly(np.zeros(2), other))
    assert found == pytest.approx(np.trace(one) + np.trace(other) - 2 * cross, rel=1e-9)
    assert found == pytest.approx(frechet_distance(exactly(np.zeros(2), other), exactly(np.zeros(2), one)), rel=1e-9)


def test_pieces_equal_one_pass_and_the_textbook() -> None:
    rows = features(301, 12, seed=4) + 1e6  # a mean that would swallow the variance of plain sums
    whole = moments(rows)
    pieces = moments(rows[:1], rows[1:7], rows[7:7], rows[7:200], rows[200:])
    for found in (whole, pieces):
        assert found.count == 301
        np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found.covariance, np.cov((rows - 1e6).T), rtol=1e-6, atol=1e-8)
    assert frechet_distance(whole, pieces) <= 1e-6


def test_float32_batches_are_summed_in_float64() -> None:
    rows = features(5000, 3, seed=6).float()
    assert moments(*rows.split(7)).covariance.dtype == torch.float64
    np.testing.assert_allclose(moments(*rows.split(7)).covariance, np.cov(rows.double().T), rtol=1e-10)


def test_moments_survive_a_file(tmp_path: Path) -> None:
    one = moments(features(50, 6, seed=7))
    one.save(tmp_path / "deep" / "moments.safetensors")
    again = Moments.load(tmp_path / "deep" / "moments.safetensors")
    assert again.count == one.count
    assert torch.equal(again.mean, one.mean)
    torch.testing.assert_close(again.covariance, one.covariance, rtol=1e-13, atol=0)
    (tmp_path / "bad").write_bytes(b"no moments")
    for bad in (tmp_path / "bad", tmp_path / "absent"):
        with pytest.raises(RunError, match="moments saved by this package"):
            Moments.load(bad)


def test_refuses_what_has_no_distance() -> None:
    one = moments(features(5, 3, seed=8))
    with pytest.raises(DataError, match="the same features in both"):
        frechet_distance(one, moments(features(5, 4, seed=8)))
    with pytest.raises(DataError, match="at least two images"):
        frechet_distance(one, moments(features(1, 3, seed=8)))
    with pytest.raises(DataError, match="3 per row"):
        one.update(torch.zeros(2, 4))
    with pytest.raises(DataError, match="finite"):
        one.update(torch.full((2, 3), math.nan))
    with pytest.raises(DataError, match="one row per image"):
        one.update(torch.zeros(3))
    assert one.count == 5
    assert frechet._square_root(torch.zeros(3, 3, dtype=torch.float64)).abs().sum() == 0
