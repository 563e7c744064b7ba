"""A stranger hands over a run folder to go on with: with a key that they know, or that names data of the victim."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fault_points
import numpy as np
import pytest
import torch
from fault_points import Died, Faults
from rounds import make_clients, people, small_plan

from conftest import tiny_images, tiny_plan
from gswgan import GSWGAN
from gswgan.cli import main
from gswgan.errors import GswganError, PrivacyError, StorageError
from gswgan.plan.plan import Plan
from gswgan.privacy import Ledger
from gswgan.privacy.ownership import check_marked, marked, state_folder
from gswgan.privacy.randomness import create_key, load_key
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from processes import Child

CPU, DATA, ZEROS = torch.device("cpu"), tiny_images(48), bytes(32)


def plan(**options: Any) -> Plan:
    return tiny_plan(DATA, steps=2, **options)


@contextmanager
def another_user(state: Path) -> Iterator[None]:
    """Somebody with a secret of their own, on this machine or another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GSWGAN_STATE", str(state))
        yield


def stopped_run(root: Path, **options: Any) -> RunFolder:
    """A run with a key that died in its release."""
    folder = RunFolder.create(root, plan(**options), source={"spec": "digits"})
    with Faults("sync journal.jsonl after:1", fault_points.die, sync=False).installed(), pytest.raises(Died):
        run(folder, DATA, device=CPU)
    return folder


def known_key(folder: RunFolder) -> None:
    """The stranger's work: a key of zeros, as create_key would write it."""
    folder.key.unlink(missing_ok=True)
    create_key(folder.key, folder.plan().digest(), secret=ZEROS)


def old_key(folder: RunFolder) -> None:
    """As earlier versions wrote it: without a mark."""
    content = {"format_version": 1, "context": folder.plan().digest(), "secret": ZEROS.hex()}
    folder.key.write_text(json.dumps(content))
    folder.key.chmod(0o600)


def edited_key(folder: RunFolder) -> None:
    """The mark of the true key on a key of zeros."""
    folder.key.write_text(json.dumps({**json.loads(folder.key.read_text()), "secret": ZEROS.hex()}))


@pytest.mark.parametrize("planted", [known_key, old_key])
@pytest.mark.parametrize("began", ["theirs", "mine"])
def test_a_key_that_somebody_else_made_is_refused(tmp_path: Path, planted: Callable[..., None], began: str) -> None:
    """Planted into a run of theirs, or into one of the victim's: no release, no epsilon."""
    stranger = tmp_path / "stranger"
    if began == "mine":
        folder = stopped_run(tmp_path / "run")
    with another_user(stranger):
        if began == "theirs":
            folder = RunFolder.create(tmp_path / "run", plan())
        planted(folder)
    ledger = folder.ledger.read_bytes() if folder.ledger.exists() else b""
    with pytest.raises(PrivacyError, match=r"made by this user on this machine.*Start a new run"):
        run(folder, DATA, device=CPU)
    assert not folder.generator.exists()
    assert not folder.privacy.exists()
    assert (folder.ledger.read_bytes() if folder.ledger.exists() else b"") == ledger


def test_an_edited_key_is_refused(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path / "run")
    edited_key(folder)
    with pytest.raises(PrivacyError, match="its mark is another's"):
        run(folder, DATA, device=CPU)
    assert not folder.generator.exists()


def test_a_key_that_others_could_read_is_refused(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path / "run")
    folder.key.chmod(0o644)
    with pytest.raises(StorageError, match="mode 0644"):
        run(folder, DATA, device=CPU)
    folder.key.chmod(0o600)
    assert run(folder, DATA, device=CPU)


@pytest.mark.parametrize("name", ["key.json", "owner.json"])
def test_a_key_or_mark_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    folder = stopped_run(tmp_path / "run")
    (folder.private / name).rename(tmp_path / "moved")
    (folder.private / name).symlink_to(tmp_path / "moved")
    with pytest.raises(GswganError):
        run(folder, DATA, device=CPU)
    assert not folder.generator.exists()


