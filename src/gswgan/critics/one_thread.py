"""One thread for what is computed unit by unit on a CPU, where secret coins choose the units.

PyTorch cuts a tensor into as many parts as there are threads, and rounds exp and its like otherwise at the end of a
part than inside. So with 3 or 6 threads the gradient of a record depends on its place in the batch, and thereby on who
else takes part: in the last bits, but whoever chooses the network's weights can make them count (docs/proof.md, A19).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

AT_ONCE = 4
"""Results that are computed at the same time, at the most: each has a memory of its own."""

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, PyTorch uses one thread for what is done within."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def each_in_one_thread(
    work: Callable[[T], R], items: Iterable[T], device: torch.device, *, at_once: bool
) -> Iterator[R]:
    """`work` of each item, in order, on a CPU in one thread each: one after another, or some `at_once`."""
    before, waiting = torch.get_num_threads(), iter(items)
    threads = min(AT_ONCE, before)
    if device.type != "cpu" or threads == 1 or not at_once:
        for item in waiting:
            with one_thread(device):
                found = work(item)
            yield found
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            while some := list(itertools.islice(waiting, threads)):  # no more results than fit into memory
                yield from pool.map(work, some)
        finally:
            torch.set_num_threads(before)  # for threads that begin later
