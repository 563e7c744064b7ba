"""--json: every command that states something prints one JSON object on stdout, and its text on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from conftest import tiny_images
from gswgan.cli import progress
from gswgan.cli.main import app

WITHOUT = {"federate app", "federate node"}
"""One prints a path and nothing else; the other runs until it is stopped."""

COST = {"epsilon", "delta", "neighbours", "unit", "observer", "sampling"}
"""No epsilon is stated without the rest."""


def commands(group: click.Group, before: str = "") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        inner = isinstance(command, click.Group)
        found |= commands(command, f"{before}{name} ") if inner else {f"{before}{name}": command}
    return found


def ask(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    assert result.stderr
    content = json.loads(result.stdout)
    assert isinstance(content, dict)
    return content


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    data = tiny_images()
    folder = tmp_path_factory.mktemp("json")
    np.savez(folder / "stripes.npz", images=data.images[:, 0], labels=data.labels)
    return folder


@pytest.fixture(scope="module")
def trained(place: Path) -> dict[str, Any]:
    ask("budget", place / "budget", "--epsilon", 20, "--delta", 1e-4)
    data = ("--data", place / "stripes.npz", "--classes", 3, "--device", "cpu")
    return ask("train", *data, "--steps", 40, "--out", place / "run", "--budget", place / "budget")


def test_every_command_has_it() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    lacking = {
        name
        for name, command in commands(group).items()
        if not any("--json" in option.opts for option in command.params)
    }
    assert lacking == WITHOUT


def test_train(trained: dict[str, Any], place: Path) -> None:
    assert {name: trained[name] for name in ("run", "release", "left_out")} == {
        "run": str(place / "run"), "release": str(place / "run/release"), "left_out": [],
    }  # fmt: skip
    assert Path(trained["samples"]).is_file()
    assert trained["privacy"].keys() >= COST
    assert trained["privacy"]["epsilon"] <= 10


def test_a_plan(place: Path) -> None:
    data = ("--data", place / "stripes.npz", "--classes", 3, "--device", "cpu")
    planned = ask("train", *data, "--save-plan", place / "plan.json")
    assert planned["plan"] == json.loads((place / "plan.json").read_text())
    assert isinstance(planned["warnings"], list)
    assert planned["seconds"] is None
    result = CliRunner().invoke(app, [*map(str, ("train", *data)), "--dry-run", "--json"])
    assert json.loads(result.stdout)["seconds"] > 0
    assert "on this machine (cpu)" in result.stderr


def test_images(trained: dict[str, Any], place: Path) -> None:
    drawn = ask("sample", place / "run", "-n", 30, "--out", place / "some.npz")
    assert drawn == {
        "out": str(place / "some.npz"), "images": 30, "shape": [8, 8], "class_counts": {"0": 10, "1": 10, "2": 10},
    }  # fmt: skip
    written = ask("export", place / "run", place / "png", "-n", 4, "--class", "2")
    assert written["class_counts"] == {"0": 0, "1": 0, "2": 4}


def test_privacy_and_budget(trained: dict[str, Any], place: Path) -> None:
    accounted = ask("privacy", "account", place / "run")
    assert accounted.keys() >= COST
    explained = ask("privacy", "explain", place / "run")
    assert accounted.items() <= explained.items()
    assert "What it does not cover" in explained["explanation"]
    budget = ask("budget", place / "budget")
    assert (budget["epsilon"], budget["delta"]) == (20, 1e-4)
    assert [run["run"] for run in budget["runs"]] == [str(place / "run")]
    assert 0 < budget["spent_epsilon"] <= 20
    assert budget["runs"][0].keys() >= {"neighbours", "unit", "observer"}


def test_a_release_and_its_verification(trained: dict[str, Any], place: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    assert ask("report", place / "run")["report"] == str((place / "run/release/report.html").resolve())
    packed = ask("release", place / "run", "--out", place / "bundle")
    assert packed["page"] is True
    found = ask("verify", place / "bundle", "--digest", packed["digest"])
    assert (found["verified"], found["findings"], found["compared"]) == (True, [], "bundle")
    assert found["digest"] == packed["digest"]
    assert found["privacy"].keys() >= COST
    (place / "bundle/card.md").write_text("no guarantee")
    found = ask("verify", place / "bundle", code=1)
    assert found["verified"] is False
    assert found["findings"][0]["where"] == "card.md"
    assert found["privacy"] is None


def test_a_reference_classifier(place: Path) -> None:
    found = ask("reference-classifier", "--data", place / "stripes.npz", "--classes", 3, "--out", place / "public.st")
    assert found["out"] == str(place / "public.st")
    assert found["records"] + found["held_out"] == tiny_images().n
    assert 0 <= found["accuracy"] <= 1


def test_a_log_has_a_line_every_so_often(place: Path, monkeypatch) -> None:
    now = iter(range(0, 10_000, 7))
    monkeypatch.setattr(progress, "monotonic", lambda: next(now))
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 30.0)
    with progress.progress_bar(110, spent=lambda done: "1 of 10 spent") as move:
        shown = []
        monkeypatch.setattr(progress.console, "print", shown.append)
        for done in range(101, 111):  # as in a run that was resumed after a hundred steps
            move(done)
    assert shown == [
        "step 105/110, 0.1 steps/s, 0:00:35, about 0:00:44 left, 1 of 10 spent",
        "step 110/110, 0.1 steps/s, 0:01:10, 1 of 10 spent",
    ]
