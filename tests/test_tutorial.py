"""docs/tutorial.md: its blocks run in order, in an empty folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.run.budget import Budget

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and text of every fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.S | re.M)


def walk(python: Callable[[str], str], command: Callable[[list[str]], str]) -> dict[str, str]:
    """Run the page; what each of its commands and scripts printed."""
    said: dict[str, str] = {}
    digest = ""
    for kind, text in blocks(PAGE):
        if kind == "python":
            said[text] = python(text)
            continue
        assert kind == "console"
        for line in text.splitlines():
            name, *words = line.replace("DIGEST", digest).split()
            assert name == "gswgan"
            said[" ".join(words)] = output = command(words)
            if found := re.search(r"\b[0-9a-f]{64}\b", output):
                digest = found[0]
    return said


def check(said: dict[str, str], folder: Path) -> None:
    name, verified = next((name, text) for name, text in said.items() if name.startswith("verify"))
    assert re.search(r"--digest [0-9a-f]{64}$", name)  # what `release` printed went into the check
    assert "epsilon 3" in verified
    with np.load(folder / "synthetic.npz") as synthetic:
        assert synthetic["images"].shape == (1000, 12, 12)
    assert len(list((folder / "png").rglob("*.png"))) == 30
    assert "logistic" in next(text for name, text in said.items() if name.startswith("evaluate"))
    *_, last, python, _, resumed = said.values()
    assert "(100, 12, 12) epsilon 3" in last
    assert "what more or less data would buy" in python
    assert "guarantee: epsilon 3" in python
    assert "['circle', 'cross', 'stripe']\n600\n" in python
    assert "GSWGAN(epsilon=1, steps=100" in python  # a clone with another epsilon
    assert "stopped; nothing that was released is lost. Continue with: gswgan.resume(" in resumed
    assert "guarantee: epsilon 3 at delta 1e-06 (one record replaced; observer: public)" in resumed
    assert len(Budget(folder / "our.budget").runs) == 1  # stopped and resumed, it is one run
    for name in (
        "stopped/release/generator.safetensors",
        "samples.png",
        "set.npz",
        "set.csv",
        "set.parquet",
        "another/release/generator.safetensors",
    ):
        assert (folder / name).exists(), name


def test_the_tutorial_works_from_an_empty_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def python(text: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(text, {"__name__": "tutorial"})
        return printed.getvalue()

    def command(words: list[str]) -> str:
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, (words, result.output)
        return result.output

    check(walk(python, command), tmp_path)


def test_every_block_is_run_and_every_link_leads_somewhere() -> None:
    assert PAGE.count("```") == 2 * len(blocks(PAGE))
    targets = re.findall(r"\]\(([\w.]+)", PAGE)
    assert len(targets) > 4
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.slow
def test_the_tutorial_works_with_the_installed_wheel(tmp_path: Path) -> None:
    """Nothing but what the wheel holds: no file of this repository is in reach."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels, installed, work = tmp_path / "wheels", tmp_path / "installed", tmp_path / "work"
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, ROOT], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, *wheels.iterdir()], check=True)
    work.mkdir()
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and not path.endswith("src")]
    reach = {"PYTHONPATH": os.pathsep.join([str(installed), *others]), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}

    def python(text: str, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", text, *words], cwd=work, env={**os.environ, **reach}, capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode == 0, (words or text, done.stdout, done.stderr)
        return done.stdout

    assert str(installed) in python("import gswgan; print(gswgan.__file__)")
    check(walk(python, lambda words: python("from gswgan.cli.main import run; run()", *words)), work)
