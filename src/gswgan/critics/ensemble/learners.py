"""K critics that learn, each on its own partition of the records, as one batched model. Nothing leaves from here.

What leaves does so through `critics/ensemble/ensemble.py` (or the votes of teachers, `critics/teachers.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.adam import adam_step
from gswgan.critics.ensemble.loss import critic_gradients, generator_gradient
from gswgan.critics.ensemble.network import CriticShape, power_iteration
from gswgan.critics.ensemble.partitions import Partitions
from gswgan.critics.ensemble.stack import GraphSlots, Stack, halved
from gswgan.critics.one_thread import one_thread
from gswgan.data import ImageData
from gswgan.generators.generator import Generator
from gswgan.privacy import BatchStreams, Streams
from gswgan.ranges import MAX_STEPS, Batch, Betas, LearningRate, PenaltyWeight, Range, Updates, Width

CRITICS_PER_CHUNK = {"cpu": 64, "cuda": 128}
"""The largest number of critics updated together, by device: bounds memory, and is halved when that runs out."""


@dataclass(frozen=True, kw_only=True)
class EnsembleSettings:
    """The critics and how they learn. Nothing here is part of the guarantee; see the plan's privacy settings."""

    width: Width
    updates: Updates = 5  # n_dis
    learning_batch: Batch = 32  # records, and as many fakes, per update
    fakes_per_step: Literal["fresh", "one"] = "fresh"
    penalty_weight: PenaltyWeight = 10.0
    drift_penalty: PenaltyWeight = 1e-3
    learning_rate: LearningRate = 1e-4
    betas: Betas = (0.5, 0.9)
    warm_start: Annotated[int, Range(0, MAX_STEPS)] = 0
    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type of the convolutions; weights, optimizer and everything from the clip on stay float32 or better."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


