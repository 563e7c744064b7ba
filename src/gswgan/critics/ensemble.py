"""The ensemble of critics: GS-WGAN proper. K networks, one for each disjoint shard of the data, as one batched model.

In step t each critic takes part by its own secret coin (or exactly one is drawn, as the paper does); participants
learn on their own shard; all of them judge the same fakes; their clipped gradients are summed, one Gaussian draw
is added, and the sum is divided by the fixed number rate x K.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.adam import AdamState, adam_step, init_adam
from gswgan.critics.loss import critic_gradients, generator_gradient
from gswgan.critics.network import CriticShape, init_critics, power_iteration
from gswgan.critics.warm_start import LocalGenerators, Stopped, TimeLeft, WarmStart
from gswgan.data import ImageData, partition, partition_persons
from gswgan.generators.generator import Generator
from gswgan.privacy import GaussianMechanism, Streams
from gswgan.privacy.events import Sampling
from gswgan.privacy.mechanism import Block

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""What the private log keeps of a step's gradient norms (the paper's figures 2 and A.1)."""

AT_ONCE = 64
"""Critics that are updated together at the most: bounds memory."""


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


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Which records each critic may see: table [K, most], of which the first sizes[k] of row k count."""

    table: Tensor
    sizes: np.ndarray

    @classmethod
    def of(cls, data: ImageData, count: int, seed: int, device: torch.device) -> Shards:
        """By index alone (or by person), so that one record's content never moves another record."""
        if data.persons is None:
            parts: list[np.ndarray] = list(partition(data.n, count, seed=seed).indices)
        else:
            parts = list(partition_persons(data.persons, count, seed=seed, number=data.number_of_persons).indices)
        sizes = np.array([len(part) for part in parts])
        table = np.stack([np.resize(part, sizes.max()) for part in parts])
        return cls(table=torch.from_numpy(table).to(device), sizes=sizes)


