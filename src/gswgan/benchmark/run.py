"""Train, sample and measure every cell, whatever becomes of the others; then write tables and page.

A cell is a run folder like any other. What the benchmark knows of it is in RUN/private/benchmark.json, so that a
finished cell is never run again and a half-finished one continues where it stopped, also after `kill -9`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gswgan.benchmark.cells import Cell
from gswgan.benchmark.clock import Clock, PeakMemory
from gswgan.benchmark.options import DataSets, Options
from gswgan.benchmark.page import benchmark_page
from gswgan.benchmark.tables import gather, markdown
from gswgan.data import ImageData
from gswgan.errors import DataError, RunError
from gswgan.evaluation.evaluate import duration, evaluate
from gswgan.evaluation.metrics import EvaluationSetup, Request
from gswgan.evaluation.references import is_public, reference_folders
from gswgan.evaluation.result import PRIVATE, Results
from gswgan.evaluation.synthetic import PER_CLASS, make_synthetic
from gswgan.methods import make_plan
from gswgan.plan.defaults import TINY
from gswgan.plan.enough import check_enough
from gswgan.plan.facts import Facts
from gswgan.plan.make import plan_warnings
from gswgan.plan.settings import check_whole
from gswgan.privacy.storage import make_folder, write_durably
from gswgan.run import loop
from gswgan.run.folder import RunFolder, read_json, write_json
from gswgan.run.released import load

SAMPLES, TINY_SAMPLES = 60_000, 5_000
"""Synthetic images per cell, as in the paper; of tiny images (the digits) fewer are enough."""

NO_FID = "FID is left out: it takes long without a GPU. Ask for it by --fid."

SAVE_EVERY = 5.0
"""Seconds between two writings of how long a training has taken so far."""

Note = Callable[[str], None]
Progress = Callable[[str, float, float], None]
"""Told what is being done, the seconds spent and those spent and left, roughly."""


def benchmark(
    data: DataSets,
    *,
    out: str | Path,
    note: Note = lambda text: None,
    progress: Progress = lambda what, done, total: None,
    **options: Any,
) -> dict[str, Any]:
    """Every method at every epsilon with every seed, on each data set; `options` are the fields of `Options`.

    Returns what benchmark.json holds. All figures are computed on real data: PRIVATE unless the data is public. The
    epsilon of a line is for one run alone.
    """
    asked, root = Options(**options), Path(out)
    cells, request = asked.cells([train.name for train, _ in data]), asked.request()
    _make_private(root)
    setups = {train.name: _setup(train, test, root, request, asked.samples) for train, test in data}
    if len(setups) < len(data) or not data:
        raise DataError("data", [train.name for train, _ in data], "data sets of different names, at least one")
    jobs = [_Job(cell, RunFolder(cell.folder(root)), setups[cell.data]) for cell in cells]
    measures_fid = "fid" in request.metrics
    if not measures_fid:
        note(NO_FID)
    failed = _run_all(jobs, Clock({job.cell: job.read().get("cell_seconds") for job in jobs}, progress), note)
    found = gather([(job.cell, job.folder, job.read(), failed.get(job.cell)) for job in jobs])
    found["skipped"] |= {} if measures_fid else {"fid": NO_FID}
    public = all(is_public(checksum) for job in jobs for checksum in job.checksums if checksum is not None)
    found |= {"public": public, "private": None if public else PRIVATE, "device": request.device.type}
    mode = 0o644 if public else 0o600
    write_durably(root / "benchmark.json", (json.dumps(found, indent=1) + "\n").encode(), mode=mode)
    write_durably(root / "benchmark.md", markdown(found).encode(), mode=mode)
    benchmark_page(found, root).write(root, private=not public)
    return found


def _run_all(jobs: Sequence[_Job], clock: Clock, note: Note) -> dict[Cell, str]:
    """Train and measure what is not done yet; returns what failed, by cell."""
    failed: dict[Cell, str] = {}
    warned: set[str] = set()
    for number, job in enumerate(jobs, 1):
        if job.is_done():
            clock.skip(job.cell)
            continue
        clock.start(job.cell)
        try:
            if not job.train(note, clock, warned):
                raise KeyboardInterrupt
            job.measure(clock)
        except Exception as wrong:  # whatever it is, the other cells go on
            failed[job.cell] = _in_words(wrong)
        seconds = clock.stop(failed=job.cell in failed)
        if job.cell not in failed:
            job.write(cell_seconds=job.read().get("cell_seconds", 0.0) + seconds)
        outcome = f"FAILED: {failed[job.cell]}" if job.cell in failed else f"{duration(seconds)}"
        left = f" About {duration(clock.left())} left." if clock.left() else ""
        note(f"[{number}/{len(jobs)}] {job.cell.name}: {outcome}.{left}")
    clock.end()
    return failed


def _make_private(root: Path) -> None:
    """The benchmark's folder, for its owner alone where it is new, with a place for references on real data."""
    try:
        if not root.exists():
            make_folder(root, private=True)
        make_folder(root.resolve() / "private", private=True)
    except OSError as wrong:
        raise RunError(
            "out", str(root), f"a folder that can be written ({wrong.strerror})", "Choose another."
        ) from wrong


