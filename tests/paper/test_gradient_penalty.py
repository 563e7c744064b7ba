"""Section 4 of the paper: under the gradient penalty the upstream gradients have a norm near 1, so that clipping to
C = 1 destroys little. Without it they do not: the spectral norm alone leaves them anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gswgan.critics.ensemble.adam import adam_step, init_adam
from gswgan.critics.ensemble.loss import critic_gradients, generator_gradient
from gswgan.critics.ensemble.network import CriticShape, init_critics, power_iteration

SHAPE = CriticShape(image_size=8, channels=1, classes=2, width=8)
CRITICS, RECORDS, BATCH, UPDATES = 3, 48, 16, 200


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def upstream_norms(penalty_weight: float, updates: int) -> Tensor:
    """Norms [critic, sample] at the fakes, after training on stripes (even or odd rows, by label) against noise."""
    stream = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (CRITICS, RECORDS), generator=stream)
    stripes = (torch.arange(8)[:, None] + labels[:, :, None, None, None]) % 2
    real = 0.7 * stripes + 0.2 * torch.rand(CRITICS, RECORDS, 1, 8, 8, generator=stream)
    fake = torch.rand(CRITICS, RECORDS, 1, 8, 8, generator=stream)
    fake_labels = torch.randint(2, (CRITICS, RECORDS), generator=stream)

    params, buffers = init_critics(SHAPE, CRITICS, seed=0)
    adam = init_adam(params)
    for _ in range(updates):
        x, z = (torch.randperm(RECORDS, generator=stream)[:BATCH] for _ in range(2))
        mix = torch.rand(CRITICS, BATCH, generator=stream)
        buffers = power_iteration(params, buffers)
        batch = (real[:, x], labels[:, x], fake[:, z], fake_labels[:, z], mix)
        _, grads = critic_gradients(params, buffers, *batch, penalty_weight=penalty_weight, drift_penalty=1e-3)
        adam_step(params, grads, adam, learning_rate=1e-3, betas=(0.5, 0.9))
    return generator_gradient(params, buffers, fake, fake_labels).flatten(2).norm(dim=2)


def test_norms_of_the_upstream_gradients_approach_one() -> None:
    assert upstream_norms(10.0, 0).max() < 0.6  # far from 1 before training
    norms = upstream_norms(10.0, UPDATES)
    assert (norms.mean(dim=1) - 1).abs().max() < 0.2
    assert ((norms - 1).abs() < 0.3).float().mean() > 0.9


def test_without_the_penalty_they_do_not() -> None:
    norms = upstream_norms(0.0, UPDATES)
    assert norms.mean(dim=1).min() > 1.5
    assert norms.std() > 0.5
