"""K critics that learn, each on its own shard, as one batched model: everything about them that leaves nothing.

What leaves does so through `critics/ensemble/ensemble.py` (or the votes of teachers, `critics/teachers.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.adam import AdamState, adam_step
from gswgan.critics.ensemble.loss import critic_gradients, generator_gradient
from gswgan.critics.ensemble.network import CriticShape, power_iteration
from gswgan.critics.ensemble.shards import Shards
from gswgan.critics.ensemble.stack import GraphSlots, Stack, halved
from gswgan.critics.ensemble.warm_start import LocalGenerators, Stopped, TimeLeft, WarmStart
from gswgan.data import ImageData
from gswgan.generators.generator import Generator
from gswgan.privacy import BatchStreams, Streams

AT_ONCE = {"cpu": 64, "cuda": 128}
"""Critics that are updated together at the most: bounds memory. Where a device has less, half as many, and so on."""


@dataclass(frozen=True, kw_only=True)
class EnsembleSettings:
    """The critics and how they learn. Nothing here is part of the guarantee; see the plan's privacy settings."""

    width: int
    updates: int = 5  # n_dis
    learning_batch: int = 32  # records and fakes an update
    fakes_per_step: Literal["fresh", "one"] = "fresh"
    penalty_weight: float = 10.0
    drift_penalty: float = 1e-3
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.5, 0.9)
    warm_start: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type of the convolutions; weights, optimizer and everything from the clip on stay float32 or better."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


