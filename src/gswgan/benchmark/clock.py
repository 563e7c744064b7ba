"""How long a benchmark will still take, and how much memory a training took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from gswgan.benchmark.cells import Cell


class Clock:
    """Seconds left: a cell takes as long as those of its line did, or as all did, or as the one that runs seems to."""

    def __init__(self, known: Mapping[Cell, float | None], progress: Callable[[str, float, float], None]) -> None:
        self._took = {cell: seconds for cell, seconds in known.items() if seconds}
        self._left = list(known)
        self._progress, self._spent = progress, 0.0
        self._cell: Cell | None = None
        self._began = self._part = 0.0

    def skip(self, cell: Cell) -> None:
        """The cell is done already."""
        self._left.remove(cell)

    def start(self, cell: Cell) -> None:
        """The cell begins."""
        self._left.remove(cell)
        self._cell, self._began, self._part = cell, time.monotonic(), 0.0

    def report(self, what: str, part: float) -> None:
        """So much of its training, or of its measurements, is done."""
        assert self._cell is not None
        self._part = part
        done = self._spent + self._since()
        self._progress(f"{self._cell.name}: {what}", done, done + self.left())

    def stop(self, *, failed: bool) -> float:
        """It ended; returns its seconds. How long a failure took says nothing."""
        assert self._cell is not None
        seconds = self._since()
        self._spent += seconds
        if not failed:
            self._took[self._cell] = seconds
        self._cell = None
        return seconds

    def end(self) -> None:
        """All cells are done."""
        self._progress("done", self._spent, self._spent)

    def left(self) -> float:
        """Seconds to the end, roughly."""
        current = 0.0 if self._cell is None else max(0.0, self._expected(self._cell) - self._since())
        return current + sum(map(self._expected, self._left))

    def _since(self) -> float:
        return time.monotonic() - self._began

    def _expected(self, cell: Cell) -> float:
        line = [took for other, took in self._took.items() if (other.data, other.entry) == (cell.data, cell.entry)]
        guess = self._since() / max(self._part, 0.05) if self._cell is not None else 0.0
        return float(np.mean(line or list(self._took.values()) or guess))


class PeakMemory:
    """Bytes at the most from now on: on the GPU, or of the whole process (where Linux tells it; elsewhere None)."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._known = device, True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        except OSError:
            self._known = False

    def read(self) -> int | None:
        """The peak so far."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        lines = Path("/proc/self/status").read_text().splitlines() if self._known else []
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
