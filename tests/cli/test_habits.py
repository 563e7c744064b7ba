"""What people expect of every command line: a version, shell completion, JSON, messages about paths."""

from __future__ import annotations

import os
import tempfile
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gswgan
from gswgan.cli.console import table
from gswgan.cli.main import app
from gswgan.errors import GswganError

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


def run_as(user: int, *arguments: object) -> tuple[int, str]:
    """Exit code and message of a command, for root as another user; what it imports is imported before."""

    def run() -> tuple[int, str]:
        result = runner.invoke(app, [str(argument) for argument in arguments])
        wrong = result.exception
        return result.exit_code, result.output if wrong is None or isinstance(wrong, SystemExit) else str(wrong)

    run()
    os.seteuid(user)
    try:
        return run()
    finally:
        os.seteuid(0)


HOW = {
    "train": ("train", "--data", "{}"),
    "public": ("train", "--data", "digits", "--public", "{}"),
    "group-by": ("train", "--data", "digits", "--group-by", "{}.csv"),
    "budget of train": ("train", "--data", "digits", "--budget", "{}"),
    "plan": ("train", "--data", "digits", "--plan", "{}"),
    "resume": ("train", "--resume", "{}"),
    "from": ("train", "--from", "{}"),
    "sample": ("sample", "{}"),
    "export": ("export", "{}", "{}-out"),
    "evaluate a run": ("evaluate", "{}"),
    "evaluate a file": ("evaluate", "{}.npz", "--data", "digits"),
    "report": ("report", "{}"),
    "release": ("release", "{}"),
    "verify": ("verify", "{}"),
    "budget": ("budget", "{}"),
    "account": ("privacy", "account", "{}"),
    "reference-classifier": ("reference-classifier", "--data", "{}", "--out", "{}.st"),
    "combine": ("federate", "combine", "{}", "{}"),
    "status": ("federate", "status", "{}"),
    "clients": ("federate", "plan", "--clients", "{}", "--classes", "3", "--image-size", "8", "--out", "{}-run"),
    "node": ("federate", "node", "{}"),
}
"""Commands that read a path."""

FILES = ("train", "budget of train", "plan", "budget", "reference-classifier", "clients", "node")
FOLDERS = tuple(sorted(HOW.keys() - {*FILES, "group-by", "evaluate a file"}))


@pytest.mark.parametrize("name", HOW)
def test_a_missing_path_is_called_missing(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GswganError, match=r"(?i)no such file") as raised:
        runner.invoke(app, [part.format("nothing") for part in HOW[name]], catch_exceptions=False)
    assert "nothing" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_a_path_that_may_not_be_read_is_called_so(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own may not be entered by others
        os.chmod(folder, 0o755)
        secret = Path(folder) / "secret"
        secret.write_text("{}") if name in FILES else secret.mkdir()
        os.chmod(secret, 0)
        code, message = run_as(65534, *(part.format(secret) for part in HOW[name]))
    assert code != 0
    assert "permission denied" in message.lower(), message
    assert "secret" in message


def test_a_table_cuts_no_path() -> None:
    path = "/home/somebody/a/very/long/path/" + "x" * 90
    shown = table(("run", "what"), [(path, "kernel"), ("a\x1bb", "日本")])
    assert shown.splitlines() == [
        f"run{' ' * (len(path) - 1)}what",
        f"{'-' * len(path)}  ------",
        f"{path}  kernel",
        f"a\\x1bb{' ' * (len(path) - 6)}  日本",
    ]
