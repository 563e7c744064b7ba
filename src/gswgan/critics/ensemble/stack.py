"""Critics in memory: stacks of tensors with a leading axis of critics, and slots at fixed addresses for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.adam import AdamState, init_adam, named_tensors
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
        """Draw the untrained critics with these numbers."""
        params, buffers = init_critics(shape, len(numbers), first=numbers.start, seed=seed, device=device)
        return cls(params=params, buffers=buffers, adam=init_adam(params))

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it by name: the tensors themselves, not copies."""
        return named_tensors(self.adam, params=self.params, buffers=self.buffers)

    def copy(self, members: np.ndarray) -> Stack:
        """Return a copy of these critics."""
        index = self._index(members)

        def take(part: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value[index] for name, value in part.items()}

        means, squares = take(self.adam.exp_avg), take(self.adam.exp_avg_sq)
        adam = AdamState(exp_avg=means, exp_avg_sq=squares, steps=self.adam.steps[index])
        return Stack(params=take(self.params), buffers=take(self.buffers), adam=adam)

    def read(self, source: Stack, members: np.ndarray) -> None:
        """Copy these critics of another stack into this one."""
        index = source._index(members)
        for mine, theirs in zip(self.tensors().values(), source.tensors().values()):
            torch.index_select(theirs, 0, index, out=mine)

    def write(self, members: np.ndarray, part: Stack) -> None:
        """Copy the first critics of another stack into these places; the rest of that stack is padding."""
        index = self._index(members)
        for mine, theirs in zip(self.tensors().values(), part.tensors().values()):
            mine.index_copy_(0, index, theirs[: len(members)])

    def _index(self, members: np.ndarray) -> Tensor:
        return torch.from_numpy(members).to(self.adam.steps.device)


class GraphSlots:
    """Some critics at a fixed place in memory, so that their work can be captured as a CUDA graph (`Captured`)."""

    def __init__(self, critics: Stack, learn: Callable[..., Tensor], gradients: Callable[..., Tensor]) -> None:
        """Both functions take the stack first: `learn` updates it in place, `gradients` only reads it."""
        self.critics, self._members = critics, np.empty(0, np.int64)
        self._learn = Captured(lambda *batches: learn(critics, *batches))
        self._gradients = Captured(lambda *batch: gradients(critics, *batch))

    @property
    def is_recorded(self) -> bool:
        """Whether learning is the replay of a graph by now, which needs no further memory."""
        return self._learn.is_recorded

    def load(self, source: Stack, members: np.ndarray) -> None:
        """Copy these critics into the slots, unless they are there already.

        The caller has written the critics in the slots back to `source` after their last update.
        """
        if not np.array_equal(members, self._members):
            self.critics.read(source, members)
            self._members = members.copy()

    def learn(self, *batches: Tensor) -> Tensor:
        """Update the critics in place and return the loss of each in the last update."""
        loss = self._learn(*batches)
        assert loss is not None
        return loss

    def input_gradients(self, *batch: Tensor) -> Tensor:
        """Return the gradients of each critic with respect to one batch of fakes."""
        gradients = self._gradients(*batch)
        assert gradients is not None
        return gradients


def halved(size: int, wrong: torch.OutOfMemoryError, note: Callable[[str], None]) -> int:
    """Return half of `size` critics per chunk after the device ran out of memory; raise an error if it is 1 already."""
    if size == 1:
        raise RunError(
            "critics at a time", 1, "memory for one of them on the device",
            "No answer that was recorded is lost. Free memory there, or pass --device cpu, and resume.",
        ) from wrong  # fmt: skip
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    note(f"out of memory: {(size + 1) // 2} critics at a time from now on")
    return (size + 1) // 2
