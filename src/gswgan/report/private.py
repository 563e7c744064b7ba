"""What was measured on real data, from the private part of a run. It never goes onto a public page."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data import ImageData
from gswgan.errors import GswganError, RunError
from gswgan.evaluation.real_data import open_data
from gswgan.privacy.storage import read_file
from gswgan.run.folder import find_release, read_json

SHOWN = 8
"""Training records of each class on a private page."""

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


@dataclass(frozen=True, kw_only=True)
class Records:
    """Some training records of each class, shaped as the release's samples are."""

    by_class: Mapping[int, np.ndarray]
    unread: str = ""
    """Why there are none."""


def read_records(path: Path) -> Records:
    """The first records of each class in a fixed shuffled order, from where the run read its data."""
    folder = find_release(path)
    if not folder.source.exists():
        return Records(by_class={}, unread="the run does not know where its data lies")
    try:
        data = open_data(**folder.remembered_source())
    except GswganError as wrong:
        return Records(by_class={}, unread=f"the data cannot be read ({wrong})")
    if not isinstance(data, ImageData) or data.class_names != folder.plan().facts.class_names:
        has = "other classes now" if isinstance(data, ImageData) else "too many files to be read for this"
        return Records(by_class={}, unread=f"the data has {has}")
    images = data.images.transpose(0, 2, 3, 1)
    images = images[..., 0] if data.channels == 1 else images
    labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
    order = np.random.default_rng(0).permutation(data.n)
    return Records(by_class={label: images[order[labels[order] == label][:SHOWN]] for label in range(data.classes)})


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
