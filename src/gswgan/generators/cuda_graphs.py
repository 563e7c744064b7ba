"""Work on a GPU recorded once as a CUDA graph and replayed: what it launches, it launches in one go.

A training step is hundreds of small kernels; launched one by one they cost more than they compute. Everything that
changes from call to call is a tensor (the learning rate too), so a replay does what a call would do. On the CPU the
function is simply called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EAGER = 3
"""Calls before recording: they set up what must not be set up while recording."""


@dataclass(kw_only=True)
class _Recording:
    calls: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    inputs: tuple[Tensor, ...] = ()
    result: Tensor | None = None


class Captured:
    """A function of tensors that works in place or gives a tensor; for inputs of new shapes it is recorded anew."""

    def __init__(self, function: Callable[..., Tensor | None]) -> None:
        self._function = function
        self._recordings: dict[tuple[torch.Size, ...], _Recording] = {}

    @property
    def is_recorded(self) -> bool:
        """Whether there is something to replay."""
        return any(recording.graph is not None for recording in self._recordings.values())

    def __call__(self, *inputs: Tensor) -> Tensor | None:
        """Do the work. What is given back is the caller's to keep."""
        if not inputs[0].is_cuda:
            return self._function(*inputs)
        shapes = tuple(value.shape for value in inputs)
        recording = self._recordings.setdefault(shapes, _Recording())
        recording.calls += 1
        if recording.calls <= EAGER:
            return aside(lambda: self._function(*inputs))
        if recording.graph is None:
            recording.inputs, graph = tuple(value.clone() for value in inputs), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                recording.result = self._function(*recording.inputs)
            recording.graph = graph  # there is something to replay only if nothing went wrong
        for held, value in zip(recording.inputs, inputs):
            held.copy_(value)
        recording.graph.replay()
        return None if recording.result is None else recording.result.clone()


def aside(work: Callable[[], Tensor | None]) -> Tensor | None:
    """Do the work on another stream, as recording asks for."""
    stream = _another_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = work()
    torch.cuda.current_stream().wait_stream(stream)
    return result


@functools.cache
def _another_stream(device: int) -> torch.cuda.Stream:
    """One for all: on each new stream a library takes memory for itself (cuBLAS 32 MiB) and keeps it."""
    return torch.cuda.Stream(device)
