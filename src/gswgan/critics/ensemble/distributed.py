"""One ensemble in several processes (ranks): each holds some of the critics and their partitions on its own device.

    torchrun --nproc-per-node 2 -m gswgan train --preset ensemble --data mnist --out RUN

Rank 0 has the run folder, the ledger and the generator. In a step it draws who takes part, and sends that and the same
fakes to all ranks. Each rank updates its participants and clips and sums their gradients on the mechanism's grid, in
integers. The sums are added up, and rank 0 alone records the answer and adds the noise, once. So the answer does not
depend on how the critics are distributed.

Commands, fakes (public), participation, clipped sums and the critics' states are sent between processes. Records are
not: each rank reads the data itself and keeps the records of its own partitions.
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
from gswgan.privacy.mechanism import Answer, Block, ClippedSum, clipped_sum

TIMEOUT = timedelta(hours=2)
"""How long a rank waits for the others, which may be in the warm start.

When a process ends, torchrun ends the others, and gloo mostly notices it at once; this time is the last resort.
"""

P = ParamSpec("P")
R = TypeVar("R")


def _checked(method: Callable[P, R]) -> Callable[P, R]:
    """Raise a RunError in place of the RuntimeError that torch raises when another rank has ended."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except RuntimeError as wrong:
            raise RunError(
                "ranks", "one of them has ended", "all of them to the end",
                "Nothing that was released is lost: give the command again with --resume RUN, with as many ranks as "
                "you like.",
            ) from wrong  # fmt: skip

    return call


