"""Interfaces for long private work that is saved while it goes on and can be stopped and resumed."""

from __future__ import annotations

from collections.abc import Mapping
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
