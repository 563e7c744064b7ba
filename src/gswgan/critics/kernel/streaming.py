"""The kernel critic's sums over data that does not fit into memory: one pass over its parts, by several workers.

The exact sums of the parts (integers, see `gswgan.privacy.mechanism`) add up to the same total in any order and for any
assignment of parts to workers. A part counts once, when its sum has arrived; a part whose worker died is computed
again. Parts, and the batches within them, are fixed by the files, and a worker has one thread. So on one kind of
machine the features are the same to the last bit as well.

There is no noise here. The workers see the data, and partial sums are as private as the data.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gswgan.critics.kernel.embedding import record_blocks
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures, features_of, products
from gswgan.critics.one_thread import one_thread
from gswgan.critics.resumable import Stopped, Store
from gswgan.data.files import Part
from gswgan.data.stream import ImageStream, PartReader
from gswgan.errors import GswganError, RunError
from gswgan.privacy import Contribution
from gswgan.privacy.mechanism import Block, ClippedSum, clipped_sum, columns_of

MAX_DEATHS = 5
"""The number of workers that may die in succession without a finished part before the run stops."""

_RESUME = "Is there enough memory? Pass fewer --workers, and resume: nothing that was summed is lost."

Workers: TypeAlias = int | str
"""A number of processes on this machine (1: this process), or "ray" for a Ray cluster."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker needs besides its parts."""

    reader: PartReader
    settings: KernelSettings
    contribution: Contribution
    device: str
    encoder: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Partial:
    """The sum over one part, the number of its records, and the number of those that add nothing."""

    total: NDArray[np.int64]
    records: int
    left_out: int