class Ranks:
    """The processes of a run and their messages: a tensor is sent by its device (gloo, or NCCL)."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.where: dict[str, Any] = {}  # where the data is: arguments of the reader

    def held(self, count: int, rank: int | None = None) -> range:
        """Return the critics of a rank; the numbers of two ranks differ by at most one."""
        rank = self.rank if rank is None else rank
        return range(count * rank // self.world, count * (rank + 1) // self.world)

    @_checked
    def broadcast(self, **command: Any) -> None:
        """Send the next command from rank 0 to all others, as JSON."""
        text = torch.frombuffer(bytearray(json.dumps(command).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(text)]), 0)
        dist.broadcast(text, 0)

    @_checked
    def receive(self) -> dict[str, Any]:
        """Wait for a command from rank 0."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, 0)
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(text, 0)
        command = dict(json.loads(text.numpy().tobytes()))
        if command["do"] == "end":
            dist.barrier()  # nobody leaves while another still reads
        return command

    @_checked
    def broadcast_tensor(self, value: Tensor) -> Tensor:
        """Return rank 0's tensor at all ranks; at the others `value` has its shape and is overwritten."""
        value = value.contiguous()
        dist.broadcast(value, 0)
        return value

    @_checked
    def all_reduce(self, total: NDArray[np.int64], device: torch.device) -> NDArray[np.int64]:
        """Return the sum over all ranks; sums of integers are exact in any order."""
        value = torch.from_numpy(total).to(device)
        dist.all_reduce(value)
        return np.asarray(value.cpu().numpy())

    @_checked
    def gather(self, own: Tensor, count: int) -> Tensor:
        """Return a state tensor of all critics at rank 0; `own` has that of the critics of this rank."""
        own = own.detach().cpu().contiguous()
        if self.rank:
            dist.send(own, 0)
            return own
        parts = [own]
        for rank in range(1, self.world):
            parts.append(own.new_empty((len(self.held(count, rank)), *own.shape[1:])))
            dist.recv(parts[-1], rank)
        return torch.cat(parts)

    @_checked
    def scatter(self, whole: Tensor | None, own: Tensor, count: int) -> Tensor:
        """Return each rank's part of rank 0's `whole`, the inverse of `gather`; `own` has the shape of the part."""
        if self.rank or whole is None:
            part = torch.empty_like(own, device="cpu")
            dist.recv(part, 0)
            return part
        for rank in range(1, self.world):
            held = self.held(count, rank)
            dist.send(whole[held.start : held.stop].contiguous(), rank)
        held = self.held(count)
        return whole[held.start : held.stop]

    @_checked
    def barrier(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier()

    def end(self) -> None:
        """Tell the others, from rank 0, that the run is over; leave the process group at every rank."""
        with suppress(RunError):
            if self.rank == 0:
                self.broadcast(do="end")
                self.barrier()
        dist.destroy_process_group()


@cache
def current() -> Ranks | None:
    """Return the ranks of this process group where torchrun started this process; each rank takes its own GPU."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=TIMEOUT)
    return Ranks(dist.get_rank(), dist.get_world_size())


class AllReduceMechanism(GaussianMechanism):
    """The mechanism of rank 0: its answers are noisy sums over all ranks."""

    def __init__(self, ranks: Ranks, device: torch.device, **parts: Any) -> None:
        super().__init__(**parts)
        self._ranks, self._device = ranks, device

    def participants(self, name: str, count: int) -> NDArray[np.int64]:
        """Draw who takes part and send it to all other ranks."""
        drawn = super().participants(name, count)
        self._ranks.broadcast_tensor(torch.from_numpy(np.isin(np.arange(count), drawn)).to(torch.uint8))
        return drawn

    def _sum(self, blocks: Iterable[Block] | ClippedSum, slots: int, width: int) -> NDArray[np.int64]:
        return self._ranks.all_reduce(super()._sum(blocks, slots, width), self._device)


class PartialSum:
    """The mechanism of the other ranks: it draws no coins and no noise. Their clipped sums go to rank 0."""

    def __init__(self, ranks: Ranks, device: torch.device, contribution: Contribution, event: BaseEvent) -> None:
        self.contribution, self.event = contribution, event
        self._ranks, self._device = ranks, device

    def participants(self, name: str, count: int) -> NDArray[np.int64]:
        """Receive who takes part from rank 0."""
        return np.flatnonzero(self._ranks.broadcast_tensor(torch.zeros(count, dtype=torch.uint8)).numpy())

    def answer(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Answer:
        """Add the sum of this rank to that of all; return zeros, since the answer is at rank 0."""
        self._ranks.all_reduce(clipped_sum(blocks, self.contribution, slots=slots, width=width).total, self._device)
        return Answer(sums=np.zeros((slots, width)), counts=None)


class _BroadcastFakes:
    """The generator of rank 0, whose fakes are sent to the other ranks."""

    def __init__(self, ranks: Ranks, generator: Generator) -> None:
        self._ranks, self._generator = ranks, generator

    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        images, labels = self._generator.fakes(count, *index)
        return self._ranks.broadcast_tensor(images), self._ranks.broadcast_tensor(labels)


class _ReceivedFakes:
    """The generator of the other ranks: it receives the fakes of rank 0."""

    def __init__(self, ranks: Ranks, shape: CriticShape, device: torch.device) -> None:
        self._ranks, self._shape, self._device = ranks, shape, device

    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        side, channels = self._shape.image_size, self._shape.channels
        images = torch.empty(count, channels, side, side, device=self._device)
        labels = torch.empty(count, dtype=torch.int64, device=self._device)
        return self._ranks.broadcast_tensor(images), self._ranks.broadcast_tensor(labels)


class DistributedEnsemble(Critic):
    """The critic of rank 0: its own part of the ensemble, and commands to the ranks that hold the rest."""

    def __init__(self, ranks: Ranks, part: Ensemble) -> None:
        self._ranks, self.part, self.shape, self.count = ranks, part, part.shape, part.count

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Let every rank prepare its own critics."""
        self._ranks.broadcast(do="prepare", resumed=resumed)
        self.part.prepare(data, resumed=resumed)
        self._ranks.barrier()

    def learn(self, step: int, generator: Generator) -> None:
        """Let the participants of every rank learn against the same fakes."""
        self._ranks.broadcast(do="learn", step=step)
        self.part.learn(step, _BroadcastFakes(self._ranks, generator))  # type: ignore[arg-type]

    def catch_up(self, times: int, generator: Generator) -> None:
        """Let every critic learn, as in `times` steps."""
        self._ranks.broadcast(do="catch up", times=times)
        self.part.catch_up(times, _BroadcastFakes(self._ranks, generator))  # type: ignore[arg-type]

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Return the sanitized gradient over the participants of all ranks: the step's one answer."""
        self._ranks.broadcast(do="gradient", count=len(fake))
        images = self._ranks.broadcast_tensor(fake.detach())
        return self.part.upstream_gradient(images, self._ranks.broadcast_tensor(labels))

    def metrics(self) -> dict[str, Any]:
        """Return figures of the critics of rank 0 alone."""
        return self.part.metrics()

    def state(self) -> dict[str, Tensor]:
        """Return the state of all critics, as a single process would: a run may resume with another number of ranks."""
        self._ranks.broadcast(do="state")
        return {name: self._ranks.gather(own, self.count) for name, own in self.part.state().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._ranks.broadcast(do="load")
        own = self.part.state()
        self.part.load_state({name: self._ranks.scatter(tensors[name], own[name], self.count) for name in own})


def worker_loop(ranks: Ranks, part: Ensemble, data: ImageData, device: torch.device) -> None:
    """Hold some of the critics at a rank other than 0 and follow the commands of rank 0 until the run is over."""
    seen = _ReceivedFakes(ranks, part.shape, device)
    while (command := ranks.receive())["do"] != "end":
        if command["do"] == "prepare":
            part.prepare(data, resumed=command["resumed"])
            ranks.barrier()
        elif command["do"] == "learn":
            part.learn(command["step"], seen)  # type: ignore[arg-type]
        elif command["do"] == "catch up":
            part.catch_up(command["times"], seen)  # type: ignore[arg-type]
        elif command["do"] == "gradient":
            part.upstream_gradient(*seen.fakes(command["count"]))
        elif command["do"] == "state":
            for own in part.state().values():
                ranks.gather(own, part.count)
        elif command["do"] == "load":
            parts = part.state()
            part.load_state({name: ranks.scatter(None, parts[name], part.count) for name in parts})
