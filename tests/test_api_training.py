"""GSWGAN as a program uses it: plan, follow, stop and resume a run; its arguments and messages."""

from __future__ import annotations

import ast
import logging
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import sklearn.base
from rich.console import Console

import gswgan
from conftest import tiny_images
from gswgan import GSWGAN
from gswgan.api import Interrupted, PlannedRun, StepDone, progress
from gswgan.api.wording import python_words
from gswgan.errors import DataError, GswganError, GswganWarning, PlanError, PrivacyError, RunError
from gswgan.privacy.ledger import read_ledger
from gswgan.run.budget import Budget
from gswgan.run.folder import RunFolder

DATA = tiny_images(300)
IMAGES, LABELS = DATA.images[:, 0], DATA.labels
STEPS = 40


def model(**arguments: object) -> GSWGAN:
    return GSWGAN(steps=STEPS, device="cpu", **arguments)  # type: ignore[arg-type]


# -- arguments ----------------------------------------------------------------------------------------------------


def test_scikit_learn_clones_it() -> None:
    budget = Path("a.budget")
    first = model(epsilon=3, budget=budget)
    second = sklearn.base.clone(first)
    assert second is not first
    assert second.get_params() == first.get_params()
    assert second.set_params(epsilon=2, verbose=False) is second
    assert (second.epsilon, first.epsilon) == (2, 3)
    with pytest.raises(PlanError, match="sigma"):
        second.set_params(sigma=1)


def test_a_clone_is_not_trained() -> None:
    trained = model().fit(IMAGES, LABELS, classes=3)
    with pytest.raises(RunError, match="Call fit first"):
        sklearn.base.clone(trained).sample(1)


# -- plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_made_printed_saved_and_run(tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    planned = model(epsilon=3).plan(IMAGES, LABELS, classes=3, name="stripes")
    assert sorted(tmp_path.iterdir()) == before  # a dry run leaves nothing
    assert planned.plan.cost.epsilon <= 3
    assert "guarantee: epsilon 3 at delta 1e-05" in str(planned)
    assert "what more or less data would buy" in str(planned)
    assert "stripes: 300 records, 3 classes" in str(planned)
    assert "array(" not in repr(planned)  # nothing of the data
    planned.save(tmp_path / "plan.json")
    with pytest.raises(RunError, match="does not exist yet"):
        planned.save(tmp_path / "plan.json")
    trained = model().fit(planned, out=tmp_path / "run")
    assert trained.plan_ == planned.plan
    again = model().plan(IMAGES, LABELS, classes=3, saved=tmp_path / "plan.json")
    assert again.plan == planned.plan
    with pytest.raises(PlanError, match="data: records"):
        model().plan(IMAGES[:60], LABELS[:60], classes=3, saved=tmp_path / "plan.json")


def test_a_plan_for_another_machine_is_not_run_here() -> None:
    planned = GSWGAN(device="cuda", steps=STEPS).plan(IMAGES, LABELS, classes=3)
    assert isinstance(planned, PlannedRun)
    with pytest.raises(PlanError, match="which has 0"):
        GSWGAN(device="cuda", steps=STEPS).fit(planned)


def test_warnings_are_in_the_plan_and_in_fit() -> None:
    one = np.zeros(300, int)
    with pytest.warns(GswganWarning, match="a single class"):
        model().fit(IMAGES, one, classes=3)
    planned = model().plan(IMAGES, one, classes=3)
    assert "warning: labels = 'a single class'" in repr(planned)
    assert "--" not in repr(planned)


def test_a_budget_is_kept(tmp_path: Path) -> None:
    Budget.create(tmp_path / "our.budget", epsilon=3.1, delta=1e-5)
    arguments = {"epsilon": 3, "delta": 1e-6, "budget": tmp_path / "our.budget"}
    assert "budget:" in str(model(**arguments).plan(IMAGES, LABELS, classes=3))
    assert Budget(tmp_path / "our.budget").runs == []  # planning enters nothing
    model(**arguments).fit(IMAGES, LABELS, classes=3)
    assert len(Budget(tmp_path / "our.budget").runs) == 1
    with pytest.raises(PrivacyError, match="budget"):
        model(**arguments).fit(IMAGES, LABELS, classes=3)


# -- a run that is followed ---------------------------------------------------------------------------------------


def test_a_callback_is_told_what_is_public(caplog: pytest.LogCaptureFixture) -> None:
    told: list[StepDone] = []
    with caplog.at_level(logging.INFO, logger="gswgan"):
        model(callback=told.append).fit(IMAGES, LABELS, classes=3)
    assert [one.step for one in told] == list(range(1, STEPS + 1))
    stated = {"delta": 1e-5, "neighbours": "replace-one", "observer": "public"}
    assert told[-1] == StepDone(step=STEPS, steps=STEPS, epsilon=pytest.approx(10, rel=1e-3), **stated)
    lines = [line for line in caplog.messages if line.startswith("step ")]
    assert len(lines) == progress.LOG_LINES
    assert lines[-1] == f"step {STEPS}/{STEPS}, 10 of 10 spent"
    other = [line for line in caplog.messages if not line.startswith("step ")]
    assert [line.partition(":")[0] for line in other] == ["run folder", "guarantee", "releasing the embedding"]
    assert other[1] == "guarantee: epsilon 10 at delta 1e-05 (one record replaced; observer: public)"


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    with caplog.at_level(logging.INFO, logger="gswgan"):
        model().fit(IMAGES, LABELS, classes=3)
    shown = capsys.readouterr()
    assert f"step {STEPS}/{STEPS}" in shown.err
    assert shown.err.startswith("guarantee: epsilon 10 at delta 1e-05 (one record replaced; observer: public)\n")
    assert "10 of 10 spent" in shown.err
    assert shown.out == ""
    assert not any(line.startswith("step ") for line in caplog.messages)  # not twice
    model(verbose=False).fit(IMAGES, LABELS, classes=3)
    assert capsys.readouterr().err == ""


