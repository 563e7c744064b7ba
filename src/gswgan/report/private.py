"""What was measured on real data, from the private part of a run. It never goes onto a public page."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.errors import RunError
from gswgan.privacy.storage import read_file
from gswgan.run.folder import find_release, read_json

QUANTILES = ("min", "5 %", "25 %", "median", "75 %", "95 %", "max")
NORMS = ("norm_before", "norm_after")
MAX_LOG_BYTES = 2**26
"""Bytes of a training log."""

MAX_WEIGHT_BYTES = 2**31
"""Bytes of a generator."""


@dataclass(frozen=True, kw_only=True)
class Private:
    """Evaluation and training log of a run."""

    evaluation: dict[str, Any] | None
    stale: bool
    metrics: list[dict[str, Any]]

    def series(self) -> dict[str, tuple[list[int], list[float]]]:
        """Each logged number over the steps."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for row in self.metrics:
            for key, value in row.items():
                if key not in ("step", "seconds") and _is_number(value):
                    steps, values = found.setdefault(key, ([], []))
                    steps.append(row["step"])
                    values.append(float(value))
        return {key: pair for key, pair in found.items() if len(pair[0]) > 1}

    def norms(self) -> dict[str, tuple[list[int], list[list[float]]]]:
        """Quantiles of the gradient norms before and after clipping over the steps; empty where none were logged."""
        found = {}
        for key in NORMS:
            rows = [row for row in self.metrics if _are_quantiles(row.get(key))]
            found[key] = ([row["step"] for row in rows], [[float(value) for value in row[key]] for row in rows])
        return found if all(steps for steps, _ in found.values()) else {}


def read_private(path: Path) -> Private:
    """Evaluation (if there is one of this generator) and metrics of a run folder."""
    folder = find_release(path)
    if folder.release != folder.root / "release" or not folder.private.is_dir():
        raise RunError("run", str(path), "a run folder with its private part", "Leave --private out for a release.")
    where = folder.private / "evaluation.json"
    evaluation = read_json(where, "an evaluation of `gswgan evaluate`") if where.exists() else None
    stale = False
    if evaluation is not None:
        basis = evaluation.get("basis") or {}
        stale = basis.get("synthetic") != hashlib.sha256(read_file(folder.generator, MAX_WEIGHT_BYTES)).hexdigest()
    return Private(evaluation=None if stale else evaluation, stale=stale, metrics=_rows(folder.metrics))


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl by step; of a step that was logged twice the later one; torn lines are left out."""
    rows: dict[int, dict[str, Any]] = {}
    for line in read_file(path, MAX_LOG_BYTES).decode(errors="replace").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows[row["step"]] = row
    return [rows[step] for step in sorted(rows)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_quantiles(value: object) -> bool:
    return isinstance(value, list) and len(value) == len(QUANTILES) and all(map(_is_number, value))
