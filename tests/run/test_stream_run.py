"""A run on data that stays in its files."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_baseline, tiny_images, tiny_plan, write_persons
from gswgan.cli.main import app
from gswgan.critics.kernel import streaming
from gswgan.data import ImageStream, load_data, open_stream, stream
from gswgan.data import files as data_files
from gswgan.errors import DataError, PlanError, RunError
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import read_ledger
from gswgan.run import loop
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.folder import RunFolder, data_digest
from many_files import png, write_npz, write_parquet

CPU = torch.device("cpu")


@pytest.fixture
def found(tmp_path: Path) -> ImageStream:
    return open_stream(write_npz(tmp_path / "set", tiny_images(120), files=4), classes=3)


@pytest.fixture
def plan(found: ImageStream) -> Plan:
    return tiny_plan(found, insecure_reproducible=True)


def released(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.release.iterdir()}


def test_the_release_is_the_one_of_the_data_in_memory(tmp_path: Path, found: ImageStream, plan: Plan) -> None:
    straight = RunFolder.create(tmp_path / "memory", plan)
    assert loop.run(straight, load_data(tmp_path / "set", classes=3), device=CPU)
    folder = RunFolder.create(tmp_path / "stream", plan)
    told: list[tuple[int, int]] = []
    assert loop.run(folder, found, device=CPU, reading=lambda *moved: told.append(moved))
    assert released(folder) == released(straight)  # 120 records are one batch either way: the same bits
    assert told == [(done, 120) for done in (0, 30, 60, 90, 120)]
    assert not folder.sums.exists()  # private, and of no further use
    assert json.loads(folder.left_out.read_text())["left_out"] == 0
    kept = {"lock", "owner.json", "metrics.jsonl", "data.json", "left_out.json"}
    assert {path.name for path in folder.private.iterdir()} <= kept


def test_a_stop_and_a_crash_in_the_pass_cost_nothing(
    tmp_path: Path, found: ImageStream, plan: Plan, monkeypatch
) -> None:
    straight = RunFolder.create(tmp_path / "straight", plan)
    assert loop.run(straight, found, device=CPU)
    folder = RunFolder.create(tmp_path / "stopped", plan)
    read: list[int] = []

    def press(done: int, total: int) -> None:
        read.append(done)
        if done == 60:
            os.kill(os.getpid(), 2)

    assert not loop.run(folder, found, device=CPU, reading=press)
    assert read == [0, 30, 60]
    assert stat.S_IMODE(folder.sums.stat().st_mode) == 0o600
    assert folder.sums.parent == folder.private
    assert not folder.embedding.exists()
    assert not folder.ledger.exists() or not read_ledger(folder.ledger)[1]  # nothing was released
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "is_due", lambda self: True)
        patch.setattr(streaming, "sum_part", lambda job, part: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            loop.run(folder, found, device=CPU)
    read.clear()
    assert loop.run(folder, found, device=CPU, reading=lambda done, total: read.append(done))
    assert read == [60, 90, 120]
    assert released(folder) == released(straight)
    assert len(read_ledger(folder.ledger)[1]) == 1


def test_files_that_are_not_the_ones_it_began_with_are_refused(tmp_path: Path, found: ImageStream, plan: Plan) -> None:
    folder = RunFolder.create(tmp_path / "run", plan)
    assert not loop.run(folder, found, device=CPU, reading=lambda done, total: done and os.kill(os.getpid(), 2))
    path = tmp_path / "set" / "part-002.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # a pixel of a record that was not read yet
    before = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(RunError, match="data that this run began with"):
        loop.run(folder, found, device=CPU)
    path.write_bytes(before)
    other_way = dataclasses.replace(found, reader=dataclasses.replace(found.reader, image_size=16))
    with pytest.raises(RunError, match="data that this run began with"):
        folder.bind_data(other_way, folder.secret(plan))
    assert loop.run(folder, found, device=CPU)


def image_folder(root: Path, *, names: str = "{label}-{index:03}.png") -> Path:
    """60 images in three class folders, and a fourth that is empty."""
    data = tiny_images(60)
    for index, (image, label) in enumerate(zip(data.images, data.labels)):
        (root / f"class {label}").mkdir(parents=True, exist_ok=True)
        name = names.format(label=label, index=index if "label" in names else index // 3)
        (root / f"class {label}" / name).write_bytes(png(image))
    (root / "class 3").mkdir()
    return root


def test_a_file_in_another_class_folder_is_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes in the same order, one label changed: for the run that is bound to it and for a budget's mark."""
    monkeypatch.setattr(data_files, "MAX_FILES_IN_MEMORY", 50)
    root = image_folder(tmp_path / "set")
    before = open_stream(root)
    assert before is not None
    first = data_digest(before, b"key")
    plan = tiny_plan(before)
    folder = RunFolder.create(tmp_path / "run", plan)
    folder.bind_data(before, folder.secret(plan))
    (root / "class 0" / "0-000.png").rename(root / "class 3" / "0-000.png")
    after = open_stream(root)
    assert after is not None
    assert [path.name for path, _ in after.files.paths()] == [path.name for path, _ in before.files.paths()]
    assert data_digest(after, b"key") != first
    with pytest.raises(RunError, match="data that this run began with"):
        folder.bind_data(after, folder.secret(plan))
    (root / "class 3" / "0-000.png").rename(root / "class 0" / "0-000.png")
    folder.bind_data(open_stream(root), folder.secret(plan))


