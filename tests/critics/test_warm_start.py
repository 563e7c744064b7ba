from __future__ import annotations

import dataclasses

import numpy as np
import torch

from conftest import tiny_images
from gswgan.critics.ensemble import Ensemble, EnsembleSettings
from gswgan.critics.network import CriticShape
from gswgan.critics.warm_start import WarmStart
from gswgan.generators import GeneratorSettings
from gswgan.privacy import Contribution, Streams

WARM = WarmStart(
    iterations=3, generator=GeneratorSettings(architecture="dcgan", width=4, spectral_norm=True), learning_rate=1e-3,
    betas=(0.5, 0.9),
)  # fmt: skip


def warmed(data, mechanism_for, warm: WarmStart | None = WARM) -> Ensemble:
    ensemble = Ensemble(
        EnsembleSettings(width=4, updates=2, learning_batch=4, learning_rate=1e-3),
        CriticShape(image_size=8, channels=1, classes=3, width=4),
        mechanism_for(Contribution(clip_norm=1.0, rows=2)),
        count=6, sampling="one", rate=1.0, public=Streams.public(0), secret=Streams.public(1),
        device=torch.device("cpu"), warm_start=warm,
    )  # fmt: skip
    ensemble.prepare(data)
    return ensemble


def test_every_critic_warms_up_and_nothing_is_released(mechanism_for) -> None:
    data = tiny_images(60)
    warm, cold = warmed(data, mechanism_for), warmed(data, mechanism_for, None)
    assert warm.adam.steps.tolist() == [6] * 6  # n_dis updates an iteration
    assert cold.adam.steps.tolist() == [0] * 6
    for k in range(6):
        assert not torch.equal(warm.params["conv1.weight"][k], cold.params["conv1.weight"][k])
    assert warm._mechanism.ledger.entries == []


def test_a_warm_start_stays_in_its_shard(mechanism_for) -> None:
    """One record changed: exactly one critic comes out of the warm start differently."""
    data = tiny_images(60)
    images = data.images.copy()
    images[11] = 255 - images[11]
    one, other = warmed(data, mechanism_for), warmed(dataclasses.replace(data, images=images), mechanism_for)
    (owner,) = [k for k in range(6) if 11 in one.shards.table[k].tolist()]
    different = [
        k for k in range(6) if any(not np.array_equal(one.state()[n][k], other.state()[n][k]) for n in one.state())
    ]
    assert different == [owner]


def test_a_resumed_run_does_not_warm_up_again(mechanism_for) -> None:
    data = tiny_images(60)
    ensemble = warmed(data, mechanism_for)
    before = {name: value.clone() for name, value in ensemble.state().items()}
    ensemble.prepare(data, resumed=True)
    assert all(torch.equal(before[name], value) for name, value in ensemble.state().items())
