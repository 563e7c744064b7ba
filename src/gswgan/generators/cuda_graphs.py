"""Functions that are recorded once as a CUDA graph and then replayed, which launches all their kernels together.

A training step has hundreds of small kernels, and launching them one by one takes longer than computing them.
Everything that changes between calls is a tensor (the learning rate too), so a replay does what a call would do. On the
CPU the function is called.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EAGER = 3
"""The number of calls before recording: they initialize what must not be initialized during it."""


@dataclass(kw_only=True)
class _Recording:
    calls: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    inputs: tuple[Tensor, ...] = ()
    result: Tensor | None = None


class Captured:
    """A function of tensors that works in place or returns a tensor, with one recording per shape of its inputs."""

    def __init__(self, function: Callable[..., Tensor | None]) -> None:
        self._function = function
        self._recordings: dict[tuple[torch.Size, ...], _Recording] = {}

    @property
    def is_recorded(self) -> bool:
        """Whether there is a recording."""
        return any(recording.graph is not None for recording in self._recordings.values())

    def __call__(self, *inputs: Tensor) -> Tensor | None:
        """Call the function or replay it. The result is a copy."""
        if not inputs[0].is_cuda:
            return self._function(*inputs)
        shapes = tuple(value.shape for value in inputs)
        recording = self._recordings.setdefault(shapes, _Recording())
        recording.calls += 1
        if recording.calls <= EAGER:
            return aside(lambda: self._function(*inputs))
        if recording.graph is None:
            recording.inputs, graph = tuple(value.clone() for value in inputs), torch.cuda.CUDAGraph()
            with recorded_into(graph):
                recording.result = self._function(*recording.inputs)
            recording.graph = graph  # there is something to replay only if nothing went wrong
        for held, value in zip(recording.inputs, inputs):
            held.copy_(value)
        recording.graph.replay()
        return None if recording.result is None else recording.result.clone()


@contextmanager
def recorded_into(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Record what is done inside. Python frees no garbage meanwhile: freeing an old graph would end the recording."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if enabled:
            gc.enable()


def aside(work: Callable[[], Tensor | None]) -> Tensor | None:
    """Run the work on another stream, as recording requires."""
    stream = _another_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = work()
    torch.cuda.current_stream().wait_stream(stream)
    return result


@functools.cache
def _another_stream(device: int) -> torch.cuda.Stream:
    """Return one stream for all work: on each stream a library allocates memory and keeps it (cuBLAS 32 MiB)."""
    return torch.cuda.Stream(device)