class Learners:
    """K critics with their shards.

    `held`: the critics that are here, where there are several processes (`critics/ensemble/distributed.py`).
    Inside, a critic goes by its place among those; what it draws goes by its number among all K.
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
        warm_start: WarmStart | None,
        note: Callable[[str], None],
    ) -> None:
        """`usual`: how many learn in a step, but for rare ones."""
        self.settings, self.shape, self.count, self.held = settings, shape, count, held
        self._here = np.arange(len(self.held))
        self._public, self._batches, self._device = public, batches, device
        self._warm_start, self._note = warm_start, note
        self.critics = self._drawn()
        self.params, self.buffers, self.adam = self.critics.params, self.critics.buffers, self.critics.adam
        self._images = self._labels = self._loss = torch.zeros(1)
        self._at_once = min(len(self.held), AT_ONCE[device.type])
        self.chunk = math.ceil(usual / math.ceil(usual / self._at_once))  # one fixed size: kernels never vary

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Cut the shards, put the data on the device, warm up. Nothing leaves."""
        assert data is not None, "critics learn from data"
        images, labels = data.images, np.zeros(data.n, np.int64) if data.labels is None else data.labels
        self.shards = Shards.of(data, self.count, self._public.integer("partition"), self._device)
        if len(self.held) < self.count:  # the others' records are not kept here
            self.shards, rows = self.shards.part(self.held)
            images, labels = images[rows], labels[rows]
        self._images = torch.from_numpy(images).to(self._device)
        labels = labels.clip(0, self.shape.classes - 1)  # total: no label raises, and it concerns its own record alone
        self._labels = torch.from_numpy(labels).to(self._device)
        self._clear_slots()  # what was recorded there reads the data before
        while self._warm_start is not None and not resumed and data.n:
            try:
                self._warm_up(self._warm_start)
                break
            except torch.OutOfMemoryError as wrong:  # from the start, with other draws: nothing has left
                self._at_once = halved(self._at_once, wrong, self._note)
                if self._warm_start.store is not None:
                    self._warm_start.store.remove()
                self.load_state(self._drawn().tensors())

    def _drawn(self) -> Stack:
        """The critics as they are before they have learnt anything."""
        return Stack.drawn(self.shape, self.held, self._public.integer("critic weights"), self._device)

    def catch_up(self, times: int, generator: Generator) -> None:
        """Everybody learns, as in `times` steps, against the generator as it is. Nothing leaves."""
        for time in range(times):
            self._learn(self._here, generator, "catch up", time)

    def _learn(self, participants: np.ndarray, generator: Generator, *index: int | str) -> None:
        options, size = self.settings, self.settings.learning_batch
        if not options.updates:
            return
        fakes = self._fakes_by_class(generator, *index)
        some = fakes.shape[1] // self.shape.classes
        while len(participants):
            members, real = next(chunks_of(participants, self.chunk))
            before = None
            try:
                slots = self._slots_of(members, real)
                if slots.critics is self.critics and not slots.is_recorded:  # at work in place: keep what they were
                    before = self.critics.copy(members)
                picks, mixes = self._draws(members, *index)
                rows = self._records(members, picks)
                which = self._labels[rows] * some + torch.arange(size, device=self._device) % some
                self._loss = slots.learn(rows, fakes, which, torch.from_numpy(mixes).to(self._device))
            except torch.OutOfMemoryError as wrong:
                if before is not None:
                    self.critics.write(members, before)
                self._halve(wrong)
                continue
            if slots.critics is not self.critics:
                self.critics.write(members[:real], slots.critics)
            participants = participants[real:]

    def _fakes_by_class(self, generator: Generator, *index: int | str) -> Tensor:
        """Public pools of fakes, one for each update, in the order of their classes: [pools, classes x some, c, h, w].

        Each record meets a fake of its own class in it.
        """
        size, classes = self.settings.learning_batch, self.shape.classes
        pools = self.settings.updates if self.settings.fakes_per_step == "fresh" else 1
        some = max(2, min(size, max(8, 2 * math.ceil(size / classes))))
        images, labels = generator.fakes(pools * classes * some, "critics", *index)
        by_class = images[labels.argsort(stable=True)].unflatten(0, (classes, pools, some))
        return by_class.transpose(0, 1).flatten(1, 2)

    def _draws(self, members: np.ndarray, *index: int | str) -> tuple[np.ndarray, np.ndarray]:
        """Numbers in [0, 1) that choose records and mix them with fakes, [n_dis, m, B]: nobody's depend on others."""
        size = 2, self.settings.updates, self.settings.learning_batch
        own = [self._batches.generator(*index, int(k)).random(size, dtype=np.float32) for k in self._numbers(members)]
        picks, mixes = np.stack(own, axis=2)
        return picks, mixes

    def _numbers(self, members: np.ndarray) -> np.ndarray:
        """Of these critics among all K."""
        numbers: np.ndarray = members + self.held.start
        return numbers

    @cached_property
    def _whole(self) -> GraphSlots:
        """All critics at work where they are, without copying anything: for steps in which all of them take part."""
        return GraphSlots(self.critics, self._updates, self._judgements)

    @cached_property
    def _chunk(self) -> GraphSlots:
        return self._slots(self.chunk)

    def _slots(self, size: int) -> GraphSlots:
        """A slots with copies of some critics on it."""
        return GraphSlots(self.critics.copy(np.resize(self._here, size)), self._updates, self._judgements)

    def _clear_slots(self) -> None:
        for slots in ("_whole", "_chunk"):
            vars(self).pop(slots, None)

    def _halve(self, wrong: torch.OutOfMemoryError) -> None:
        """Half as many critics at a time from now on. That depends on the device and on sizes, never on values."""
        self._clear_slots()
        self.chunk = halved(self.chunk, wrong, self._note)

    def _slots_of(self, members: np.ndarray, real: int) -> GraphSlots:
        """The slots with these members on it, in this order."""
        if self.chunk == len(self._here) == real and np.array_equal(members, self._here):
            return self._whole
        self._chunk.load(self.critics, members)
        return self._chunk

    def _updates(self, critics: Stack, rows: Tensor, fakes: Tensor, which: Tensor, mixes: Tensor) -> Tensor:
        """n_dis updates in place, with the records `rows` and the fakes `which`, [n_dis, m, B] each, of its pool."""
        for update in range(len(rows)):
            fake = fakes[update % len(fakes)][which[update]]
            new = self._update(rows[update], critics.params, critics.buffers, critics.adam, fake, mixes[update])
            for name, value in critics.buffers.items():
                value.copy_(new[name])
        return self._loss

    def _update(
        self,
        rows: Tensor,
        params: dict[str, Tensor],
        buffers: dict[str, Tensor],
        adam: AdamState,
        fake: Tensor,
        mixes: Tensor,
    ) -> dict[str, Tensor]:
        """theta_D^k <- theta_D^k - eta_D grad L_D for each member k, on records of its own shard; weights in place.

        Record and fake i of a batch have the same label, as in the published code: a shard with few classes is
        then never asked to tell fakes of a class of which it has no records.
        """
        options, labels = self.settings, self._labels[rows]
        buffers = power_iteration(params, buffers)
        self._loss, grads = critic_gradients(
            params,
            buffers,
            self._images[rows].to(torch.float32) / 255,
            labels,
            fake,
            labels,
            mixes,
            penalty_weight=options.penalty_weight,
            drift_penalty=options.drift_penalty,
            compute_dtype=options.compute_dtype,
        )
        adam_step(params, grads, adam, learning_rate=options.learning_rate, betas=options.betas)
        return buffers

    def _warm_up(self, warm: WarmStart) -> None:
        """Algorithm 1's first loop for every critic, a chunk at a time, each with its own local generator.

        Every iteration of a chunk has its own draws, so it goes on after a stop where it was saved, bit for bit.
        """
        options, shape = self.settings, self.shape
        done, saved = (warm.store.load() if warm.store is not None else None) or (0, {})
        if saved:
            self.load_state(saved["critics"])
            self._at_once = int(saved["sizes"]["at once"])
        chunks = list(chunks_of(self._here, self._at_once))
        total = len(chunks) * warm.iterations
        progress = TimeLeft(total, done, self._note)
        slots = self._slots(self._at_once)
        for number, (members, real) in enumerate(chunks):
            first = number * warm.iterations  # iterations of the chunks before this one
            if done >= first + warm.iterations:
                continue
            slots.critics.read(self.critics, members)
            local = LocalGenerators(
                warm,
                self._numbers(members),
                slots.critics,
                classes=shape.classes,
                channels=shape.channels,
                image_size=shape.image_size,
                public=self._public,
                compute_dtype=options.compute_dtype,
            )
            if done > first:
                local.load_state(saved["local generators"])
            size = len(members), options.learning_batch
            which = torch.arange(math.prod(size), device=self._device).view(1, *size).expand(options.updates, -1, -1)
            for step in range(done - first, warm.iterations):
                progress.tell(done)
                rng = self._batches.generator("warm start", int(self._numbers(members)[0]), step)
                batches = []
                for _ in range(options.updates):
                    rows = self._records(members, rng.random(size))
                    fake = local.fakes(local.codes(rng, options.learning_batch), self._labels[rows]).flatten(0, 1)
                    batches.append((rows, fake, torch.from_numpy(rng.random(size, dtype=np.float32))))
                rows, fakes, mixes = (torch.stack(part) for part in zip(*batches))
                self._loss = slots.learn(rows, fakes, which, mixes.to(self._device))
                rows = self._records(members, rng.random(size))
                local.descend(local.codes(rng, options.learning_batch), self._labels[rows])
                done, stop = done + 1, warm.stopped()
                if warm.store is not None and (stop or done == total or warm.store.is_due()):
                    self.critics.write(members[:real], slots.critics)
                    sizes = {"at once": torch.tensor(self._at_once)}
                    parts = {"critics": self.state(), "local generators": local.state(), "sizes": sizes}
                    warm.store.save(done, parts)
                if stop:
                    raise Stopped
            self.critics.write(members[:real], slots.critics)

    def judge(self, members: np.ndarray, images: Tensor, labels: Tensor) -> Tensor:
        """Gradient of each member's judgement with respect to each fake, [m, B, c, h, w]: private, not yet clipped."""
        answers = [
            self._slots_of(part, real).judge(images, labels)[:real] for part, real in chunks_of(members, self.chunk)
        ]
        return torch.cat(answers)

    def _judgements(self, critics: Stack, images: Tensor, labels: Tensor) -> Tensor:
        return generator_gradient(critics.params, critics.buffers, images, labels, self.settings.compute_dtype)

    def _records(self, members: np.ndarray, uniform: np.ndarray) -> Tensor:
        """Record indices [..., m, B] for as many numbers in [0, 1), each from the member's own shard."""
        place = torch.from_numpy((uniform * self.shards.sizes[members][:, None]).astype(np.int64)).to(self._device)
        own = self.shards.table[torch.from_numpy(members).to(self._device)]
        return own.expand(*place.shape[:-1], -1).gather(-1, place)

    def state(self) -> dict[str, Tensor]:
        """Weights, power-iteration vectors and optimizer state of all critics."""
        return self.critics.tensors()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self._clear_slots()
        for name, value in self.state().items():
            value.copy_(tensors[name])


def chunks_of(critics: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Critics in chunks of one size; the last is filled up with copies, and `real` says how many count."""
    for start in range(0, len(critics), size):
        members = critics[start : start + size]
        yield np.resize(members, size), len(members)
