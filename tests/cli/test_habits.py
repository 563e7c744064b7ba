"""What people expect of every command line: a version, shell completion, JSON, messages about paths."""

from __future__ import annotations

import tomllib
from pathlib import Path

from typer.testing import CliRunner

import gswgan
from gswgan.cli.main import app

ROOT = Path(__file__).parents[2]
runner = CliRunner()


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"gswgan {project['version']}\n")
    assert gswgan.__version__ == project["version"]


def test_shells_complete_commands() -> None:
    asked = {"_GSWGAN_COMPLETE": "complete_bash", "COMP_WORDS": "gswgan re", "COMP_CWORD": "1"}
    result = runner.invoke(app, [], env=asked, prog_name="gswgan")
    assert result.output.split() == ["reference-classifier", "report", "release"]
