"""The warm start: each critic trains with a generator of its own on its own partition before the first private step.

This is the first loop of Algorithm 1, for a chunk of critics at a time. The local generators see private data, stay
with their critic and are deleted afterwards. They are hidden state of one partition, so nothing leaves and no privacy
is spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.learners import CRITICS_PER_CHUNK, Learners, chunks_of
from gswgan.critics.ensemble.local_generators import LocalGenerators
from gswgan.critics.ensemble.stack import halved
from gswgan.critics.resumable import Stopped, Store, TimeLeft
from gswgan.generators import GeneratorSettings


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The length of the warm start, its local generators, and how it is saved and stopped."""

    iterations: int  # T_w
    generator: GeneratorSettings
    learning_rate: float
    betas: tuple[float, float]
    store: Store | None = None
    stopped: Callable[[], bool] = lambda: False


def warm_up(learners: Learners, warm: WarmStart) -> None:
    """Run the warm start for every critic, a chunk at a time; raises `Stopped` when the run was asked to stop.

    When the device runs out of memory, it begins again with chunks of half the size: nothing has left.
    """
    per_chunk = min(len(learners.held), CRITICS_PER_CHUNK[learners.device.type])
    while True:
        done, saved = (warm.store.load() if warm.store is not None else None) or (0, {})
        if saved:
            per_chunk = int(saved["sizes"]["at once"])
        try:
            return _warm_up(learners, warm, per_chunk, done, saved)
        except torch.OutOfMemoryError as wrong:
            per_chunk = halved(per_chunk, wrong, learners.note)
            if warm.store is not None:
                warm.store.remove()
            learners.load_state(learners.untrained().tensors())


def _warm_up(
    learners: Learners, warm: WarmStart, per_chunk: int, done: int, saved: dict[str, dict[str, Tensor]]
) -> None:
    """Continue after `done` iterations from the state `saved` then.

    Every iteration of a chunk has its own random stream, so what follows is the same bit for bit.
    """
    if saved:
        learners.load_state(saved["critics"])
    chunks = list(chunks_of(learners.places, per_chunk))
    total = len(chunks) * warm.iterations
    progress = TimeLeft(total, done, learners.note, "warm start of the critics")
    slots = learners.new_slots(per_chunk)
    for index, (members, real) in enumerate(chunks):
        first = index * warm.iterations  # iterations of the chunks before this one
        if done >= first + warm.iterations:
            continue
        slots.critics.read(learners.critics, members)
        numbers = learners.numbers(members)
        local = LocalGenerators(
            warm.generator, numbers, slots.critics, learners.shape, learning_rate=warm.learning_rate, betas=warm.betas,
            public=learners.public, compute_dtype=learners.settings.compute_dtype,
        )  # fmt: skip
        if done > first:
            local.load_state(saved["local generators"])
        for step in range(done - first, warm.iterations):
            progress.report(done)
            rng = learners.batches.generator("warm start", int(numbers[0]), step)
            learners.loss = slots.learn(*_batches(learners, members, local, rng))
            rows = learners.records(members, rng.random((len(members), learners.settings.learning_batch)))
            local.descend(local.codes(rng, learners.settings.learning_batch), learners.labels[rows])
            done, stop = done + 1, warm.stopped()
            if warm.store is not None and (stop or done == total or warm.store.is_due()):
                learners.critics.write(members[:real], slots.critics)
                sizes = {"at once": torch.tensor(per_chunk)}
                parts = {"critics": learners.state(), "local generators": local.state(), "sizes": sizes}
                warm.store.save(done, parts)
            if stop:
                raise Stopped
        learners.critics.write(members[:real], slots.critics)


def _batches(
    learners: Learners, members: np.ndarray, local: LocalGenerators, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw the records, fakes and mixing weights of n_dis updates, as `GraphSlots.learn` takes them."""
    updates, size = learners.settings.updates, (len(members), learners.settings.learning_batch)
    batches = []
    for _ in range(updates):
        rows = learners.records(members, rng.random(size))
        fake = local.fakes(local.codes(rng, size[1]), learners.labels[rows]).flatten(0, 1)
        batches.append((rows, fake, torch.from_numpy(rng.random(size, dtype=np.float32))))
    rows, fakes, mixes = (torch.stack(part) for part in zip(*batches))
    which = torch.arange(math.prod(size), device=learners.device).view(1, *size).expand(updates, -1, -1)
    return rows, fakes, which, mixes.to(learners.device)
