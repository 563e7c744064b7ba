"""Which preset is taken when none is asked for: by device, records and images, said in the dry run, one flag away."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from conftest import MNIST
from gswgan import GSWGAN
from gswgan.methods import choice
from gswgan.methods.choice import usual_preset


def test_a_gpu_and_many_grey_images_take_refined() -> None:
    for device in ("cuda", "cuda:1"):
        preset, why = usual_preset(MNIST, device)
        assert preset == "refined"
        assert "--preset kernel" in why


@pytest.mark.parametrize(
    ("changes", "device", "in_files", "said"),
    [
        ({}, "cpu", False, "without a GPU"),
        ({"records": 49_999}, "cuda", False, "below 50,000 records"),
        ({"channels": 3}, "cuda", False, "colour"),
        ({"image_size": 64}, "cuda", False, "64x64"),
        ({"image_size": 8}, "cuda", False, "8x8"),
        ({"persons": 600}, "cuda", False, "by person"),
        ({}, "cuda", True, "in its files"),
    ],
)
def test_everything_else_takes_kernel(changes: dict, device: str, in_files: bool, said: str) -> None:
    preset, why = usual_preset(dataclasses.replace(MNIST, **changes), device, in_files=in_files)
    assert preset == "kernel"
    assert said in why


def test_the_plan_says_which_and_why_and_a_flag_overrides_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "FROM_RECORDS", 100)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (120, 28, 28), dtype=np.uint8), np.arange(120) % 2
    options = {"device": "cuda", "delta": 1e-3, "steps": 4, "force_spend": True}
    planned = GSWGAN(**options).plan(images, labels, classes=2)
    assert planned.plan.preset == "refined"
    assert "preset:    refined, the usual one on a GPU" in str(planned)
    assert "preset='kernel'" in str(planned)  # in Python's words
    asked = GSWGAN(**options, preset="kernel").plan(images, labels, classes=2)
    assert asked.plan.preset == "kernel"
    assert asked.chosen is None
    here = GSWGAN(**options | {"device": "cpu"}).plan(images, labels, classes=2)
    assert here.plan.preset == "kernel"
    assert "preset:    kernel, the usual one without a GPU" in str(here)
