from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import gswgan
from conftest import tiny_images, tiny_plan
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.data import ImageData
from gswgan.errors import GswganError, PrivacyError, RunError
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import Ledger, read_ledger
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from gswgan.run.retrain import retrain

CPU = torch.device("cpu")


def plan_of(kind: str, data: ImageData, **options: object) -> Plan:
    """default, ensemble, paper (with warm start): small."""
    plan = tiny_plan(data, preset=kind, insecure_reproducible=True, **options)
    if kind == "paper":
        plan = dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, warm_start=2))
    return plan


def go(folder: RunFolder, data: ImageData | None, *, stop_after: int | None = None, monkeypatch=None) -> bool:
    """Run; with `stop_after`, press Ctrl-C once during that step."""

    def progress(done: int) -> None:
        if done == stop_after:
            os.kill(os.getpid(), 2)

    return loop.run(folder, data, device=CPU, progress=progress)


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder.generator)


@pytest.mark.parametrize("kind", ["kernel", "ensemble", "paper"])
def test_resume_equals_the_straight_run(tmp_path: Path, stripes: ImageData, kind: str) -> None:
    plan = plan_of(kind, stripes)
    straight = RunFolder.create(tmp_path / "straight", plan)
    assert go(straight, stripes)
    for stop in (1, 5):
        folder = RunFolder.create(tmp_path / f"stopped-{stop}", plan)
        assert not go(folder, stripes, stop_after=stop)
        assert not folder.is_finished
        assert go(folder, stripes)
        assert folder.ledger.read_bytes() == straight.ledger.read_bytes()
        expected = weights(straight)
        for name, value in weights(folder).items():
            assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("kind", ["kernel", "ensemble"])
def test_steps_lost_in_a_crash_are_the_same_releases_again(tmp_path: Path, stripes: ImageData, kind: str) -> None:
    """A crash after the last checkpoint: the steps are done again, bit for bit, and not counted twice."""
    plan = plan_of(kind, stripes)
    straight = RunFolder.create(tmp_path / "straight", plan)
    assert go(straight, stripes)
    folder = RunFolder.create(tmp_path / "crashed", plan)

    def crash(done: int) -> None:
        if done == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        loop.run(folder, stripes, device=CPU, progress=crash)
    assert go(folder, stripes)
    assert folder.ledger.read_bytes() == straight.ledger.read_bytes()
    assert all(torch.equal(value, weights(straight)[name]) for name, value in weights(folder).items())