def _setup(
    train: ImageData, test: ImageData | None, root: Path, request: Request, samples: int | None
) -> EvaluationSetup:
    usual = TINY_SAMPLES if train.image_size <= TINY else SAMPLES
    size = check_whole("samples", usual if samples is None else samples, PER_CLASS * train.classes, 10_000_000)
    return EvaluationSetup(
        train=train, test=test, folders=reference_folders(train, test, root), request=request, samples=size
    )


def _in_words(wrong: Exception) -> str:
    return f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:500]}".rstrip(". ")


@dataclass(frozen=True)
class _Job:
    """A cell with its run folder, and what it is measured by."""

    cell: Cell
    folder: RunFolder
    setup: EvaluationSetup

    @property
    def state(self) -> Path:
        """What the benchmark knows of the cell: times, memory, figures. Private."""
        return self.folder.private / "benchmark.json"

    @property
    def checksums(self) -> list[str | None]:
        """Of the data."""
        return list(self.setup.folders.checksums)

    @property
    def asked(self) -> dict[str, Any]:
        """What the figures depend on besides the run."""
        request = self.setup.request
        return {
            "samples": self.setup.samples, "metrics": list(request.metrics), "classifiers": list(request.classifiers),
        }  # fmt: skip

    def read(self) -> dict[str, Any]:
        """The state; empty before the cell has begun."""
        return read_json(self.state, "the state of a benchmark's cell") if self.state.exists() else {}

    def write(self, **more: Any) -> None:
        """Lay this over the state."""
        write_json(self.state, self.read() | more)

    def is_done(self) -> bool:
        """Whether there is nothing left to train or to measure."""
        state = self.read()
        if state and state["checksums"] != self.checksums:
            raise RunError(
                "data", self.cell.data, f"the data that {self.folder.root} was trained on",
                "Another data set of the same name needs another --out.",
            )  # fmt: skip
        return self.folder.is_finished and state.get("asked") == self.asked

    def train(self, note: Note, clock: Clock, warned: set[str]) -> bool:
        """Make the run or go on with it; False if it was interrupted."""
        train, device, cell = self.setup.train, self.setup.request.device, self.cell
        if self.read().get("trained"):
            return True
        if self.folder.is_vacant():
            clock.report("planning", 0.0)
            plan = make_plan(
                Facts.of(train), method=cell.entry.method, preset=cell.entry.preset, epsilon=cell.epsilon,
                seed=cell.seed, device=device.type,
            )  # fmt: skip
            check_enough(plan, forced=None)
            for doubt in set(plan_warnings(plan, train)) - warned:
                warned.add(doubt)
                note(f"warning: {doubt}")
            RunFolder.create(self.folder.root, plan)
        before = self.read() or {"seconds": 0.0, "sessions": 0, "peak_memory": None}
        steps, began = self.folder.plan().training.steps, time.monotonic()
        saved = began
        memory = PeakMemory(device)

        def keep(**more: Any) -> None:
            nonlocal saved
            saved = time.monotonic()
            peak = max((size for size in (before["peak_memory"], memory.read()) if size), default=None)
            spent = {"seconds": before["seconds"] + saved - began, "sessions": before["sessions"] + 1}
            self.write(checksums=self.checksums, peak_memory=peak, **spent, **more)

        def move(done: int) -> None:
            clock.report(f"step {done} of {steps}", done / steps)
            if time.monotonic() - saved > SAVE_EVERY:
                keep()

        keep()
        try:
            ended = loop.run(self.folder, train, device=device, progress=move)
        except RunError:
            if not self.folder.is_finished:
                raise
            ended = True  # it had come to its end, and died before this was written down
        keep(trained=ended)
        return ended

    def measure(self, clock: Clock) -> None:
        """Draw a set with the cell's seed and hold it against the real data; figures that are there stay."""
        train, size = self.setup.train, self.setup.samples
        setup = replace(self.setup, request=replace(self.setup.request, seeds=(self.cell.seed,)))
        checksum = hashlib.sha256(self.folder.generator.read_bytes()).hexdigest()
        results = Results(self.folder.private / "evaluation.json", setup.basis(checksum))
        model = load(self.folder.root, device=str(setup.request.device))
        evaluate(
            lambda seed: make_synthetic(*model.sample(size, seed=seed), train, name="run"), setup, results,
            progress=lambda what, done, total: clock.report(what, done / total if total else 1.0),
        )  # fmt: skip
        seed, request = str(self.cell.seed), setup.request
        wanted = {*request.metrics, *(f"classifiers.{name}" for name in request.classifiers)}
        values = {name: found[seed] for name, found in results.values.items() if name in wanted and seed in found}
        real = {name: value for name, value in results.real.items() if name in wanted}
        self.write(asked=self.asked, values=values, real=real, skipped=results.skipped)
