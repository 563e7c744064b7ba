from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gswgan.critics.kernel.critic import KernelCritic, gaussian_blur
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData
from gswgan.privacy import Contribution

CPU = torch.device("cpu")
SETTINGS = KernelSettings(features=64, length_scales=(1.5,))


def distance(features: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared distance of the class means to the targets, up to a constant, unbiased (pairs of different fakes)."""
    total = torch.zeros((), dtype=features.dtype)
    for label in labels.unique():
        mine = features[labels == label]
        count, mean = len(mine), mine.mean(0)
        square = (count * mean.square().sum() - mine.square().sum(1).mean()) / (count - 1)
        total = total + square - 2 * mean @ targets[label]
    return total


def test_distance_is_unbiased_and_the_plain_square_is_not() -> None:
    torch.manual_seed(0)
    features = RandomFeatures(KernelSettings(features=256, length_scales=(1.0,)), 1, 8, CPU)
    pool = features(torch.rand(4000, 1, 8, 8)).to(torch.float64)
    target = torch.rand(1, pool.shape[1], dtype=torch.float64) * 0.1
    truth = float(pool.mean(0).square().sum() - 2 * (pool.mean(0) * target[0]).sum())
    draws, plain = [], []
    for _ in range(4000):
        batch = pool[torch.randint(0, len(pool), (4,))]
        draws.append(float(distance(batch, torch.zeros(4, dtype=torch.int64), target)))
        mean = batch.mean(0)
        plain.append(float(mean.square().sum() - 2 * (mean * target[0]).sum()))
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - truth) < 4 * error
    assert abs(np.mean(plain) - truth) > 10 * error  # the biased one is found by the same check


def test_the_embedding_is_released_once_and_used_again(mechanism_for, tmp_path: Path, stripes: ImageData) -> None:
    mechanism = mechanism_for(Contribution(clip_norm=1.0, counts=True))
    path = tmp_path / "embedding.safetensors"
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    for _ in range(2):
        critic = KernelCritic(features, mechanism, path)
        critic.prepare(stripes)
    assert len(mechanism.ledger.entries) == 1
    without_data = KernelCritic(features, None, path)
    without_data.prepare(None)
    fake, labels = torch.rand(12, 1, 8, 8), torch.arange(12) % 3
    assert torch.equal(without_data.upstream_gradient(fake, labels), critic.upstream_gradient(fake, labels))
    assert len(mechanism.ledger.entries) == 1  # answering is free


@pytest.fixture
def prepared(mechanism_for, tmp_path: Path, stripes: ImageData):
    def make(settings: KernelSettings = SETTINGS, **options) -> KernelCritic:
        mechanism = mechanism_for(Contribution(clip_norm=1.0, counts=True))
        critic = KernelCritic(RandomFeatures(settings, 1, 8, CPU), mechanism, tmp_path / "e", **options)
        critic.prepare(stripes)
        return critic

    return make


def targets_of(critic: KernelCritic) -> torch.Tensor:
    return critic.embedding.means()


@pytest.mark.parametrize("sees", [{}, {"convolutions": (5, 7)}, {"pooled": 2}, {"convolutions": (5, 7), "pooled": 3}])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 2, 2]])
def test_the_gradient_is_that_of_the_distance(prepared, labels: list[int], sees: dict[str, Any]) -> None:
    """Written out, and unbiased: of the distance between different fakes; absent classes do no harm."""
    critic = prepared(dataclasses.replace(SETTINGS, **sees))
    fake, labels = torch.rand(6, 1, 8, 8, requires_grad=True), torch.tensor(labels)
    (expected,) = torch.autograd.grad(distance(critic.features(fake), labels, targets_of(critic)), fake)
    assert torch.allclose(critic.upstream_gradient(fake.detach(), labels) / 6, expected, rtol=1e-3, atol=1e-6)
    assert expected.abs().max() > 1e-3


def test_a_moving_mean_takes_the_noise_of_the_batch_away(prepared) -> None:
    """With memory the gradient of one fake hardly depends on the others, and it has the right mean."""
    torch.manual_seed(0)
    pool, labels = torch.rand(3000, 1, 8, 8), torch.arange(6) % 3
    probe = torch.rand(6, 1, 8, 8)
    found = {}
    for memory in (0.0, 0.95):
        critic, draws = prepared(memory=memory), []
        for step in range(400):
            batch = pool[torch.randint(0, 3000, (6,))]
            if step >= 100:
                state = {name: value.clone() for name, value in critic.state().items()}
                batch[0] = probe[0]
                draws.append(critic.upstream_gradient(batch, labels)[0].flatten())
                critic.load_state(state)
                batch[0] = pool[torch.randint(0, 3000, (1,))]
            critic.upstream_gradient(batch, labels)
        found[memory] = torch.stack(draws)
    spread = {memory: float(draws.std(0).norm()) for memory, draws in found.items()}
    assert spread[0.95] < spread[0.0] / 3
    apart = float((found[0.95].mean(0) - found[0.0].mean(0)).norm())
    assert apart < 0.3 * spread[0.0]
    # a wrong mean would be seen: the target alone, or a witness of the wrong sign, is far away
    assert float((found[0.95].mean(0) + found[0.0].mean(0)).norm()) > 1.5 * apart


def test_blocks_take_turns_and_remember_their_own(prepared) -> None:
    critic, whole = prepared(blocks=4, memory=0.9), prepared(memory=0.0)
    assert not critic.can_be_captured
    assert whole.can_be_captured
    fake, labels = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    total = torch.zeros_like(fake)
    for step in range(4):
        critic._part = critic._parts[step]
        total += critic.upstream_gradient(fake, labels)
    assert torch.allclose(total, whole.upstream_gradient(fake, labels), rtol=1e-3, atol=1e-5)


def test_the_moving_mean_survives_a_stop(prepared) -> None:
    one, other = prepared(memory=0.9), prepared(memory=0.9)
    labels = torch.arange(6) % 3
    for _ in range(5):
        one.upstream_gradient(torch.rand(6, 1, 8, 8), labels)
    other.load_state({name: value.clone() for name, value in one.state().items()})
    fake = torch.rand(6, 1, 8, 8)
    assert torch.equal(one.upstream_gradient(fake, labels), other.upstream_gradient(fake, labels))
    assert one.metrics() == other.metrics()
    assert one.metrics()["distance"] > 0


def test_answers_are_smoothed_and_nothing_else_is(prepared) -> None:
    plain, smooth = prepared(), prepared(smoothing=0.8)
    fake, labels = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    sharp, soft = plain.upstream_gradient(fake, labels), smooth.upstream_gradient(fake, labels)
    blur = gaussian_blur(8, 0.8)
    assert torch.allclose(soft, blur @ sharp @ blur.T, atol=1e-6)
    assert not torch.allclose(soft, sharp, rtol=0.1)
    assert blur[4].sum() == pytest.approx(1, abs=1e-3)
    assert torch.equal(blur, blur.T)
    assert blur[4, 5] / blur[4, 4] == pytest.approx(np.exp(-1 / (2 * 0.8**2)), rel=1e-5)
    assert plain.metrics() == smooth.metrics()


def test_a_block_remembers_as_long_as_the_whole(prepared) -> None:
    """Seen once in four steps, it keeps the fourth power: the same memory in steps."""
    critic, labels = prepared(blocks=4, memory=0.9), torch.arange(6) % 3
    first, later = torch.rand(2, 6, 1, 8, 8)
    for step in range(400):
        critic._part = critic._parts[step % 4]
        critic.upstream_gradient(first, labels)
    before = critic.state()["means"].clone()
    for step in range(4):
        critic._part = critic._parts[step]
        critic.upstream_gradient(later, labels)
    after, there = critic.state()["means"], critic.features(later)
    goal = torch.stack([there[labels == label].mean(0) for label in range(3)]).unflatten(1, (2, -1)).transpose(0, 1)
    assert torch.allclose(after - before, (1 - 0.9**4) * (goal - before), atol=1e-5)
