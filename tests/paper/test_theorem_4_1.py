"""Theorem 4.1: a generator step over a batch of B is (order, 2 B order / sigma^2)-RDP."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from gswgan.privacy import Contribution, Gaussian
from gswgan.privacy.claims import gaussian_rdp, step_rdp
from gswgan.privacy.mechanism import GRID_BITS, clip_to_grid

CLIP_NORM = 1.0


def sample(noise_scale: float) -> Gaussian:
    """One sample's sanitized gradient in the paper's unit: noise_std = sigma C, sensitivity 2C."""
    return Gaussian(noise_std=noise_scale * CLIP_NORM, sensitivity=2 * CLIP_NORM)


def integrated(noise_std: float, shift: float, order: float) -> float:
    """Renyi divergence of N(shift) from N(0) by its definition: log E_Q (P/Q)^order / (order - 1)."""

    def integrand(x: float) -> float:
        ratio = (2 * shift * x - shift**2) / (2 * noise_std**2)
        return math.exp(order * ratio - x**2 / (2 * noise_std**2)) / (noise_std * math.sqrt(2 * math.pi))

    centre = order * shift
    return math.log(quad(integrand, centre - 15 * noise_std, centre + 15 * noise_std)[0]) / (order - 1)


@pytest.mark.parametrize("noise_scale", [0.5, 1.07, 4.0])
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_one_sample_has_the_divergence_of_its_gaussian(noise_scale: float, order: float) -> None:
    found = float(gaussian_rdp(sample(noise_scale), order))
    assert found == pytest.approx(integrated(noise_scale * CLIP_NORM, 2 * CLIP_NORM, order), rel=1e-6)
    assert found == pytest.approx(2 * order / noise_scale**2)


def integrated_pair(noise_std: float, shift: float, order: float) -> float:
    """The same for two samples at once, over the plane: additivity is found, not assumed."""
    x = np.linspace(-12 * noise_std, order * shift + 12 * noise_std, 1201)

    def log_density(mean: float) -> np.ndarray:
        one = -((x - mean) ** 2) / (2 * noise_std**2) - math.log(noise_std * math.sqrt(2 * math.pi))
        return one[:, None] + one[None, :]

    log_p, log_q = log_density(shift), log_density(0.0)
    total = np.exp(order * log_p + (1 - order) * log_q).sum() * (x[1] - x[0]) ** 2
    return float(math.log(total) / (order - 1))


@pytest.mark.parametrize(("noise_scale", "order"), [(1.07, 2.0), (2.0, 3.0), (4.0, 1.5)])
def test_a_batch_is_the_composition_of_its_samples(noise_scale: float, order: float) -> None:
    truth = integrated_pair(noise_scale * CLIP_NORM, 2 * CLIP_NORM, order)
    assert step_rdp(sample(noise_scale), 2, order) == pytest.approx(truth, rel=1e-4)
    half = Gaussian(noise_std=noise_scale, sensitivity=CLIP_NORM)  # a sensitivity of C would be a wrong claim
    assert step_rdp(half, 2, order) != pytest.approx(truth, rel=0.5)


@pytest.mark.parametrize("batch_size", [1, 32, 64])
def test_the_theorem_in_the_papers_letters(batch_size: int) -> None:
    for noise_scale in (1.07, 3.0):
        for order in (2.0, 10.0):
            assert step_rdp(sample(noise_scale), batch_size, order) == pytest.approx(
                2 * batch_size * order / noise_scale**2
            )


@pytest.mark.parametrize("batch_size", [1, 32])
def test_the_step_as_one_event_is_the_theorem(batch_size: int) -> None:
    """The accountant sees a step as one Gaussian of sensitivity 2C sqrt(B): composed first, sampled after."""
    block = Contribution(clip_norm=CLIP_NORM, rows=batch_size)
    step = Gaussian(noise_std=1.07, sensitivity=block.sensitivity("replace-one"))
    assert float(gaussian_rdp(step, 5.0)) == pytest.approx(step_rdp(sample(1.07), batch_size, 5.0))


def test_clipped_gradients_differ_by_at_most_two_clip_norms_and_some_do() -> None:
    """The proof's triangle inequality, on the clipping that is really used."""
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(200, 784, dtype=torch.float64, generator=generator) * 10
    clipped = clip_to_grid(gradients, CLIP_NORM).double() / 2**GRID_BITS
    assert torch.cdist(clipped, clipped).max() <= 2 * CLIP_NORM
    opposite = clip_to_grid(torch.stack([gradients[0], -gradients[0]]), CLIP_NORM).double() / 2**GRID_BITS
    assert float((opposite[0] - opposite[1]).norm()) == pytest.approx(2 * CLIP_NORM, rel=1e-5)
