"""What has been measured, kept in a file after every figure: an interrupted evaluation continues where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.errors import RunError
from gswgan.evaluation.classifiers import CHOSEN_ON
from gswgan.privacy.storage import named_by_user, read_file, write_durably

PRIVATE = "computed on real data and not covered by the guarantee: not for release"
TOP = (
    "inception_score", "fid", "kid", "precision", "recall", "inception_precision", "inception_recall",
    "label_accuracy",
)  # fmt: skip
CHANCE = {
    "nearest.closer_to_train": 0.5, "nearest.near_copies": 0.01, "membership.auc": 0.5,
    "membership.tpr_at_1_percent_fpr": 0.01,
}  # fmt: skip
"""What the checks of remembering give where nothing is remembered."""


class Results:
    """Figures by name and seed (`classifiers.cnn`, `precision`, ...), and the same on real data.

    `basis` says what they depend on besides name and seed. A file with another basis is moved aside, and back when
    its basis is asked for again: nothing that took hours is lost. Without a path nothing is written.
    """

    def __init__(self, path: Path | None, basis: Mapping[str, Any]) -> None:
        self.path, self.basis = path, dict(basis)
        self.values: dict[str, dict[str, float]] = {}
        self.real: dict[str, float] = {}
        self.seeds: dict[str, list[int]] = {}
        self.skipped: dict[str, str] = {}
        if path is None:
            return
        if path.exists() and _read(path)["basis"] != self.basis:
            path.rename(_aside(path, _read(path)["basis"]))
        if not path.exists() and _aside(path, self.basis).exists():
            _aside(path, self.basis).rename(path)
        if path.exists():
            state = _read(path)
            self.values, self.real, self.seeds = state["values"], state["real_values"], state["seeds_of"]

    def has(self, figure: str, seed: int) -> bool:
        """Whether it was measured before."""
        return str(seed) in self.values.get(figure, {})

    def put(self, figures: Mapping[str, float], seed: int) -> None:
        """Add figures of one seed, and save."""
        for figure, value in figures.items():
            self.values.setdefault(figure, {})[str(seed)] = float(value)
        self.save()

    def ask(self, figures: Sequence[str], seeds: Sequence[int]) -> None:
        """Which seeds the summary of these figures is about."""
        self.seeds.update({figure: list(seeds) for figure in figures})

    def save(self) -> None:
        """Write the summary with all that it is made of."""
        if self.path is not None:
            more = {"values": self.values, "real_values": self.real, "seeds_of": self.seeds}
            content = {"format_version": 1, **self.summary(), **more}
            write_durably(named_by_user(self.path), (json.dumps(content, indent=1) + "\n").encode(), mode=0o600)

    def summary(self) -> dict[str, Any]:
        """The figures under the names of the options; null is what was not asked for, or could not be had."""
        found: dict[str, Any] = {"private": PRIVATE, "chosen_on": CHOSEN_ON, "basis": self.basis}
        found |= {name: self._entry(name) for name in TOP}
        every = dict.fromkeys(name for name in (*self.seeds, *self.skipped) if name.startswith("classifiers."))
        entries = {name: self._entry(name, calibrated=True) for name in every}
        for name, entry in entries.items():
            if entry is not None and (by_class := self._by_class(name.partition(".")[2])):
                entry["by_class"] = by_class
        found["classifiers"] = {name.partition(".")[2]: entry for name, entry in entries.items()}
        found["average_accuracy"] = self._average([name for name, entry in entries.items() if entry])
        for group in ("nearest", "membership"):
            parts = {name.partition(".")[2]: self._entry(name) for name in self.seeds if name.startswith(f"{group}.")}
            found[group] = {name: entry for name, entry in parts.items() if entry} or None
        return found | {"skipped": self.skipped}

    def _by_class(self, classifier: str) -> dict[str, Any]:
        """Accuracy by the name of the class; without the classes that no test image has."""
        start = f"by_class.{classifier}."
        found = {figure.removeprefix(start): self._entry(figure) for figure in self.seeds if figure.startswith(start)}
        return {label: {"mean": entry["mean"], "real": entry["real"]} for label, entry in found.items() if entry}

    def _entry(self, figure: str, *, calibrated: bool = False) -> dict[str, Any] | None:
        seeds = [str(seed) for seed in self.seeds.get(figure, [])]
        values = [self.values[figure][seed] for seed in seeds if seed in self.values.get(figure, {})]
        if not values:
            return None
        entry: dict[str, Any] = {**_mean_std(values), "real": self.real.get(figure), "seeds": len(values)}
        errors = self.values.get(f"{figure}_error", {})
        if error := [errors[seed] for seed in seeds if seed in errors]:
            entry["error"] = float(np.mean(error))
        if figure in CHANCE:
            entry["chance"] = CHANCE[figure]
        if calibrated:
            entry["calibrated"] = entry["mean"] / entry["real"] if entry["real"] else None
        return entry

    def _average(self, figures: Sequence[str]) -> dict[str, Any] | None:
        """The paper's Avg Acc and Calibrated Acc: means over the classifiers, calibrated one by one."""
        figures = [figure for figure in figures if figure in self.real]
        asked = [set(map(str, self.seeds[figure])) & set(self.values[figure]) for figure in figures]
        seeds = set.intersection(*asked) if asked else set()
        if not seeds:
            return None
        entries = [self._entry(figure, calibrated=True) or {} for figure in figures]
        per_seed = [float(np.mean([self.values[figure][seed] for figure in figures])) for seed in seeds]
        rest: dict[str, float | None] = {"real": float(np.mean([entry["real"] for entry in entries]))}
        calibrated = [entry["calibrated"] for entry in entries]
        rest["calibrated"] = None if None in calibrated else float(np.mean(calibrated))  # no real one gets any right
        return {**_mean_std(per_seed), **rest, "seeds": len(seeds), "of": [f.partition(".")[2] for f in figures]}


def _mean_std(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard deviation (n - 1); one value has no deviation, which is null and not 0."""
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def _aside(path: Path, basis: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()[:12]
    return path.with_name(f"{path.stem}-{digest}.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_file(path))
        if content["format_version"] == 1 and {"basis", "values", "real_values", "seeds_of"} <= set(content):
            return content
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
        pass
    raise RunError("results", str(path), "an evaluation of this version", "Move it away to start anew.")
