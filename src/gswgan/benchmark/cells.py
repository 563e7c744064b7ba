"""What a benchmark is made of: entries (a method with a preset) and cells (an entry at an epsilon with a seed)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gswgan.errors import PlanError
from gswgan.methods import METHODS, find_method

SHORT = {"kernel": "gswgan:kernel", "ensemble": "gswgan:ensemble"}
"""GS-WGAN's own two, by the name of the preset alone."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A method with a preset: a line of the tables for each epsilon."""

    method: str
    preset: str

    @property
    def name(self) -> str:
        """The method, with the preset where that says more."""
        plain = self.method != "gswgan" and self.preset == find_method(self.method).presets[0]
        return self.method if plain else f"{self.method}:{self.preset}"

    @property
    def calibrated(self) -> bool:
        """Whether its noise follows from epsilon. If not it appears once, at its own noise or with none."""
        method = find_method(self.method)
        return method.has_guarantee and method.own_noise(self.preset) is None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: trained, sampled and measured once. `epsilon` is None where the entry is not calibrated to any."""

    data: str
    entry: Entry
    epsilon: float | None
    seed: int

    @property
    def budget(self) -> str:
        """The epsilon that was asked for, in words."""
        if self.epsilon is not None:
            return f"epsilon {self.epsilon:g}"
        return "its own noise" if find_method(self.entry.method).has_guarantee else "no guarantee"

    @property
    def name(self) -> str:
        """For a line of progress."""
        return f"{self.data}, {self.entry.name}, {self.budget}, seed {self.seed}"

    def folder(self, root: Path) -> Path:
        """Its run folder below the benchmark's."""
        parts = (self.data, self.entry.name, self.budget, f"seed {self.seed}")
        return root.joinpath("runs", *(re.sub(r"[^\w.-]", "-", part) for part in parts))


def find_entries(names: Sequence[str]) -> tuple[Entry, ...]:
    """From `all`, `default`, `ensemble`, METHOD and METHOD:PRESET to entries, in this order, each once."""
    found: dict[Entry, None] = {}
    for name in names:
        if name == "all":
            every = (*SHORT.values(), *(method for method in METHODS if method != "gswgan"))
            found |= dict.fromkeys(find_entries(every))
            continue
        method, _, preset = SHORT.get(name, name).partition(":")
        if method not in METHODS or (preset and preset not in METHODS[method].presets):
            known = ", ".join(("all", *SHORT, *(method for method in METHODS if method != "gswgan")))
            raise PlanError("methods", name, f"{known}, or METHOD:PRESET such as gswgan:paper")
        found[Entry(method=method, preset=preset or METHODS[method].presets[0])] = None
    if not found:
        raise PlanError("methods", "", "at least one", "Pass --methods all.")
    return tuple(found)


def make_cells(
    data: Sequence[str], entries: Sequence[Entry], epsilons: Sequence[float], seeds: Sequence[int]
) -> list[Cell]:
    """All cells, seed by seed: after the first seed every line of the tables has a figure."""
    return [
        Cell(data=name, entry=entry, epsilon=epsilon, seed=seed)
        for seed in seeds
        for name in data
        for entry in entries
        for epsilon in (epsilons if entry.calibrated else (None,))
    ]