@pytest.mark.parametrize("with_data", [False, True])
def test_resume_follows_no_strangers_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], with_data: bool
) -> None:
    """The folder names the victim's own data; with --data the folder's key is still the stranger's."""
    np.savez(tmp_path / "private.npz", images=DATA.images[:, 0], labels=DATA.labels)
    where = {"spec": str(tmp_path / "private.npz"), "classes": 3}
    with another_user(tmp_path / "stranger"):
        folder = RunFolder.create(tmp_path / "run", plan(), source=where)
        known_key(folder)
    read: list[object] = []
    if not with_data:
        monkeypatch.setattr("gswgan.evaluation.real_data.open_data", lambda **options: read.append(options))
    given = ["--data", where["spec"], "--classes", "3"] if with_data else []
    monkeypatch.setattr(sys, "argv", ["gswgan", "train", "--resume", str(folder.root), *given, "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "made by this user on this machine" in said
    assert str(state_folder()) in said
    assert "Traceback" not in said
    assert read == []
    assert not folder.ledger.exists()
    assert not folder.generator.exists()


def test_evaluate_follows_no_strangers_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with another_user(tmp_path / "stranger"):
        folder = RunFolder.create(tmp_path / "run", plan(), source={"spec": "digits"})
        assert run(folder, DATA, device=CPU)
    monkeypatch.setattr(sys, "argv", ["gswgan", "evaluate", str(folder.root), "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 2
    assert "pass --data" in capsys.readouterr().err


def test_a_run_that_is_moved_on_this_machine_goes_on(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path / "run")
    shutil.move(folder.root, tmp_path / "moved")
    moved = RunFolder(tmp_path / "moved")
    assert moved.remembered_source() == {"spec": "digits"}
    assert run(moved, DATA, device=CPU)


def test_a_run_from_another_machine_goes_on_with_that_machines_state(tmp_path: Path) -> None:
    with another_user(tmp_path / "old machine"):
        folder = stopped_run(tmp_path / "run")
    with pytest.raises(PrivacyError, match=r"move that machine's state folder .* GSWGAN_STATE"):
        run(folder, DATA, device=CPU)
    shutil.move(tmp_path / "old machine", tmp_path / "brought along")
    with another_user(tmp_path / "brought along"):
        assert run(folder, DATA, device=CPU)


def test_a_reproducible_run_goes_on_as_well(tmp_path: Path) -> None:
    assert run(stopped_run(tmp_path / "run", insecure_reproducible=True), DATA, device=CPU)


def test_a_client_takes_no_strangers_key(tmp_path: Path) -> None:
    data = people(12)
    asked = small_plan(data)
    name, client = next(iter(make_clients(tmp_path / "state", data, asked).items()))
    folder = client.home / asked.digest()[:32]
    folder.mkdir(mode=0o700)
    with another_user(tmp_path / "stranger"):
        create_key(folder / "key.json", asked.digest(), secret=ZEROS)
    with pytest.raises(PrivacyError, match="made by this user"):
        client.answer(asked)
    assert not (folder / "answer.bin").exists(), name


# --- the secret itself


def test_a_mark_is_bound_to_kind_and_content(tmp_path: Path) -> None:
    good = marked("key", {"context": "plan", "number": 1})
    assert check_marked("key", good, tmp_path) == {"context": "plan", "number": 1}
    for kind, content in (("run", good), ("key", {**good, "number": 2}), ("key", {**good, "more": 0})):
        with pytest.raises(PrivacyError, match="mark is another's"):
            check_marked(kind, content, tmp_path)
    for mark in (None, 3, ["x"]):
        with pytest.raises(PrivacyError, match="no mark"):
            check_marked("key", {**good, "mark": mark}, tmp_path)
    with pytest.raises(PrivacyError, match="mark is another's"):
        check_marked("key", {**good, "mark": "é"}, tmp_path)


def test_the_secret_is_made_once_and_closed(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with another_user(tmp_path / "a" / "state"):
            one = marked("key", {})
            secret = state_folder() / "owner.key"
            assert marked("key", {}) == one
            assert (secret.stat().st_mode & 0o777, len(secret.read_bytes())) == (0o600, 32)
            assert not secret.parent.stat().st_mode & 0o022
            secret.chmod(0o640)
            with pytest.raises(StorageError, match="mode 0640"):
                marked("key", {})
            secret.chmod(0o600)
            secret.write_bytes(b"short")
            with pytest.raises(StorageError, match="32 bytes"):
                check_marked("key", one, tmp_path)
            secret.write_bytes(bytes(33))
            with pytest.raises(StorageError, match="32 bytes"):
                check_marked("key", one, tmp_path)
        with another_user(tmp_path / "b"):
            assert marked("key", {}) != one
    finally:
        os.umask(before)


def test_checking_makes_no_secret(tmp_path: Path) -> None:
    """An empty state folder has no marks of its own: nothing to compare with, and nothing is written."""
    create_key(tmp_path / "key", "plan")
    with another_user(tmp_path / "state"), pytest.raises(PrivacyError, match="mark is another's"):
        load_key(tmp_path / "key", "plan")
    assert not (tmp_path / "state").exists()


def test_a_state_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with another_user(tmp_path / "state"), pytest.raises(StorageError, match="nobody else can write to"):
        marked("key", {})
    assert not list((tmp_path / "state").iterdir())


# --- a process that is killed in `fit`


def fit_and_be_killed(state: Path) -> None:
    os.environ["GSWGAN_STATE"] = str(state)
    Ledger.record = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # there is a key by now
    GSWGAN(steps=1, device="cpu").fit(DATA.images[:, 0], DATA.labels, classes=3)


def test_the_next_fit_removes_the_key_of_one_that_was_killed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    done = Child(fit_and_be_killed, state).wait()
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = state.rglob("key.json")
    with another_user(state):
        first = GSWGAN(steps=1, device="cpu").fit(DATA.images[:, 0], DATA.labels, classes=3)
        assert not left.exists()
        assert not left.parents[2].exists()
        second = GSWGAN(steps=1, device="cpu").fit(DATA.images[:, 0], DATA.labels, classes=3)
        drawn = [len(model.sample(3)[0]) for model in (first, second)]  # one that lives is left alone
        first = second = None
        gc.collect()
    assert drawn == [3, 3]
    assert not list(state.rglob("run"))
