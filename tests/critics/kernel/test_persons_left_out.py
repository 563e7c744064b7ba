"""A person who is left out adds nothing to the kernel critic's sum, and changes nobody else's part of it."""

from __future__ import annotations

import numpy as np
import torch

from gswgan.critics.kernel import embedding
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData, clients, keep_clients, make_image_data


def _blocks(data: ImageData) -> list[torch.Tensor]:
    features = RandomFeatures(KernelSettings(features=64, length_scales=(1.5,)), 1, 8, torch.device("cpu"))
    return [rows for rows, _ in embedding.person_blocks(data, features, 0.5)]


def test_left_out_is_zero_and_moves_nobody() -> None:
    rng = np.random.default_rng(0)
    persons = np.repeat(["a", "b", "c", "d"], [5, 2, 6, 1])
    data = make_image_data(
        rng.integers(0, 256, (14, 8, 8), dtype=np.uint8), rng.integers(0, 3, 14), classes=3, persons=persons
    )
    before, after = _blocks(data), _blocks(keep_clients(data, min_records=5))
    assert len(before) == len(after) == 4
    for place, (one, other) in enumerate(zip(before, after)):
        assert torch.equal(other, one if place in (0, 2) else torch.zeros_like(one))
    alone = [block for _, mine in clients(data) for block in _blocks(mine)]
    assert len(alone) == 4
    assert all(torch.equal(one, other) for one, other in zip(before, alone))
