"""Runs and budgets of the earlier format: a run is refused in words and left as it is, a budget is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conftest import tiny_images, tiny_plan
from gswgan.api import load
from gswgan.errors import PlanError, PrivacyError
from gswgan.methods import read_plan
from gswgan.privacy.ledger import chained_line
from gswgan.release.pack import pack
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from gswgan.run.retrain import retrain
from processes import command_line

CPU, DATA = torch.device("cpu"), tiny_images(48)


def earlier_run(root: Path, *, finished: bool) -> RunFolder:
    """As version 4 of the plan had it: preset `default`, a book instead of a budget."""
    folder = RunFolder.create(root, tiny_plan(DATA, steps=2), source={"spec": "digits"})
    if finished:
        assert run(folder, DATA, device=CPU)
    else:
        (folder.private / "book.json").write_text(json.dumps({"format_version": 1, "book": str(root / "book.jsonl")}))
    content = json.loads(folder.model.read_text())
    content["plan"] |= {"format_version": 4, "preset": "default"}
    folder.model.write_text(json.dumps(content))
    return folder


USES: dict[str, Callable[[RunFolder], object]] = {
    "load": lambda folder: load(folder.root),
    "pack": lambda folder: pack(folder.root, folder.root.with_name("packed")),
    "train on its embedding": lambda folder: retrain(
        folder.root, folder.root.with_name("again"), steps=2, device="cpu", seed=0
    ),
    "resume": lambda folder: run(RunFolder(folder.root), DATA, device=CPU),
}


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("use", "finished"), [*((use, True) for use in USES), ("resume", False), ("load", False)])
def test_an_earlier_run_is_refused_in_words_and_left_as_it_is(tmp_path: Path, use: str, finished: bool) -> None:
    folder = earlier_run(tmp_path / "run", finished=finished)
    before = files(tmp_path)
    with pytest.raises(PlanError, match=r"format_version = 4: expected 6.*earlier version of gswgan.*that version"):
        USES[use](folder)
    assert {path: content for path, content in files(tmp_path).items() if path.name != "lock"} == {
        path: content for path, content in before.items() if path.name != "lock"
    }


def test_the_command_line_says_so_in_one_message(tmp_path: Path) -> None:
    folder = earlier_run(tmp_path / "run", finished=False)
    ended = command_line("train", "--resume", folder.root).wait()
    assert ended.returncode == 2
    assert ended.stderr.startswith("gswgan: plan.format_version = 4")
    assert "Traceback" not in ended.stderr


def test_a_version_that_never_was_is_no_earlier_one() -> None:
    for version in (7, 0, -1, None, "4"):
        with pytest.raises(PlanError, match=r"format_version.*--save-plan") as said:
            read_plan({"format_version": version})
        assert "earlier" not in str(said.value)


def earlier_book(path: Path, noise_std: float) -> Path:
    """A book with one run of preset `default`, to the letter as it was written then."""
    header = {"format_version": 2, "epsilon": 12.0, "delta": 1e-5, "sampled_share": None, "key": "ab" * 32, "index": 0}
    event = {"kind": "gaussian", "neighbours": "replace-one", "noise_std": noise_std, "sensitivity": 2.0}
    row = {
        "run": "cd" * 32, "where": "/runs/digits", "when": "2026-01-01T00:00:00+00:00",
        "what": "gswgan default: digits", "data": "ef" * 64, "relation": ["replace-one", "record", "public"],
        "releases": {"kind": "repeated", "event": event, "times": 1}, "cost": None, "index": 1,
    }  # fmt: skip
    first, head = chained_line(header, "")
    path.write_text(first + chained_line(row, head)[0])
    path.with_name(path.name + ".runs").mkdir(mode=0o700)
    return path


def test_an_earlier_book_is_read_as_a_budget(tmp_path: Path) -> None:
    """What is in it counts: there is room for a small run, and none for another that is as large."""
    budget = Budget(earlier_book(tmp_path / "book.jsonl", noise_std=1.0))
    assert [(one.run, one.what) for one in budget.runs] == [("cd" * 32, "gswgan default: digits")]
    assert 9.9 < budget.spent() < 10.1
    assert "with this run" in budget.check(tiny_plan(DATA, epsilon=1.0))
    with pytest.raises(PrivacyError, match="at most the budget of 12"):
        budget.check(tiny_plan(DATA, epsilon=10.0))
