"""The generator's step around a critic that answers outside the device: recorded in two parts, before and after.

The answer of an ensemble passes the ledger, which no recording can hold. What comes before it, G(z), and what comes
after, the descent, are recorded; the second part goes backward through what the first has left in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.generators.cuda_graphs import EAGER, Captured, aside, recorded_into
from gswgan.generators.generator import Generator


def captured_step(
    update: Callable[[Tensor, Tensor], None], generator: Generator, critic: Critic
) -> Callable[[Tensor, Tensor], object]:
    """Return `update`, one step of the generator against the critic, recorded as a whole where the critic allows it."""
    alone, around = Captured(update), CapturedAround(generator, critic)
    return lambda codes, labels: (alone if critic.can_be_captured else around)(codes, labels)


class CapturedAround:
    """One step of the generator against the critic, as a function of codes and labels whose shapes never change."""

    def __init__(self, generator: Generator, critic: Critic) -> None:
        self._generator, self._critic, self._calls = generator, critic, 0
        self._forward: torch.cuda.CUDAGraph | None = None
        self._descent: torch.cuda.CUDAGraph | None = None
        self._codes = self._labels = self._fake = self._upstream = torch.zeros(0)

    def __call__(self, codes: Tensor, labels: Tensor) -> None:
        """Do the step."""
        self._calls += 1
        if self._calls <= EAGER:
            aside(lambda: self._eager(codes, labels))
            return
        if self._forward is None or self._descent is None:
            self._forward, self._descent = self._record(codes, labels)
        self._codes.copy_(codes)
        self._labels.copy_(labels)
        self._forward.replay()
        self._upstream.copy_(self._critic.upstream_gradient(self._fake, self._labels))
        self._descent.replay()

    def _eager(self, codes: Tensor, labels: Tensor) -> None:
        fake = self._generator(codes, labels)
        self._generator.descend(fake, self._critic.upstream_gradient(fake, labels))

    def _record(self, codes: Tensor, labels: Tensor) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]:
        self._codes, self._labels = codes.clone(), labels.clone()
        forward, descent = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with recorded_into(forward):
            self._fake = self._generator(self._codes, self._labels)
        self._upstream = torch.zeros_like(self._fake)
        with recorded_into(descent, pool=forward.pool()):
            self._generator.descend(self._fake, self._upstream)
        return forward, descent
