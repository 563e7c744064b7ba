"""What a benchmark compares: methods, epsilons, seeds and measures, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.benchmark.cells import Cell, find_entries, make_cells
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.evaluation.classifiers import FAST, check
from gswgan.evaluation.inputs import parse_classifiers, parse_seeds
from gswgan.evaluation.metrics import Request
from gswgan.evaluation.real_data import load_data, load_held_out
from gswgan.plan.settings import check_epsilon, check_whole, pick_device

DataSets = Sequence[tuple[ImageData, ImageData | None]]
"""Training and held-out parts."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """`fid`: measure it, or not; by default where that is quick, on a GPU. `samples`: synthetic images per run."""

    methods: Sequence[str] = ("all",)
    epsilons: Sequence[float] = (10.0,)
    seeds: Sequence[int] = (1,)
    samples: int | None = None
    classifiers: Sequence[str] = FAST
    fid: bool | None = None
    inception_weights: Path | None = None
    device: str | None = None

    def cells(self, data: Sequence[str]) -> list[Cell]:
        """One for each data set, method, epsilon and seed."""
        epsilons = sorted({check_epsilon(epsilon) for epsilon in self.epsilons})
        seeds = list(dict.fromkeys(check_whole("seed", seed, 0, 2**32 - 1) for seed in self.seeds))
        if not epsilons or not seeds:
            raise PlanError("epsilons and seeds", (epsilons, seeds), "at least one of each")
        return make_cells(data, find_entries(self.methods), epsilons, seeds)

    def request(self) -> Request:
        """What is measured of each cell."""
        check(self.classifiers, "paper")
        device, fid = pick_device(self.device), self.fid
        fid = device.type == "cuda" or self.inception_weights is not None if fid is None else fid
        return Request(
            metrics=("inception_score", "fid", "classifiers") if fid else ("inception_score", "classifiers"),
            classifiers=tuple(self.classifiers), device=device, inception_weights=self.inception_weights,
        )  # fmt: skip


def parse_options(methods: str, epsilon: str, seeds: str, classifiers: str) -> dict[str, Any]:
    """The fields of `Options` from text with commas between; unknown names of methods are refused."""
    wanted = [part.strip() for part in methods.split(",") if part.strip()]
    find_entries(wanted)
    try:
        epsilons = [float(part) for part in epsilon.split(",")]
    except ValueError:
        raise PlanError("epsilon", epsilon, "numbers with commas between, such as 1,3,10") from None
    several = parse_classifiers(classifiers)
    return {"methods": wanted, "epsilons": epsilons, "seeds": parse_seeds(seeds), "classifiers": several}


def load_sets(specs: Sequence[str], test_data: str | None, **reading: Any) -> DataSets:
    """The named data sets, each with its held-out part. `reading`: fields of `ReadOptions`, for a single data set."""
    specs = list(dict.fromkeys(specs))
    given = [name for name, value in (("test_data", test_data), *reading.items()) if value is not None]
    if len(specs) > 1 and given:
        expected = f"a single one with --{given[0].replace('_', '-')}"
        raise PlanError("data", specs, expected, "Compare them one after another.")
    sets = []
    for spec in specs:
        train = load_data(spec=spec, **reading)
        sets.append((train, load_held_out(train, test_data, spec=spec, **reading)))
    return sets
