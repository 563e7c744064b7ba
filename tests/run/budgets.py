"""Runs that enter a budget."""

from __future__ import annotations

from pathlib import Path

import torch

from conftest import tiny_images, tiny_plan
from gswgan.data import ImageData
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")


DATA = tiny_images(300)


def enter(budget: Budget, name: str, data: ImageData = DATA, **options: object) -> None:
    budget.reserve(name, tiny_plan(data, **options), data, where=name)


def again(budget: Budget) -> Budget:
    """As another process reads it."""
    return Budget(budget.path)


def a_run(budget: Budget, root: Path, **options: object) -> RunFolder:
    return RunFolder.create(root, tiny_plan(DATA, **options), budget=budget.path)
