"""A training step recorded once as a CUDA graph and replayed: what a step launches, it launches in one go.

A step of the kernel critic is some two hundred small kernels; launched one by one they cost more than they compute.
Everything that changes from step to step is a tensor at a fixed place (the learning rate too), so a replay does what
a call would do. On the CPU, and where a critic acts outside the device, the step is simply called.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], None]

EAGER = 3
"""Steps called before recording: they set up what must not be set up while recording."""


class Captured:
    """The step, as a function of codes and labels whose shapes never change."""

    def __init__(self, step: Step) -> None:
        self._step, self._calls = step, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._codes, self._labels = torch.zeros(0), torch.zeros(0)

    def __call__(self, codes: Tensor, labels: Tensor) -> None:
        """Do the step."""
        if self._calls < EAGER:
            self._aside(codes, labels)
        else:
            if self._graph is None:
                self._record(codes, labels)
            assert self._graph is not None
            self._codes.copy_(codes)
            self._labels.copy_(labels)
            self._graph.replay()
        self._calls += 1

    def _aside(self, codes: Tensor, labels: Tensor) -> None:
        """On a stream of its own, as recording asks for."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(codes, labels)
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self, codes: Tensor, labels: Tensor) -> None:
        self._codes, self._labels = codes.clone(), labels.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step(self._codes, self._labels)
