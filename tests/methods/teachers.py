"""Methods with teachers: a short run, and two runs of which the second has the votes that the first released."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import changed_in_one_record, different_teachers, tiny_generator
from gswgan.critics.ensemble.partitions import Partitions
from gswgan.data import ImageData
from gswgan.generators.generator import Generator
from gswgan.privacy import Streams, VoteMechanism
from gswgan.run.loop import train

COUNT, STEPS, BATCH = 12, 3, 4
RECORD = 17


def play(critic: Any, generator: Generator, steps: int = STEPS, *, batch_size: int = BATCH, **options: Any) -> None:
    plan = types.SimpleNamespace(training=types.SimpleNamespace(steps=steps, batch_size=batch_size))
    train(plan, critic, generator, **options)


def isolated(
    make: Callable[..., Any], root: Path, data: ImageData, spoil: Callable[[Any], None] = lambda critic: None
) -> list[Any]:
    """With the released votes replayed, another record changes exactly its own teacher, and only its votes."""
    released: dict[str, np.ndarray] = {}
    votes: list[dict[str, torch.Tensor]] = []
    critics, generators, original = [], [], VoteMechanism.answer

    def release(mechanism: VoteMechanism, name: str, cast: torch.Tensor) -> np.ndarray:
        votes[-1][name] = cast.clone()
        if name not in released:
            released[name] = original(mechanism, name, cast)
        return released[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VoteMechanism, "answer", release)
        for place, shown in enumerate((data, changed_in_one_record(data, RECORD))):
            critics.append(make(root / str(place), shown))
            generators.append(tiny_generator())
            votes.append({})
            spoil(critics[-1])
            play(critics[-1], generators[-1])
    honest = Partitions.of(data, COUNT, Streams.public(0).integer("partition"), torch.device("cpu"))
    (owner,) = [k for k in range(COUNT) if RECORD in honest.table[k].tolist()]
    assert different_teachers(critics[0].teachers, critics[1].teachers) == [owner]
    for name, cast in votes[0].items():
        changed = (cast != votes[1][name]).any(dim=1)
        assert set(np.flatnonzero(changed.numpy())) <= {owner}
    left, right = (generator.state().values() for generator in generators)
    assert all(torch.equal(a, b) for a, b in zip(left, right))
    return critics
