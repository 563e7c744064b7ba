"""A metric: some figures that are measured together, on a synthetic set and once on real data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gswgan.data import ImageData

Figures = Mapping[str, float]
Tick = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Figures that are measured together, with the seconds that this takes, roughly."""

    figures: tuple[str, ...]
    of: Callable[[ImageData, int, Tick], Figures]
    seconds: float
    real: Callable[[Tick], Figures] | None
    real_seconds: float
    key: str = ""
    """What the figures on real data depend on besides the data."""
    also: tuple[str, ...] = ()
    """Figures that come along. Where only these are missing, nothing is measured again."""