def test_a_step_that_cannot_be_repeated_is_counted_again(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    """Another sum under the same name (a machine that is not bit-identical): fresh noise, one more line."""
    plan = plan_of("ensemble", stripes)
    folder = RunFolder.create(tmp_path / "run", plan)

    def crash(done: int) -> None:
        if done == 3:
            raise MemoryError

    with pytest.raises(MemoryError):
        loop.run(folder, stripes, device=CPU, progress=crash)
    before = Ensemble._blocks
    monkeypatch.setattr(Ensemble, "_blocks", lambda self, x, y: ((rows * 0.5, None) for rows, _ in before(self, x, y)))
    assert go(folder, stripes)
    _, entries, _ = read_ledger(folder.ledger)
    assert len(entries) > plan.privacy.releases
    assert json.loads(folder.privacy.read_text())["epsilon"] > plan.guarantee.epsilon


def test_nothing_private_outside_private(tmp_path: Path, stripes: ImageData, capsys) -> None:
    for kind in ("kernel", "ensemble"):
        folder = RunFolder.create(tmp_path / kind, plan_of(kind, stripes))
        assert go(folder, stripes)
        expected = {"generator.safetensors", "model.json", "privacy.json", "ledger.jsonl", "card.md", "samples.png"}
        expected |= {"embedding.safetensors"} if kind == "kernel" else set()
        assert {path.name for path in folder.release.iterdir()} == expected
        assert {path.name for path in folder.root.iterdir()} == {"release", "private"}
        assert stat.S_IMODE(folder.private.stat().st_mode) == 0o700
        assert capsys.readouterr().out == ""


def test_release_is_the_same_for_data_that_gave_the_same_releases(tmp_path: Path, stripes: ImageData) -> None:
    """Everything under release/ is a function of the released embedding, plan and seed: no other path from the data."""
    plan = plan_of("kernel", stripes)
    first = RunFolder.create(tmp_path / "first", plan)
    assert go(first, stripes)
    other_data = tiny_images(seed=9)
    second = RunFolder.create(tmp_path / "second", plan)
    shutil.copy(first.embedding, second.embedding)
    shutil.copy(first.ledger, second.ledger)
    assert go(second, other_data)
    for path in first.release.iterdir():
        assert path.read_bytes() == (second.release / path.name).read_bytes(), path.name


def test_key_is_erased_when_the_run_ends(tmp_path: Path, stripes: ImageData) -> None:
    plan = dataclasses.replace(plan_of("kernel", stripes), insecure_reproducible=False)
    folder = RunFolder.create(tmp_path / "run", plan)
    assert not go(folder, stripes, stop_after=2)
    secret = json.loads(folder.key.read_text())["secret"]
    assert stat.S_IMODE(folder.key.stat().st_mode) == 0o600
    assert len(bytes.fromhex(secret)) == 32
    assert go(folder, stripes)
    assert not folder.key.exists()
    assert not folder.journal.exists()
    for path in folder.root.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()


def test_a_run_that_died_after_its_last_file_is_cleaned_up(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    folder = RunFolder.create(tmp_path / "run", plan_of("kernel", stripes))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_clean_up", lambda folder: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            go(folder, stripes)
    assert folder.key.exists()
    assert go(folder, stripes)
    assert not folder.key.exists()
    assert not folder.journal.exists()
    with pytest.raises(RunError, match="has not ended"):
        go(folder, stripes)


def test_classes_left_out_stay_so_after_a_stop_at_the_end(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    data = dataclasses.replace(stripes, labels=np.where(stripes.labels == 2, 0, stripes.labels))
    plan = plan_of("kernel", data)
    folder = RunFolder.create(tmp_path / "run", plan)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Checkpoint, "is_due", lambda self: True)
        patch.setattr(loop, "publish", lambda *rest: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(RunError, match="disk full"):
            go(folder, data)
    assert go(folder, data)
    assert json.loads(folder.model.read_text())["labels"] == [0, 1]


def test_two_runs_have_different_noise(tmp_path: Path, stripes: ImageData) -> None:
    plan = dataclasses.replace(plan_of("kernel", stripes), insecure_reproducible=False)
    sums = []
    for name in ("one", "two"):
        folder = RunFolder.create(tmp_path / name, plan)
        assert go(folder, stripes)
        sums.append(safetensors.torch.load_file(folder.embedding)["sums"])
    assert (sums[0] - sums[1]).std() == pytest.approx(plan.privacy.noise_std * 2**0.5, rel=0.2)


def test_one_key_never_serves_two_plans(tmp_path: Path, stripes: ImageData) -> None:
    """Even --insecure-reproducible gives other noise to another budget; a copied key file is refused."""
    plans = [plan_of("kernel", stripes, epsilon=epsilon) for epsilon in (10.0, 1.0)]
    folders = [RunFolder.create(tmp_path / str(i), plan) for i, plan in enumerate(plans)]
    draws = [folder.secret(plan).gaussian((500,), "noise", "embedding", 0) for folder, plan in zip(folders, plans)]
    assert abs(np.corrcoef(*draws)[0, 1]) < 0.2
    folders[1].key.unlink()
    shutil.copy(folders[0].key, folders[1].key)
    with pytest.raises(PrivacyError, match="One key serves one plan"):
        go(folders[1], stripes)


def test_resume_with_other_data_is_refused(tmp_path: Path, stripes: ImageData) -> None:
    folder = RunFolder.create(tmp_path / "run", plan_of("kernel", stripes))
    assert not go(folder, stripes, stop_after=2)
    images = stripes.images.copy()
    images[0, 0, 0, 0] ^= 1
    with pytest.raises(RunError, match="data that this run began with"):
        go(folder, dataclasses.replace(stripes, images=images))
    with pytest.raises(RunError):
        go(folder, tiny_images(97))
    assert go(folder, stripes)


def test_a_finished_run_a_taken_folder_and_a_second_process_are_refused(tmp_path: Path, stripes: ImageData) -> None:
    plan = plan_of("kernel", stripes)
    folder = RunFolder.create(tmp_path / "run", plan)
    with folder.locked(), pytest.raises(RunError, match="no other process"):
        go(folder, stripes)
    assert go(folder, stripes)
    with pytest.raises(RunError, match="has not ended"):
        go(folder, stripes)
    with pytest.raises(RunError, match="does not exist yet"):
        RunFolder.create(tmp_path / "run", plan)


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path, stripes: ImageData) -> None:
    plan = plan_of("kernel", stripes)
    other = dataclasses.replace(plan, seed=1)
    stopped, fresh = RunFolder.create(tmp_path / "a", plan), RunFolder.create(tmp_path / "b", other)
    assert not go(stopped, stripes, stop_after=2)
    shutil.copy(stopped.checkpoint, fresh.checkpoint)
    with pytest.raises(RunError, match="plan"):
        go(fresh, stripes)
    fresh.checkpoint.write_bytes(b"\x80\x04 not a checkpoint")
    with pytest.raises(RunError, match="checkpoint"):
        go(fresh, stripes)


def test_insecure_release_says_that_it_has_no_guarantee(tmp_path: Path, stripes: ImageData) -> None:
    folder = RunFolder.create(tmp_path / "run", plan_of("kernel", stripes))
    assert go(folder, stripes)
    assert "NO guarantee" in json.loads(folder.privacy.read_text())["void"]
    assert "**None.**" in folder.card.read_text()
    with pytest.raises(PrivacyError, match="NO guarantee"):
        gswgan.load(folder.root, device="cpu").privacy  # noqa: B018


def test_privacy_json_has_everything_that_epsilon_means_nothing_without(tmp_path: Path, stripes: ImageData) -> None:
    for kind in ("kernel", "ensemble", "paper"):
        folder = RunFolder.create(tmp_path / kind, plan_of(kind, stripes))
        assert go(folder, stripes)
        statement = json.loads(folder.privacy.read_text())
        needed = {"observer", "epsilon", "delta", "neighbours", "unit", "sampling", "accountant"}
        (stated,) = statement["guarantees"]
        assert set(stated) == needed
        assert all(statement[key] == stated[key] for key in needed)
        assert statement["format_version"] == 1
        assert (statement["claimed"] is not None) == (kind == "paper")
        assert len(read_ledger(folder.ledger)[1]) == folder.plan().privacy.releases


def test_an_unrecorded_release_stops_publication(tmp_path: Path, stripes: ImageData) -> None:
    """A ledger with a release fewer than planned: no generator is written."""
    plan = plan_of("ensemble", stripes)
    folder = RunFolder.create(tmp_path / "run", plan)
    assert not go(folder, stripes, stop_after=plan.training.steps - 1)
    before = folder.ledger.read_text().splitlines(keepends=True)
    record = Ledger.record

    def forget(self, name, event, fingerprint):
        return 0 if name.endswith(str(plan.training.steps - 1)) else record(self, name, event, fingerprint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "record", forget)
        with pytest.raises(GswganError, match="releases"):
            go(folder, stripes)
    assert not folder.generator.exists()
    assert folder.ledger.read_text().splitlines(keepends=True) == before


def test_a_generator_is_retrained_from_an_embedding_at_no_cost(tmp_path: Path, stripes: ImageData) -> None:
    folder = RunFolder.create(tmp_path / "run", plan_of("kernel", stripes))
    assert go(folder, stripes)
    again = retrain(folder.release, tmp_path / "again", steps=3, device="cpu", seed=5)
    assert go(again, None)
    assert again.ledger.read_bytes() == folder.ledger.read_bytes()
    assert json.loads(again.privacy.read_text())["epsilon"] == json.loads(folder.privacy.read_text())["epsilon"]
    assert gswgan.load(again.root, device="cpu").sample(4)[0].shape == (4, 8, 8)
    with pytest.raises(RunError, match="kernel critic"):
        retrain(_finished_ensemble(tmp_path, stripes), tmp_path / "no", steps=3, device="cpu", seed=5)


def _finished_ensemble(tmp_path: Path, data: ImageData) -> Path:
    folder = RunFolder.create(tmp_path / "ensemble", plan_of("ensemble", data, steps=2))
    assert go(folder, data)
    return folder.root
