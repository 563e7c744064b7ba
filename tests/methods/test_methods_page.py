"""The example of docs/methods.md is a method: one file and one line."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
import torch

import gswgan
from gswgan.data import load_data
from gswgan.evaluation.classifiers import logistic_accuracy
from gswgan.methods import BY_PERSON, METHODS, make_plan
from gswgan.plan.facts import Facts
from gswgan.privacy.ledger import read_ledger
from gswgan.run import loop
from gswgan.run.folder import RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.fixture
def means(tmp_path: Path, monkeypatch) -> str:
    """The example as a file, and its line in the registry."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "means.py").write_text(code)
    spec = importlib.util.spec_from_file_location("means", tmp_path / "means.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(METHODS, "means", module.METHOD)
    return code


def test_the_example_is_short(means: str) -> None:
    lines = [line for line in means.splitlines() if line.strip() and not line.startswith(("from ", "import "))]
    assert len(lines) <= 48


def test_the_example_trains_on_digits(means: str, tmp_path: Path) -> None:
    data, test = load_data("digits"), load_data("digits", split="test")
    model = gswgan.GSWGAN(method="means", epsilon=10, device="cpu")
    model.fit(data.images[:, 0], data.labels, classes=10, out=tmp_path / "run")
    assert 9.99 < model.privacy.epsilon <= 10
    images, labels = model.sample(500, seed=0)
    assert logistic_accuracy(images, labels, test.images, test.labels) > 0.6
    model.save(tmp_path / "copy")
    assert (gswgan.load(tmp_path / "copy").sample(5, seed=1)[0] == model.sample(5, seed=1)[0]).all()
    assert json.loads((tmp_path / "copy" / "model.json").read_text())["method"] == "means"
    assert "the mean image of each class" in (tmp_path / "copy" / "card.md").read_text()


def test_the_example_can_be_stopped_and_resumed(means: str, tmp_path: Path) -> None:
    data = load_data("digits")
    plan = make_plan(Facts.of(data), method="means", steps=4, insecure_reproducible=True)
    folders = [RunFolder.create(tmp_path / name, plan) for name in ("straight", "stopped")]
    cpu = torch.device("cpu")
    assert loop.run(folders[0], data, device=cpu)
    assert not loop.run(folders[1], data, device=cpu, progress=lambda done: os.kill(os.getpid(), 2))
    assert loop.run(folders[1], data, device=cpu)
    assert len(read_ledger(folders[1].ledger)[1]) == 1
    assert folders[0].generator.read_bytes() == folders[1].generator.read_bytes()


def test_the_page_names_every_method_and_preset() -> None:
    text = PAGE.read_text()
    for method in (METHODS | BY_PERSON).values():
        assert f"| `{method.name}` |" in text
        assert all(f"`{preset}`" in text for preset in method.presets)