class Learners:
    """K critics with their partitions.

    `held` are the critics of this process, where there are several (`critics/ensemble/distributed.py`). Arrays here
    are indexed by a critic's place among those; its random streams are named by its number among all K.
    """

    def __init__(
        self,
        settings: EnsembleSettings,
        shape: CriticShape,
        *,
        count: int,
        held: range,
        usual: int,
        public: Streams,
        batches: BatchStreams,
        device: torch.device,
        note: Callable[[str], None],
    ) -> None:
        """`usual`: how many critics learn in a step at most, except in rare steps; `note` receives messages."""
        self.settings, self.shape, self.count, self.held = settings, shape, count, held
        self.public, self.batches, self.device, self.note = public, batches, device, note
        self.places = np.arange(len(held))
        self.critics = self.untrained()
        self.params, self.buffers, self.adam = self.critics.params, self.critics.buffers, self.critics.adam
        self.images = self.labels = self.loss = torch.zeros(1)
        largest = min(len(held), CRITICS_PER_CHUNK[device.type])
        self.chunk = math.ceil(usual / math.ceil(usual / largest))  # one fixed size: kernels never vary

    def untrained(self) -> Stack:
        """Draw the critics as they are before they have learnt anything."""
        return Stack.drawn(self.shape, self.held, self.public.integer("critic weights"), self.device)

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Partition the records and put the data of the critics held here on the device. Nothing leaves."""
        assert data is not None, "critics learn from data"
        images, labels = data.images, np.zeros(data.n, np.int64) if data.labels is None else data.labels
        self.partitions = Partitions.of(data, self.count, self.public.integer("partition"), self.device)
        if len(self.held) < self.count:  # the records of the other processes are not kept here
            self.partitions, rows = self.partitions.part(self.held)
            images, labels = images[rows], labels[rows]
        self.images = torch.from_numpy(images).to(self.device)
        labels = labels.clip(0, self.shape.classes - 1)  # total: no label raises, and it concerns its own record alone
        self.labels = torch.from_numpy(labels).to(self.device)
        self._clear_slots()  # a recorded graph reads the earlier data

    def catch_up(self, times: int, generator: Generator) -> None:
        """Let every critic learn, as in `times` steps, against the generator as it is. Nothing leaves."""
        for time in range(times):
            self._learn(self.places, generator, "catch up", time)

    def input_gradients(self, members: np.ndarray, images: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of -D_k for each member k in each fake, [m, B, c, h, w]: private, not yet clipped."""
        chunks = chunks_of(members, self.chunk)
        with one_thread(self.device):
            found = [self._slots_of(part, real).input_gradients(images, labels)[:real] for part, real in chunks]
        return torch.cat(found)

    def records(self, members: np.ndarray, uniform: np.ndarray) -> Tensor:
        """Return record indices [..., m, B] for as many numbers in [0, 1), each from the member's own partition."""
        place = torch.from_numpy((uniform * self.partitions.sizes[members][:, None]).astype(np.int64)).to(self.device)
        own = self.partitions.table[torch.from_numpy(members).to(self.device)]
        return own.expand(*place.shape[:-1], -1).gather(-1, place)

    def numbers(self, members: np.ndarray) -> np.ndarray:
        """Return the numbers of these critics among all K."""
        numbers: np.ndarray = members + self.held.start
        return numbers

    def new_slots(self, size: int) -> GraphSlots:
        """Return slots for copies of `size` critics."""
        return GraphSlots(self.critics.copy(np.resize(self.places, size)), self._updates, self._input_gradients)

    def state(self) -> dict[str, Tensor]:
        """Return weights, power-iteration vectors and optimizer state of all critics."""
        return self.critics.tensors()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._clear_slots()
        for name, value in self.state().items():
            value.copy_(tensors[name])

    def _learn(self, participants: np.ndarray, generator: Generator, *index: int | str) -> None:
        """Make n_dis updates of each participant; `index` names the random streams of this step."""
        options, size = self.settings, self.settings.learning_batch
        if not options.updates:
            return
        fakes = self._fakes_by_class(generator, *index)
        per_class = fakes.shape[1] // self.shape.classes
        while len(participants):
            members, real = next(chunks_of(participants, self.chunk))
            before = None
            try:
                slots = self._slots_of(members, real)
                if slots.critics is self.critics and not slots.is_recorded:  # updated in place: keep what they were
                    before = self.critics.copy(members)
                picks, mixes = self._draws(members, *index)
                rows = self.records(members, picks)
                which = self.labels[rows] * per_class + torch.arange(size, device=self.device) % per_class
                with one_thread(self.device):
                    self.loss = slots.learn(rows, fakes, which, torch.from_numpy(mixes).to(self.device))
            except torch.OutOfMemoryError as wrong:
                if before is not None:
                    self.critics.write(members, before)
                self._halve(wrong)
                continue
            if slots.critics is not self.critics:
                self.critics.write(members[:real], slots.critics)
            participants = participants[real:]

    def _fakes_by_class(self, generator: Generator, *index: int | str) -> Tensor:
        """Return public pools of fakes, one per update, ordered by class: [pools, classes x per class, c, h, w].

        Each record meets a fake of its own class in it.
        """
        size, classes = self.settings.learning_batch, self.shape.classes
        pools = self.settings.updates if self.settings.fakes_per_step == "fresh" else 1
        per_class = max(2, min(size, max(8, 2 * math.ceil(size / classes))))
        images, labels = generator.fakes(pools * classes * per_class, "critics", *index)
        by_class = images[labels.argsort(stable=True)].unflatten(0, (classes, pools, per_class))
        return by_class.transpose(0, 1).flatten(1, 2)

    def _draws(self, members: np.ndarray, *index: int | str) -> tuple[np.ndarray, np.ndarray]:
        """Draw numbers in [0, 1) that choose records and that mix them with fakes, [n_dis, m, B] each.

        Each critic has its own stream, so its numbers do not depend on who else takes part.
        """
        size = 2, self.settings.updates, self.settings.learning_batch
        own = [self.batches.generator(*index, int(k)).random(size, dtype=np.float32) for k in self.numbers(members)]
        picks, mixes = np.stack(own, axis=2)
        return picks, mixes

    @cached_property
    def _whole(self) -> GraphSlots:
        """All critics, updated in place without copies: for steps in which all of them take part."""
        return GraphSlots(self.critics, self._updates, self._input_gradients)

    @cached_property
    def _chunk(self) -> GraphSlots:
        return self.new_slots(self.chunk)

    def _clear_slots(self) -> None:
        for slots in ("_whole", "_chunk"):
            vars(self).pop(slots, None)

    def _halve(self, wrong: torch.OutOfMemoryError) -> None:
        """Use half as many critics per chunk from now on. This depends on the device and on sizes, never on values."""
        self._clear_slots()
        self.chunk = halved(self.chunk, wrong, self.note)

    def _slots_of(self, members: np.ndarray, real: int) -> GraphSlots:
        """Return slots that hold these members in this order."""
        if self.chunk == len(self.places) == real and np.array_equal(members, self.places):
            return self._whole
        self._chunk.load(self.critics, members)
        return self._chunk

    def _updates(self, critics: Stack, rows: Tensor, fakes: Tensor, which: Tensor, mixes: Tensor) -> Tensor:
        """Make n_dis updates in place with the records `rows` and the fakes `which` of each pool, [n_dis, m, B] each.

        Record and fake i of a batch have the same label, as in the published code: a partition with few classes is
        then never asked to tell fakes of a class of which it has no records.
        """
        for update in range(len(rows)):
            records, labels = self.images[rows[update]].to(torch.float32) / 255, self.labels[rows[update]]
            self._update(critics, records, fakes[update % len(fakes)][which[update]], labels, mixes[update])
        return self.loss

    def _update(self, critics: Stack, records: Tensor, fake: Tensor, labels: Tensor, mix: Tensor) -> None:
        """theta_D^k <- theta_D^k - eta_D grad L_D for each critic k of the stack, in place."""
        options, buffers = self.settings, power_iteration(critics.params, critics.buffers)
        self.loss, grads = critic_gradients(
            critics.params, buffers, records, labels, fake, labels, mix,
            penalty_weight=options.penalty_weight, drift_penalty=options.drift_penalty,
            compute_dtype=options.compute_dtype,
        )  # fmt: skip
        adam_step(critics.params, grads, critics.adam, learning_rate=options.learning_rate, betas=options.betas)
        for name, value in critics.buffers.items():
            value.copy_(buffers[name])

    def _input_gradients(self, critics: Stack, images: Tensor, labels: Tensor) -> Tensor:
        return generator_gradient(critics.params, critics.buffers, images, labels, self.settings.compute_dtype)


def chunks_of(critics: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the critics in chunks of one size, each with the number of real members; the last is padded with copies."""
    for start in range(0, len(critics), size):
        members = critics[start : start + size]
        yield np.resize(members, size), len(members)
