"""Small benchmarks on stripes, with a reference classifier that costs nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from conftest import tiny_baseline, tiny_images, tiny_plan
from gswgan.benchmark import run as runner
from gswgan.data import ImageData
from gswgan.evaluation.metrics import EvaluationSetup

TRAIN, TEST = tiny_images(), tiny_images(60, seed=1)
SETS = [(TRAIN, TEST)]
QUICK = {"samples": 60, "classifiers": ("gaussian_nb", "lda"), "device": "cpu"}


class Killed(BaseException):
    """What `kill -9` leaves behind, without the process: no `except` clause runs."""


def make_small(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Tiny plans, and a classifier that costs nothing; returns the plans that were asked for."""
    asked: list[dict] = []

    def plan(facts, *, method: str, preset: str, device: str, **options):
        asked.append({"method": method, "preset": preset, **options})
        data = TRAIN if facts.data == TRAIN.name else tiny_images(seed=2)
        if method == "gswgan":
            return tiny_plan(data, preset=preset, **options)
        return tiny_baseline(data, method, preset=preset, **options)

    monkeypatch.setattr(runner, "make_plan", plan)

    def probabilities(images: np.ndarray) -> np.ndarray:
        return np.eye(3)[images[:, 0, :3].mean(axis=2).argmax(axis=1)] * 0.97 + 0.01

    monkeypatch.setattr(EvaluationSetup, "classifier", lambda self, tick: SimpleNamespace(probabilities=probabilities))
    return asked


def generators(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("generator.safetensors")}


def renamed(data: ImageData, name: str) -> ImageData:
    import dataclasses

    return dataclasses.replace(data, name=name)
