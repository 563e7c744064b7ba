"""One ensemble in several processes (ranks): each holds some of the critics, with their shards, on its own device.

    torchrun --nproc-per-node 2 -m gswgan train --preset ensemble --data mnist --out RUN

Rank 0 has the run: folder, ledger, generator. In a step it draws who takes part, and sends that and the same fakes to
all; participants learn and judge where they are; every rank clips and sums its own on the mechanism's grid, in
integers; the sums are added up, and rank 0 alone records the release and adds the noise, once. So the release does not
depend on how critics are spread.

What travels: orders and fakes (public), who takes part, clipped sums, and the critics' states when they are saved or
loaded. Records never do: each rank reads the data itself and keeps those of its own shards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.network import CriticShape
from gswgan.data import ImageData
from gswgan.errors import RunError
from gswgan.generators.generator import Generator
from gswgan.privacy import Contribution, GaussianMechanism
from gswgan.privacy.events import BaseEvent
from gswgan.privacy.mechanism import Block, ClippedSum, Released, clipped_sum

PATIENCE = timedelta(hours=2)
"""How long a rank waits for the others, which may be warming up. A process that ends is noticed at once."""

P = ParamSpec("P")
R = TypeVar("R")


def _in_touch(method: Callable[P, R]) -> Callable[P, R]:
    """What the library raises when another rank is gone, in words."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except RuntimeError as wrong:
            raise RunError(
                "ranks", "one of them is gone", "all of them to the end",
                "Nothing that was released is lost: give the command again with --resume RUN, with as many ranks as "
                "you like.",
            ) from wrong  # fmt: skip

    return call


class Ranks:
    """The processes of a run and how they talk: tensors go by the device that they are on (gloo, or NCCL)."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.where: dict[str, Any] = {}  # the data is

    def held(self, count: int, rank: int | None = None) -> range:
        """The critics of a rank: as many each, or one more."""
        rank = self.rank if rank is None else rank
        return range(count * rank // self.world, count * (rank + 1) // self.world)

    @_in_touch
    def tell(self, **order: Any) -> None:
        """Rank 0 tells all others what comes next, as JSON."""
        text = torch.frombuffer(bytearray(json.dumps(order).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(text)]), 0)
        dist.broadcast(text, 0)

    @_in_touch
    def hear(self) -> dict[str, Any]:
        """What rank 0 tells."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, 0)
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(text, 0)
        return dict(json.loads(text.numpy().tobytes()))

    @_in_touch
    def share(self, value: Tensor) -> Tensor:
        """Rank 0's tensor, at all ranks; elsewhere `value` is of the same shape and becomes it."""
        value = value.contiguous()
        dist.broadcast(value, 0)
        return value

    @_in_touch
    def add(self, total: NDArray[np.int64], device: torch.device) -> NDArray[np.int64]:
        """The sum over all ranks; exact, since integers have no order of summation."""
        value = torch.from_numpy(total).to(device)
        dist.all_reduce(value)
        return np.asarray(value.cpu().numpy())

    @_in_touch
    def collect(self, own: Tensor, count: int) -> Tensor:
        """All critics' part of a state, in rank 0's memory; `own` has that of the critics here."""
        own = own.detach().cpu().contiguous()
        if self.rank:
            dist.send(own, 0)
            return own
        parts = [own]
        for rank in range(1, self.world):
            parts.append(own.new_empty((len(self.held(count, rank)), *own.shape[1:])))
            dist.recv(parts[-1], rank)
        return torch.cat(parts)

    @_in_touch
    def deal(self, whole: Tensor | None, own: Tensor, count: int) -> Tensor:
        """The inverse of `collect`: each rank's part of what rank 0 has; elsewhere `own` is a part of its shape."""
        if self.rank or whole is None:
            part = torch.empty_like(own, device="cpu")
            dist.recv(part, 0)
            return part
        for rank in range(1, self.world):
            held = self.held(count, rank)
            dist.send(whole[held.start : held.stop].contiguous(), rank)
        held = self.held(count)
        return whole[held.start : held.stop]

    @_in_touch
    def wait(self) -> None:
        """Until all are here."""
        dist.barrier()

    def end(self) -> None:
        """Rank 0: nobody is needed any more. Then, everywhere: hang up."""
        with suppress(RunError):
            if self.rank == 0:
                self.tell(do="end")
        dist.destroy_process_group()


@cache
def ours() -> Ranks | None:
    """The ranks of this process, where torchrun has started it; on a GPU each rank takes its own."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())


class AllReduceMechanism(GaussianMechanism):
    """Rank 0's mechanism: what it releases is the sum over all ranks."""

    def __init__(self, ranks: Ranks, device: torch.device, **parts: Any) -> None:
        super().__init__(**parts)
        self._ranks, self._device = ranks, device

    def participants(self, name: str, count: int) -> NDArray[np.int64]:
        """Drawn here, and told to all other ranks."""
        drawn = super().participants(name, count)
        self._ranks.share(torch.from_numpy(np.isin(np.arange(count), drawn)).to(torch.uint8))
        return drawn

    def _sum(self, blocks: Iterable[Block] | ClippedSum, slots: int, width: int) -> NDArray[np.int64]:
        return self._ranks.add(super()._sum(blocks, slots, width), self._device)