@dataclass(frozen=True, kw_only=True)
class OnePass:
    """The data, the workers, the store of unfinished sums, and callbacks."""

    stream: ImageStream
    workers: Workers
    store: Store
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with the number of records summed so far and the number of all."""
    stopped: Callable[[], bool] = lambda: False
    keep: Callable[[int], None] = lambda left_out: None
    """Called at the end with the number of records that added nothing: private."""

    def total(
        self,
        settings: KernelSettings,
        contribution: Contribution,
        device: torch.device,
        encoder: bytes | None = None,
    ) -> tuple[ClippedSum, int]:
        """Return the sum over all records and their number; raise `Stopped`, after saving, when asked to stop.

        `encoder`: the content of its file, where the features have one.
        """
        stream, parts = self.stream, self.stream.files.parts
        where = "cpu" if self.workers == "ray" else str(device)
        job = Job(reader=stream.reader, settings=settings, contribution=contribution, device=where, encoder=encoder)
        known = b"" if encoder is None else hashlib.sha256(encoder).digest()
        done, total, left_out = self._saved(len(parts), settings, contribution, known)
        sizes = np.array([part.records for part in parts], np.int64)
        self.progress(int(sizes[done].sum()), stream.public_records)
        todo = {int(index): parts[index] for index in np.flatnonzero(~done)}
        with contextlib.closing(summed_parts(job, todo, self.workers)) as results:
            for index, partial in results:
                if partial.records != sizes[index]:
                    found = f"{partial.records} records in {parts[index].path}"
                    raise RunError("data", found, f"{sizes[index]}, as were counted", "Do not change files meanwhile.")
                if done[index]:
                    continue
                total += partial.total
                done[index], left_out = True, left_out + partial.left_out
                self.progress(int(sizes[done].sum()), stream.public_records)
                stop = self.stopped()
                if stop or self.store.is_due():
                    self._save(done, total, left_out, known)
                if stop:
                    raise Stopped
        if not done.all():
            raise RunError("sums", f"{int(done.sum())} parts", f"all {len(parts)} parts of the data")
        self._save(done, total, left_out, known)
        self.keep(left_out)
        return ClippedSum(contribution=contribution, total=total), stream.public_records

    def _save(self, done: NDArray[np.bool_], total: NDArray[np.int64], left_out: int, encoder: bytes) -> None:
        tensors = {"done": torch.from_numpy(done), "total": torch.from_numpy(total), "left_out": torch.tensor(left_out)}
        tensors["encoder"] = torch.tensor(list(encoder), dtype=torch.uint8)
        self.store.save(int(done.sum()), {"sums": tensors})

    def _saved(
        self, parts: int, settings: KernelSettings, contribution: Contribution, encoder: bytes
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], int]:
        shape = (self.stream.classes, columns_of(contribution, settings.features))
        found = self.store.load()
        if found is None:
            return np.zeros(parts, bool), np.zeros(shape, np.int64), 0
        tensors = found[1]["sums"]
        done, total = tensors["done"].numpy().copy(), tensors["total"].numpy().copy()
        if done.shape != (parts,) or total.shape != shape:
            raise RunError("sums", (done.shape, total.shape), f"{((parts,), shape)}, as the data and the plan have")
        known = bytes(tensors["encoder"].tolist()) if "encoder" in tensors else b""
        if known != encoder:
            expected = "the one with which the first records were summed"
            raise RunError("encoder", "another file", expected, "Restore it, or start a new run: nothing was released.")
        return done, total, int(tensors["left_out"])


def sum_part(job: Job, part: Part) -> Partial:
    """Read a part, and clip and sum the features of its records, in a worker."""
    reader, records, left_out = job.reader, 0, 0
    with one_thread(torch.device("cpu")), products(tf32=False):
        features = _features(job.settings, reader.channels, reader.image_size, job.device, job.encoder)

        def blocks() -> Iterator[Block]:
            nonlocal records, left_out
            for piece in reader.read(part):
                assert piece.labels is not None
                records, left_out = records + piece.n, left_out + int((piece.labels < 0).sum())
                yield from record_blocks(piece, features)

        summed = clipped_sum(blocks(), job.contribution, slots=reader.classes, width=features.width)
    return Partial(total=summed.total, records=records, left_out=left_out)


def summed_parts(job: Job, parts: Mapping[int, Part], workers: Workers) -> Generator[tuple[int, Partial], None, None]:
    """Yield the sums of the parts with their numbers, each at least once, in the order in which they finish."""
    if workers == "ray":
        yield from _on_ray(job, parts)
    elif len(parts) <= 1 or workers == 1:
        for index, part in parts.items():
            yield index, sum_part(job, part)
    else:
        assert isinstance(workers, int)
        yield from _by_processes(job, parts, min(workers, len(parts)))


def _by_processes(job: Job, parts: Mapping[int, Part], workers: int) -> Iterator[tuple[int, Partial]]:
    """Sum the parts by processes of this machine. A process that dies breaks the pool; a new one does the rest."""
    todo, deaths = dict(parts), 0
    while todo:
        pool = ProcessPoolExecutor(workers, mp_context=_context(), initializer=_begin, initargs=(job,))
        try:
            for index, partial in _from_pool(pool, todo, 2 * workers):
                del todo[index]
                deaths = 0
                yield index, partial
        except BrokenProcessPool as wrong:
            _end_workers(pool)
            deaths += 1
            if deaths >= MAX_DEATHS:
                found = f"{deaths} that died one after the other"
                raise RunError("workers", found, "workers that finish a part", _RESUME) from wrong
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_workers(pool: ProcessPoolExecutor) -> None:
    """End those that a broken pool has left: it waits for all, also for one that began while it ended the others."""
    for process in list((pool._processes or {}).values()):
        process.terminate()


def _from_pool(pool: ProcessPoolExecutor, todo: Mapping[int, Part], submitted: int) -> Iterator[tuple[int, Partial]]:
    """Submit at most `submitted` parts at a time, so that memory does not grow with their number."""
    waiting, running = iter(list(todo.items())), dict[Future[Partial], int]()
    while True:
        for index, part in waiting:
            running[pool.submit(_work, part)] = index
            if len(running) >= submitted:
                break
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


def _on_ray(job: Job, parts: Mapping[int, Part]) -> Iterator[tuple[int, Partial]]:
    """Sum the parts by tasks of a Ray cluster ($RAY_ADDRESS, or one started here). Ray replaces workers that die."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns; the workers use no accelerator
    import ray

    began = not ray.is_initialized()
    if began:
        own: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        told, task = ray.put(job), ray.remote(max_retries=MAX_DEATHS)(sum_part)
        submitted = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting, running = iter(parts.items()), dict[object, int]()
        while True:
            for index, part in waiting:
                running[task.remote(told, part)] = index
                if len(running) >= submitted:
                    break
            if not running:
                return
            ready, _ = ray.wait(list(running))
            yield running.pop(ready[0]), ray.get(ready[0])
    except ray.exceptions.RayError as wrong:
        if isinstance(wrong, GswganError):  # of a worker that found the data to be wrong
            raise
        raise RunError("workers", type(wrong).__name__, "workers that finish a part", _RESUME) from wrong
    finally:
        if began:
            ray.shutdown()


_JOB: list[Job] = []


def _begin(job: Job) -> None:
    """Initialize a worker: it ignores Ctrl-C, which the run handles, and ends when the run does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    _JOB[:] = [job]


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _work(part: Part) -> Partial:
    return sum_part(_JOB[0], part)


def _context() -> Any:
    """Return a context that forks workers from a process with these imports, without threads and without CUDA."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@functools.lru_cache(maxsize=1)
def _features(settings: KernelSettings, channels: int, side: int, device: str, encoder: bytes | None) -> RandomFeatures:
    return features_of(settings, channels, side, torch.device(device), encoder)