class Ensemble:
    """K critics behind the barrier; `upstream_gradient` is the only way out."""

    can_be_captured = False  # every answer passes the ledger

    def __init__(
        self,
        settings: EnsembleSettings,
        shape: CriticShape,
        mechanism: GaussianMechanism,
        *,
        count: int,
        sampling: Sampling,
        rate: float,
        public: Streams,
        secret: Streams,
        device: torch.device,
        warm_start: WarmStart | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.settings, self.shape, self.count = settings, shape, count
        self._mechanism, self._public, self._secret = mechanism, public, secret
        self._sampling, self._rate, self._device = sampling, rate, device
        self._warm_start, self._note = warm_start, note
        self.params, self.buffers = init_critics(shape, count, seed=public.integer("critic weights"), device=device)
        self.adam = init_adam(self.params)
        self._images = self._labels = self._loss = torch.zeros(1)
        self._step, self._participants = 0, np.empty(0, np.int64)
        self._norms: list[Tensor] = []
        expected = 1.0 if sampling == "one" else rate * count
        usual = math.ceil(min(count, expected + 2 * math.sqrt(expected * (1 - rate))))
        self.chunk = math.ceil(usual / math.ceil(usual / AT_ONCE))  # one fixed size: kernels never vary

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Cut the shards, put the data on the device, warm up. Nothing leaves."""
        assert data is not None, "critics learn from data"
        self.shards = Shards.of(data, self.count, self._public.integer("partition"), self._device)
        self._images = torch.from_numpy(data.images).to(self._device)
        labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
        labels = labels.clip(0, self.shape.classes - 1)  # total: no label raises, and it concerns its own record alone
        self._labels = torch.from_numpy(labels).to(self._device)
        if self._warm_start is not None and not resumed:
            self._warm_up(self._warm_start)

    def learn(self, step: int, generator: Generator) -> None:
        """Draw who takes part in this step; participants make n_dis updates, each on its own shard."""
        self._step, self._participants = step, self.draw_participants(step)
        options, size = self.settings, self.settings.learning_batch
        names = [(step, update if options.fakes_per_step == "fresh" else 0) for update in range(options.updates)]
        fakes = {name: self._fakes_by_class(generator, name) for name in dict.fromkeys(names)}
        rng = self._secret.generator("batch", step)
        picks = rng.random((options.updates, self.count, size))  # for all critics: nobody's draw depends on others
        mixes = rng.random((options.updates, self.count, size), dtype=np.float32)
        for members, real in _chunks(self._participants, self.chunk):
            params, buffers, adam = self._gather(members)
            for update, name in enumerate(names):
                rows = self._records(members, picks[update, members])
                pool = fakes[name]
                fake = pool[self._labels[rows], torch.arange(size, device=self._device) % pool.shape[1]]
                buffers = self._update(rows, params, buffers, adam, fake, mixes[update, members])
            self._scatter(members[:real], params, buffers, adam)

    def _fakes_by_class(self, generator: Generator, name: tuple[int, int]) -> Tensor:
        """A public pool of fakes, [classes, some, c, h, w]: each record meets a fake of its own class in it."""
        size, classes = self.settings.learning_batch, self.shape.classes
        some = max(2, min(size, max(8, 2 * math.ceil(size / classes))))
        images, labels = generator.fakes(classes * some, "critics", *name)
        return images[labels.argsort(stable=True)].unflatten(0, (classes, some))

    def _update(
        self,
        rows: Tensor,
        params: dict[str, Tensor],
        buffers: dict[str, Tensor],
        adam: AdamState,
        fake: Tensor,
        mixes: np.ndarray,
    ) -> dict[str, Tensor]:
        """theta_D^k <- theta_D^k - eta_D grad L_D for each member k, on records of its own shard; in place.

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
            torch.from_numpy(mixes).to(self._device),
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
        chunks = list(_chunks(np.arange(self.count), min(AT_ONCE, self.count)))
        total = len(chunks) * warm.iterations
        done, saved = (warm.store.load() if warm.store is not None else None) or (0, {})
        if saved:
            self.load_state(saved["critics"])
        progress = TimeLeft(total, done, self._note)
        for number, (members, real) in enumerate(chunks):
            first = number * warm.iterations  # iterations of the chunks before this one
            if done >= first + warm.iterations:
                continue
            params, buffers, adam = self._gather(members)
            local = LocalGenerators(
                warm.generator,
                members,
                classes=shape.classes,
                channels=shape.channels,
                image_size=shape.image_size,
                public=self._public,
                device=self._device,
            )
            if done > first:
                local.load_state(saved["local generators"])
            for step in range(done - first, warm.iterations):
                progress.tell(done)
                rng = self._secret.generator("warm start", int(members[0]), step)
                for _ in range(options.updates):
                    rows = self._records(members, rng.random((len(members), options.learning_batch)))
                    with torch.no_grad():
                        fake = local(local.params, local.codes(rng, options.learning_batch), self._labels[rows])
                    mixes = rng.random((len(members), options.learning_batch), dtype=np.float32)
                    buffers = self._update(rows, params, buffers, adam, fake, mixes)
                rows = self._records(members, rng.random((len(members), options.learning_batch)))
                codes = local.codes(rng, options.learning_batch)
                local.descend(
                    params, buffers, codes, self._labels[rows], learning_rate=warm.learning_rate, betas=warm.betas
                )
                done, stop = done + 1, warm.stopped()
                if warm.store is not None and (stop or done == total or warm.store.is_due()):
                    self._scatter(members[:real], params, buffers, adam)
                    warm.store.save(done, {"critics": self.state(), "local generators": local.state()})
                if stop:
                    raise Stopped
            self._scatter(members[:real], params, buffers, adam)

    def draw_participants(self, step: int) -> np.ndarray:
        """Who takes part: independent secret coins (Poisson), everyone, or the paper's k ~ U[1, K]."""
        if self._sampling == "one":
            (word,) = self._secret.words(1, "participation", step)
            return np.array([int(word) % self.count])
        return np.flatnonzero(self._secret.bernoulli(self.count, self._rate, "participation", step))

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """M_{sigma,C} of the sum of the participants' gradients on the same fakes: the step's one release."""
        images = fake.detach()
        released = self._mechanism.release(
            f"step {self._step}", self._blocks(images, labels), slots=len(images), width=images[0].numel()
        )
        expected = 1.0 if self._sampling == "one" else self._rate * self.count
        mean = torch.from_numpy(released.sums / expected).to(torch.float32)
        return mean.view(images.shape).to(self._device)

    def metrics(self) -> dict[str, Any]:
        """The last step: how many took part, the loss of its last chunk, QUANTILES of the norms of their gradients."""
        found: dict[str, Any] = {"participants": len(self._participants), "critic_loss": float(self._loss.mean())}
        if self._norms:
            norms = torch.cat(self._norms).flatten().double().nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
            after = norms.clip(max=self._mechanism.contribution.clip_norm)
            found["norm_before"] = np.quantile(norms, QUANTILES).tolist()
            found["norm_after"] = np.quantile(after, QUANTILES).tolist()
        return found

    def state(self) -> dict[str, Tensor]:
        """Weights, power-iteration vectors and optimizer state of all critics."""
        groups = {"params": self.params, "buffers": self.buffers}
        groups |= {"exp_avg": self.adam.exp_avg, "exp_avg_sq": self.adam.exp_avg_sq}
        tensors = {f"{group}/{name}": value for group, part in groups.items() for name, value in part.items()}
        return tensors | {"steps": self.adam.steps}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name, value in self.state().items():
            value.copy_(tensors[name])

    def _blocks(self, images: Tensor, labels: Tensor) -> Iterator[Block]:
        self._norms = []
        for members, real in _chunks(self._participants, self.chunk):
            rows = self.judge(members, images, labels)[:real].flatten(2)
            self._norms.append(rows.norm(dim=2))
            yield rows, None

    def judge(self, members: np.ndarray, images: Tensor, labels: Tensor) -> Tensor:
        """Gradient of each member's judgement with respect to each fake, [m, B, c, h, w]: private, not yet clipped."""
        params, buffers, _ = self._gather(members)
        return generator_gradient(params, buffers, images, labels, self.settings.compute_dtype)

    def _records(self, members: np.ndarray, uniform: np.ndarray) -> Tensor:
        """Record indices [m, B], each from the member's own shard."""
        place = (uniform * self.shards.sizes[members][:, None]).astype(np.int64)
        own = self.shards.table[torch.from_numpy(members).to(self._device)]
        return own.gather(1, torch.from_numpy(place).to(self._device))

    def _gather(self, members: np.ndarray) -> tuple[dict[str, Tensor], dict[str, Tensor], AdamState]:
        index = torch.from_numpy(members).to(self._device)

        def take(stack: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value[index] for name, value in stack.items()}

        adam = self.adam
        state = AdamState(exp_avg=take(adam.exp_avg), exp_avg_sq=take(adam.exp_avg_sq), steps=adam.steps[index])
        return take(self.params), take(self.buffers), state

    def _scatter(
        self, members: np.ndarray, params: dict[str, Tensor], buffers: dict[str, Tensor], adam: AdamState
    ) -> None:
        index, real = torch.from_numpy(members).to(self._device), len(members)
        pairs = [(self.params, params), (self.buffers, buffers)]
        pairs += [(self.adam.exp_avg, adam.exp_avg), (self.adam.exp_avg_sq, adam.exp_avg_sq)]
        for stack, part in pairs:
            for name, value in part.items():
                stack[name][index] = value[:real]
        self.adam.steps[index] = adam.steps[:real]


def _chunks(critics: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Critics in chunks of one size; the last is filled up with copies, and `real` says how many count."""
    for start in range(0, len(critics), size):
        members = critics[start : start + size]
        yield np.resize(members, size), len(members)
