"""Interfaces for long private work that is saved while it goes on and can be stopped and resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop. Where the work has a store, its state was saved first."""


class Store(Protocol):
    """A place for the state of unfinished work. The state is as private as the data."""

    def is_due(self) -> bool:
        """Return whether it is time to save."""

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep the state after `step` units of work."""

    def load(self) -> tuple[int, dict[str, dict[str, Tensor]]] | None:
        """Return what was saved last, or None."""

    def remove(self) -> None:
        """Delete what was saved."""


class TimeLeft:
    """Reports the progress of such work each time another twentieth of it is done."""

    def __init__(self, total: int, done: int, note: Callable[[str], None], what: str) -> None:
        self._total, self._start, self._note, self._what = total, done, note, what
        self._began, self._reported = time.monotonic(), -1

    def report(self, done: int) -> None:
        """Report the share that is done, if it has changed, and an estimate of the time left."""
        if (part := 20 * done // self._total) == self._reported:
            return
        self._reported = part
        left = ""
        if done > self._start:
            seconds = (time.monotonic() - self._began) / (done - self._start) * (self._total - done)
            left = f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"
        self._note(f"{self._what}: {100 * done // self._total} %{left}")
