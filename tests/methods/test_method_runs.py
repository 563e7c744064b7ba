"""Runs of every method: what is released, said and published, and a run that is stopped."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_methods import BASELINES, CPU, DATA, PRIVATE, plan_of
from typer.testing import CliRunner

import gswgan
from conftest import tiny_baseline
from gswgan.cli.main import app
from gswgan.errors import LedgerError, PrivacyError
from gswgan.methods import METHODS
from gswgan.methods.dp_sgd_gan import DPSGDGAN
from gswgan.methods.gan import VOID
from gswgan.privacy import Repeated
from gswgan.privacy.events import tally
from gswgan.privacy.ledger import read_ledger
from gswgan.report.explain import explanation, outcome
from gswgan.report.page import comparison_page, single_page
from gswgan.report.release import read_release
from gswgan.run import loop
from gswgan.run.folder import RunFolder


@functools.cache
def _finished(method: str, place: Path) -> RunFolder:
    folder = RunFolder.create(place / method, plan_of(method, secret=True))
    assert loop.run(folder, DATA, device=CPU)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A finished run of a method, with a secret key, made once."""
    return functools.partial(_finished, place=tmp_path_factory.mktemp("methods"))


@pytest.mark.parametrize("method", BASELINES)
def test_the_ledger_has_what_was_planned(method: str, finished) -> None:
    folder = finished(method)
    assert json.loads(folder.model.read_text())["method"] == method
    assert not folder.key.exists()
    if method == "gan":
        assert not folder.ledger.exists()  # nothing was sanitized, so there is nothing to add up
        return
    _, entries, _ = read_ledger(folder.ledger)
    assert Counter(entry.event for entry in entries) == Counter(folder.plan().releases())
    statement = json.loads(folder.privacy.read_text())
    assert statement["void"] is None
    assert statement["epsilon"] == pytest.approx(10, rel=1e-3)
    assert (statement["delta"], statement["neighbours"], statement["observer"]) == (1e-5, "replace-one", "public")


@pytest.mark.parametrize("method", BASELINES)
def test_it_saves_loads_and_samples_the_same(method: str, finished, tmp_path: Path) -> None:
    model = gswgan.load(finished(method).root, device="cpu")
    images, labels = model.sample(20, seed=3)
    assert images.shape == (20, 8, 8)
    model.save(tmp_path / "copy")
    again = gswgan.load(tmp_path / "copy", device="cpu")
    assert np.array_equal(again.sample(20, seed=3)[0], images)
    assert np.array_equal(again.sample(20, seed=3)[1], labels)
    assert not np.array_equal(again.sample(20, seed=4)[0], images)
    if method == "gan":
        with pytest.raises(PrivacyError, match="WITHOUT differential privacy"):
            _ = again.privacy
    else:
        assert (again.privacy.delta, again.privacy.neighbours, again.privacy.observer) == (
            1e-5,
            "replace-one",
            "public",
        )


@pytest.mark.parametrize("method", BASELINES)
def test_every_page_reads_sensibly(method: str, finished) -> None:
    folder = finished(method)
    statement = json.loads(folder.privacy.read_text())
    pages = {
        "card": folder.card.read_text(),
        "outcome": outcome(folder),
        "explanation": explanation(folder.plan(), statement),
        "report": single_page(read_release(folder.root)).html,
    }
    account = CliRunner().invoke(app, ["privacy", "account", str(folder.root)])
    assert account.exit_code == 0
    pages["account"] = account.output
    for name, text in pages.items():
        words = re.sub(r"base64,[^\"]*", "", text)  # four letters of a picture may be anything
        assert "None" not in words.replace("**None.**", ""), name
        if method == "gan":
            assert "WITHOUT differential privacy" in text, name
            assert "epsilon 1" not in text, name
            assert "may be published" not in text, name
        else:
            assert "NO GUARANTEE" not in text, name
            assert ("Epsilon" if name == "report" else "epsilon 10") in text, name
    assert method in pages["card"]
    assert METHODS[method].about.partition(" (")[0] in pages["report"]


def test_releases_of_all_methods_can_be_compared(finished) -> None:
    html = comparison_page([(name, read_release(finished(name).root)) for name in BASELINES]).html
    assert html.count("NO GUARANTEE") == 2  # the table and the card of the GAN
    assert all(f"<td>{name}</td>" in html for name in BASELINES)