def test_files_of_one_name_are_refused_where_places_matter(tmp_path: Path) -> None:
    data = load_data(image_folder(tmp_path / "set", names="{index:03}.png"))
    assert len(data.repeated_names) == 20
    plans = {"ensemble": tiny_plan(data, preset="ensemble"), "dp-sgd-gan": tiny_baseline(data, "dp-sgd-gan")}
    plans |= {"g-pate": tiny_baseline(data, "g-pate"), "kernel": tiny_plan(data)}
    for name, plan in plans.items():
        folder = RunFolder.create(tmp_path / name, plan)
        if name == "kernel":  # one exact sum of everybody, in whatever order
            assert loop.run(folder, data, device=CPU)
            continue
        with pytest.raises(DataError, match=r"20 file names in several class folders \(000\.png"):
            loop.run(folder, data, device=CPU)
        assert not folder.key.exists()
    out = tmp_path / "never"
    with pytest.raises(DataError, match="several class folders"):
        call("train", "--data", tmp_path / "set", "--preset", "ensemble", "--critics", 6, "--steps", 2, "--out", out)
    assert not out.exists()


def test_no_file_or_folder_is_named_in_a_release(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "patients-of-ward-7", names="patient-{label}-{index:03}.png")
    call("train", "--data", root, "--steps", 2, "--epsilon", 50, "--out", tmp_path / "run")
    call("train", "--data", root, "--steps", 2, "--epsilon", 50, "--name", "Ward study", "--out", tmp_path / "named")
    for name, title in (("run", "image folder"), ("named", "Ward study")):
        call("release", tmp_path / name)
        written = {path.name: path.read_bytes() for path in (tmp_path / f"{name}-release").iterdir()}
        assert all(b"patient" not in content and b"ward-7" not in content for content in written.values())
        card = written["card.md"].decode()
        assert card.startswith(f"# Synthetic images after {title}\n")
        assert f"what it is called: {title}\n" in card
        assert "and their names: class 0, class 1, class 2, class 3\n" in card
    with pytest.raises(PlanError, match="public name"):
        call("train", "--data", root, "--name", " ", "--out", tmp_path / "never")
    said = call("train", "--data", root, "--epsilon", 50, "--dry-run")
    assert "class names: class 0, class 1, class 2, class 3" in said


def test_other_critics_refuse_a_stream(tmp_path: Path, found: ImageStream) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_plan(found, preset="ensemble"))
    with pytest.raises(RunError, match="data in memory"):
        loop.run(folder, found, device=CPU)


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_train_on_a_folder_of_parquet(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(stream, "HEAD", 10)
    folder = write_parquet(tmp_path / "set", tiny_images(400), damaged=(70, 90))
    write_parquet(tmp_path / "set", tiny_images(60, seed=4), split="test")
    run = RunFolder(tmp_path / "run")
    common = ("--data", folder, "--steps", 3, "--workers", 1)
    said = call("train", *common, "--out", run.root, "--show-private")
    assert "400 records" in said
    assert "record 400/400" in said
    assert "PRIVATE: 2 of 400 records" in said
    assert "trained on synthetic, tested on real" in said  # the held-out files
    assert "2 of 400" not in call("train", *common, "--out", tmp_path / "quiet")
    assert run.plan().facts.class_names == ("0", "1", "2")
    assert call("train", *common, "--dry-run").count("epsilon")
    assert "left_out" not in "".join(path.name for path in run.release.iterdir())


def test_other_methods_and_persons_take_the_folder_into_memory(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    data = tiny_images(120)
    folder = write_parquet(tmp_path / "set", data)
    call(
        "train", "--data", folder, "--preset", "ensemble", "--critics", 6, "--steps", 2, "--out", tmp_path / "ensemble"
    )
    ids = write_persons(tmp_path / "ids.csv", [index // 2 for index in range(120)])
    call("train", "--data", folder, "--group-by", ids, "--steps", 2, "--out", tmp_path / "persons")
    assert RunFolder(tmp_path / "persons").plan().facts.persons == 60
