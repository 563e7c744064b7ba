"""The options of `gswgan train` as one object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What was asked for on the command line, by the names of the options."""

    data: str | None
    classes: int | None
    image_size: int | None
    channels: int | None
    labels: bool
    public: str | None
    public_features: str | None
    name: str | None
    pixel_range: str | None
    background: str | None
    layout: str | None
    fit: str | None
    group_by: str | None
    missing: str | None
    min_records: int | None
    accuracy: str | None
    reference_classifier: Path | None
    epsilon: float | None
    delta: float | None
    neighbours: str | None
    allow_large_delta: bool
    force_spend: bool
    budget: Path | None
    method: str | None
    preset: str | None
    critics: int | None
    steps: int | None
    out: Path | None
    device: str
    workers: str | None
    seed: int | None
    dry_run: bool
    save_plan: Path | None
    plan_file: Path | None
    resume: Path | None
    source: Path | None
    insecure_reproducible: bool
    show_private: bool
    json: bool
