"""Critics in memory: a stack of them, as tensors with a leading axis of critics, and the slots where some work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.adam import AdamState, init_adam
from gswgan.critics.ensemble.network import Buffers, CriticShape, Parameters, init_critics
from gswgan.errors import RunError
from gswgan.generators.cuda_graphs import Captured


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Weights, power-iteration vectors and optimizer state of some critics."""

    params: Parameters
    buffers: Buffers
    adam: AdamState

    @classmethod
    def drawn(cls, shape: CriticShape, numbers: range, seed: int, device: torch.device) -> Stack:
        """Critics with these numbers that have learnt nothing yet."""
        params, buffers = init_critics(shape, len(numbers), first=numbers.start, seed=seed, device=device)
        return cls(params=params, buffers=buffers, adam=init_adam(params))

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name; the tensors themselves, not copies."""
        groups = {"params": self.params, "buffers": self.buffers}
        groups |= {"exp_avg": self.adam.exp_avg, "exp_avg_sq": self.adam.exp_avg_sq}
        named = {f"{group}/{name}": value for group, part in groups.items() for name, value in part.items()}
        return named | {"steps": self.adam.steps}

    def copy(self, members: np.ndarray) -> Stack:
        """These critics, in memory of their own."""
        index = self._index(members)

        def take(part: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value[index] for name, value in part.items()}

        means, squares = take(self.adam.exp_avg), take(self.adam.exp_avg_sq)
        adam = AdamState(exp_avg=means, exp_avg_sq=squares, steps=self.adam.steps[index])
        return Stack(params=take(self.params), buffers=take(self.buffers), adam=adam)

    def read(self, source: Stack, members: np.ndarray) -> None:
        """Become copies of these critics of another stack."""
        index = source._index(members)
        for mine, theirs in zip(self.tensors().values(), source.tensors().values()):
            torch.index_select(theirs, 0, index, out=mine)

    def write(self, members: np.ndarray, part: Stack) -> None:
        """Take over the first critics of another stack as these ones; what follows there was to fill it up."""
        index = self._index(members)
        for mine, theirs in zip(self.tensors().values(), part.tensors().values()):
            mine.index_copy_(0, index, theirs[: len(members)])

    def _index(self, members: np.ndarray) -> Tensor:
        return torch.from_numpy(members).to(self.adam.steps.device)


class GraphSlots:
    """Some critics at a fixed place in memory, so that what they do can be recorded; `Captured` says how."""

    def __init__(self, critics: Stack, learn: Callable[..., Tensor], judge: Callable[..., Tensor]) -> None:
        self.critics, self._members = critics, np.empty(0, np.int64)
        self._learn = Captured(lambda *batches: learn(critics, *batches))
        self._judge = Captured(lambda *batch: judge(critics, *batch))

    @property
    def is_recorded(self) -> bool:
        """Whether learning is a replay by now, which takes no more memory than it has."""
        return self._learn.is_recorded

    def load(self, source: Stack, members: np.ndarray) -> None:
        """Have these critics on the slots: those who sit there already are as in `source`, if their work is written."""
        if not np.array_equal(members, self._members):
            self.critics.read(source, members)
            self._members = members.copy()

    def learn(self, *batches: Tensor) -> Tensor:
        """The updates, in place; gives the loss of each critic in the last one."""
        loss = self._learn(*batches)
        assert loss is not None
        return loss

    def judge(self, *batch: Tensor) -> Tensor:
        """What each of the critics says to one batch."""
        answers = self._judge(*batch)
        assert answers is not None
        return answers


def halved(size: int, wrong: torch.OutOfMemoryError, note: Callable[[str], None]) -> int:
    """Half of so many critics at a time, after the device has run out of memory; an error where it is one already."""
    if size == 1:
        raise RunError(
            "critics at a time", 1, "memory for one of them on the device",
            "Nothing that was released is lost. Free memory there, or pass --device cpu, and resume.",
        ) from wrong  # fmt: skip
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    note(f"out of memory: {(size + 1) // 2} critics at a time from now on")
    return (size + 1) // 2