def test_a_gan_that_states_an_epsilon_is_not_believed(finished, tmp_path: Path) -> None:
    """Whatever its privacy.json says: the plan is of a method without a guarantee."""
    gswgan.load(finished("gan").root).save(tmp_path / "copy")
    stated = json.loads((tmp_path / "copy" / "privacy.json").read_text())
    stated |= {"void": None, **json.loads(finished("dp-merf").privacy.read_text())}
    (tmp_path / "copy" / "privacy.json").write_text(json.dumps(stated))
    assert "NO GUARANTEE" in CliRunner().invoke(app, ["privacy", "account", str(tmp_path / "copy")]).output
    assert read_release(tmp_path / "copy").void == VOID
    with pytest.raises(PrivacyError):
        _ = gswgan.load(tmp_path / "copy").privacy


def weights(folder: RunFolder) -> bytes:
    return folder.generator.read_bytes()


@pytest.mark.parametrize("method", BASELINES)
def test_a_stopped_and_a_killed_run_go_on_as_if_nothing_had_been(method: str, tmp_path: Path) -> None:
    plan = plan_of(method)
    straight = RunFolder.create(tmp_path / "straight", plan)
    assert loop.run(straight, DATA, device=CPU)
    for name in ("stopped", "killed"):
        folder = RunFolder.create(tmp_path / name, plan)

        def progress(done: int, name: str = name) -> None:
            if done == 2 and name == "killed":  # without a checkpoint
                raise MemoryError
            if done == 2:
                os.kill(os.getpid(), 2)

        with contextlib.suppress(MemoryError):
            assert not loop.run(folder, DATA, device=CPU, progress=progress)
        assert not folder.is_finished
        assert loop.run(folder, DATA, device=CPU)
        assert weights(folder) == weights(straight), name
        if method != "gan":
            assert folder.ledger.read_bytes() == straight.ledger.read_bytes()


@pytest.mark.parametrize("method", PRIVATE)
def test_a_run_that_releases_less_than_it_states_is_not_published(method: str, tmp_path: Path, monkeypatch) -> None:
    """The ledger is held against the method's own total: a total of one release more, and nothing leaves."""
    plan = plan_of(method)
    settings, total = type(plan.critic), type(plan.critic).total
    folder = RunFolder.create(tmp_path / "run", plan)
    (last,) = list(plan.releases())[-1:]

    def more(self, draft, steps):
        found = tally(total(self, draft, steps))
        return gswgan.privacy.Composed(
            events=tuple(Repeated(event=event, times=times + (event == last)) for event, times in found.items())
        )

    monkeypatch.setattr(settings, "total", more)
    monkeypatch.setattr(loop, "check_stated", lambda plan: None)  # it would refuse such a plan at once
    with pytest.raises(LedgerError, match="at least the planned"):
        loop.run(folder, DATA, device=CPU)
    assert not folder.generator.exists()


def test_a_run_ends_when_all_releases_are_made(tmp_path: Path, monkeypatch) -> None:
    """More updates a step as the discriminator falls behind: fewer steps, the same releases; and so when resumed."""
    plan = plan_of("dp-sgd-gan")
    monkeypatch.setattr(DPSGDGAN, "_raise_updates", lambda self, step, generator: setattr(self, "updates", 15))
    done: list[int] = []
    straight = RunFolder.create(tmp_path / "straight", plan)
    assert loop.run(straight, DATA, device=CPU, progress=done.append)
    assert done[-1] < plan.training.steps
    _, entries, _ = read_ledger(straight.ledger)
    assert len(entries) == plan.critic.releases
    folder = RunFolder.create(tmp_path / "stopped", plan)

    def interrupt(step: int) -> None:
        if step == done[-1]:  # after the last release, before anything is published
            raise MemoryError

    monkeypatch.setattr(loop.Checkpoint, "is_due", lambda self: True)
    with pytest.raises(MemoryError):
        loop.run(folder, DATA, device=CPU, progress=interrupt)
    assert loop.run(folder, DATA, device=CPU)
    assert weights(folder) == weights(straight)
    assert folder.ledger.read_bytes() == straight.ledger.read_bytes()


def test_a_run_stopped_at_its_end_is_published(tmp_path: Path, monkeypatch) -> None:
    """Ctrl-C in the step that makes the last release: there is nothing left to resume."""
    monkeypatch.setattr(DPSGDGAN, "finished", property(lambda self: self.done >= 1))
    plan = tiny_baseline(DATA, "dp-sgd-gan", steps=1, insecure_reproducible=True)
    folder = RunFolder.create(tmp_path / "run", plan)
    assert loop.run(folder, DATA, device=CPU, progress=lambda done: os.kill(os.getpid(), 2))
    assert folder.is_finished