class PartialSum:
    """The other ranks' mechanism: it draws nobody and releases nothing. Their clipped sums go to rank 0."""

    def __init__(self, ranks: Ranks, device: torch.device, contribution: Contribution, event: BaseEvent) -> None:
        self.contribution, self.event = contribution, event
        self._ranks, self._device = ranks, device

    def participants(self, name: str, count: int) -> NDArray[np.int64]:
        """As rank 0 has drawn."""
        return np.flatnonzero(self._ranks.share(torch.zeros(count, dtype=torch.uint8)).numpy())

    def release(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Released:
        """Add what is here to the sum. What comes of it is rank 0's."""
        self._ranks.add(clipped_sum(blocks, self.contribution, slots=slots, width=width).total, self._device)
        return Released(sums=np.zeros((slots, width)), counts=None)


class _BroadcastFakes:
    """Rank 0's generator, whose fakes the other ranks see as well."""

    def __init__(self, ranks: Ranks, generator: Generator) -> None:
        self._ranks, self._generator = ranks, generator

    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        images, labels = self._generator.fakes(count, *index)
        return self._ranks.share(images), self._ranks.share(labels)


class _ReceivedFakes:
    """What the other ranks have in a generator's place."""

    def __init__(self, ranks: Ranks, shape: CriticShape, device: torch.device) -> None:
        self._ranks, self._shape, self._device = ranks, shape, device

    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        side, channels = self._shape.image_size, self._shape.channels
        images = torch.empty(count, channels, side, side, device=self._device)
        labels = torch.empty(count, dtype=torch.int64, device=self._device)
        return self._ranks.share(images), self._ranks.share(labels)


class SpreadEnsemble(Critic):
    """Rank 0's critic: its own part of the ensemble, and the orders to those who hold the rest."""

    def __init__(self, ranks: Ranks, part: Ensemble) -> None:
        self._ranks, self.part, self.shape, self.count = ranks, part, part.shape, part.count

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Every rank cuts its own shards and warms up its own critics."""
        self._ranks.tell(do="prepare", resumed=resumed)
        self.part.prepare(data, resumed=resumed)
        self._ranks.wait()

    def learn(self, step: int, generator: Generator) -> None:
        """The participants learn where they are, against the same fakes."""
        self._ranks.tell(do="learn", step=step)
        self.part.learn(step, _BroadcastFakes(self._ranks, generator))  # type: ignore[arg-type]

    def catch_up(self, times: int, generator: Generator) -> None:
        """Everybody learns."""
        self._ranks.tell(do="catch up", times=times)
        self.part.catch_up(times, _BroadcastFakes(self._ranks, generator))  # type: ignore[arg-type]

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The step's one release."""
        self._ranks.tell(do="judge", count=len(fake))
        images = self._ranks.share(fake.detach())
        return self.part.upstream_gradient(images, self._ranks.share(labels))

    def metrics(self) -> dict[str, Any]:
        """Of the critics of rank 0 alone."""
        return self.part.metrics()

    def state(self) -> dict[str, Tensor]:
        """Of all critics, as one process would have it: a run may go on with another number of ranks."""
        self._ranks.tell(do="state")
        return {name: self._ranks.collect(own, self.count) for name, own in self.part.state().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self._ranks.tell(do="load")
        own = self.part.state()
        self.part.load_state({name: self._ranks.deal(tensors[name], own[name], self.count) for name in own})


def worker_loop(ranks: Ranks, part: Ensemble, data: ImageData, device: torch.device) -> None:
    """A rank other than 0: hold some of the critics and do as rank 0 says, until it says that it is over."""
    seen = _ReceivedFakes(ranks, part.shape, device)
    while (order := ranks.hear())["do"] != "end":
        if order["do"] == "prepare":
            part.prepare(data, resumed=order["resumed"])
            ranks.wait()
        elif order["do"] == "learn":
            part.learn(order["step"], seen)  # type: ignore[arg-type]
        elif order["do"] == "catch up":
            part.catch_up(order["times"], seen)  # type: ignore[arg-type]
        elif order["do"] == "judge":
            part.upstream_gradient(*seen.fakes(order["count"]))
        elif order["do"] == "state":
            for own in part.state().values():
                ranks.collect(own, part.count)
        elif order["do"] == "load":
            parts = part.state()
            part.load_state({name: ranks.deal(None, parts[name], part.count) for name in parts})