def test_elsewhere_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    model().fit(IMAGES, LABELS, classes=3)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")


# -- a run that is stopped ----------------------------------------------------------------------------------------


def stop_at(step: int):
    """As Ctrl-C does."""
    return lambda done: os.kill(os.getpid(), signal.SIGINT) if done.step == step else None


@pytest.mark.parametrize("keep", [True, False])
def test_ctrl_c_says_how_to_resume_and_it_does(tmp_path: Path, keep: bool) -> None:
    out = tmp_path / "run" if keep else None
    with pytest.raises(Interrupted, match=r"Continue with: gswgan\.resume\('.*', images, labels\)") as stopped:
        model(callback=stop_at(10)).fit(IMAGES, LABELS, classes=3, out=out)
    folder = Path(re.search(r"resume\('(.*)', images", str(stopped.value))[1])
    assert folder == stopped.value.folder
    with pytest.raises(RunError, match=re.escape("the same records in the same order")):
        gswgan.resume(folder, IMAGES[::-1], LABELS[::-1], device="cpu")
    steps: list[int] = []
    again = gswgan.resume(folder, IMAGES, LABELS, device="cpu", callback=lambda done: steps.append(done.step))
    assert steps == list(range(11, STEPS + 1))
    assert again.sample(5)[0].shape == (5, 8, 8)
    assert len(read_ledger(RunFolder(folder).ledger)[1]) == 1  # released once


def test_a_run_on_a_path_finds_its_data_again(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=IMAGES, labels=LABELS)
    with pytest.raises(Interrupted, match=r"gswgan\.resume\('[^,]*'\)$") as stopped:
        model(callback=stop_at(10)).fit(tmp_path / "set.npz", classes=3, out=tmp_path / "run")
    assert gswgan.resume(stopped.value.folder, device="cpu").plan_.facts.records == 300
    with pytest.raises(RunError, match="a run that has not ended"):
        gswgan.resume(tmp_path / "run", device="cpu")
    with pytest.raises(RunError, match="a run that was stopped"):
        gswgan.resume(tmp_path / "nothing")


def test_a_new_generator_on_a_release_costs_nothing(tmp_path: Path) -> None:
    first = model().fit(IMAGES, LABELS, classes=3, out=tmp_path / "run")
    again = gswgan.retrain(tmp_path / "run", out=tmp_path / "again", steps=5, seed=3, device="cpu")
    assert again.privacy == first.privacy
    assert not np.array_equal(again.sample(9, seed=0)[0], first.sample(9, seed=0)[0])


# -- messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Pass classes=N (--classes N).", "Pass classes=N."),
        ("Check the path (--data).", "Check the path."),
        ("Leave --device out to let it be chosen.", "Leave device out to let it be chosen."),
        ("Use --device cpu or auto.", "Use device='cpu' or auto."),
        ("Pass --channels 1 or --channels 3.", "Pass channels=1 or channels=3."),
        ("Pass --pixel-range 0:4095 for 12 bits.", "Pass pixel_range='0:4095' for 12 bits."),
        ("When it does: gswgan train --resume /a/run", "When it does: gswgan.resume('/a/run')"),
        ("Make one: gswgan budget FILE --epsilon 10 --delta 1e-5.",) * 2,
        ("Go on with `gswgan federate`.",) * 2,
        ("Choose another --out, or --resume it.",
         "Choose another out, or continue the run with gswgan.resume(folder)."),
    ],
)  # fmt: skip
def test_messages_speak_of_arguments(said: str, meant: str) -> None:
    assert python_words(said) == meant


def test_no_message_speaks_of_an_option_of_the_command_line() -> None:
    """All texts of the layers below the command line."""
    source, seen = Path(gswgan.__file__).parent, 0
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] in ("cli", "federated", "benchmark", "audit", "release", "report"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"--[a-z]", node.value):
                seen += 1
                left = re.sub(r"`gswgan [^`]*`|gswgan [a-z]+[^`]*", "", python_words(node.value))
                assert path.name == "wording.py" or not re.search(r"--[a-z]", left), (path, node.value)
    assert seen > 40


@pytest.mark.parametrize(
    ("wrong", "arguments"),
    [
        (lambda: GSWGAN(preset="sharp").fit(IMAGES, LABELS, classes=3), "preset"),
        (lambda: GSWGAN(method="magic").fit(IMAGES, LABELS, classes=3), "method"),
        (lambda: GSWGAN(delta=0.5).fit(IMAGES, LABELS, classes=3), "allow_large_delta"),
        (lambda: GSWGAN(device="tpu").fit(IMAGES), "device"),
        (lambda: GSWGAN().fit(IMAGES, LABELS), "classes=N"),
        (lambda: GSWGAN().fit(IMAGES, LABELS, klasses=3), "klasses"),
        (lambda: GSWGAN().fit(Path("nowhere")), "the path"),
        (lambda: gswgan.load("nowhere"), "run folder"),
    ],
)
def test_errors_are_in_the_words_of_python(wrong, arguments: str) -> None:
    with pytest.raises(GswganError, match=re.escape(arguments)) as said:
        wrong()
    assert "--" not in re.sub(r"`gswgan [^`]*`", "", str(said.value))
    assert isinstance(said.value, DataError | PlanError | RunError)
