"""What travels in Algorithm 2, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from critic_rounds import DATA, critic_plan

from gswgan.errors import FederationError
from gswgan.federated.messages import Batch, pack, pool_size, question, read_batch, unpack
from gswgan.federated.trust import make_federated_plan
from gswgan.plan.facts import Facts
from gswgan.privacy.mechanism import GRID_BITS

FACTS = Facts.of(DATA)


def test_fakes_travel_as_8_bit_images_and_are_read_as_they_were_sent():
    plan = critic_plan()
    pool = pool_size(plan)
    images = torch.linspace(0, 1, (pool + plan.privacy.rows) * FACTS.pixels).view(-1, 1, 8, 8)
    labels = torch.arange(len(images)) % 3
    sent = question(plan, Batch(number=2, images=images, labels=labels, pool=pool))
    assert len(sent["images"]) == len(images) * FACTS.pixels
    seen = read_batch(plan, sent)
    assert (seen.images - images).abs().max() <= 0.5 / 255 + 1e-6
    assert torch.equal(seen.labels, labels)
    assert (seen.number, seen.pool) == (2, pool)
    assert question(plan, seen) == sent  # so a kept question is the same question
    assert (float(seen.images.min()), float(seen.images.max())) == (0.0, 1.0)


@pytest.mark.parametrize("published", [True, False])
def test_answers_take_as_few_bytes_as_hold_every_entry_that_is_accepted(published: bool):
    if published:  # noise of 2.14 C an entry
        plan = make_federated_plan(FACTS, preset="paper-federated", trust="untrusted-server", rounds=3)
    else:
        plan = make_federated_plan(FACTS, preset="ensemble", trust="untrusted-server", rounds=3, epsilon=1)
    most = int(2**GRID_BITS * (1 + 12 * plan.privacy.noise_std / plan.privacy.clip_norm))
    grid = np.zeros((plan.privacy.rows, FACTS.pixels), np.int64)
    grid[:, 0] = [most if row % 2 else -most for row in range(plan.privacy.rows)]
    raw = pack(grid, plan)
    assert len(raw) == (4 if published else 8) * grid.size
    assert (most < 2**31) == published
    assert np.array_equal(unpack(raw, plan), grid)
    grid[-1, 0] = most + 2
    with pytest.raises(FederationError, match="too large"):
        unpack(pack(grid, plan), plan)
